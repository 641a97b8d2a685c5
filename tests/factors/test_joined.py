"""Several uses of a variable as one: exact, and without what they add up to."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.factors import Adapted, Full, Joined, Outer, Rows, join
from keras_pergrad.factors.joined import Tied
from keras_pergrad.modes import one_step
from tests.uses.rules.exact import RUNS, assert_exact, normal, randomized

layers = keras.layers
RNG = np.random.default_rng(0)


def _rows(positions, dtype="int32"):
    ids = tf.constant(RNG.integers(0, 5, (3, positions)), dtype)
    return Rows(ids, tf.constant(RNG.normal(size=(3, positions, 4))), (5, 4))


def _outer(*positions, sides=(5, 4), layout=None, kind=Outer):
    x, dz = (
        tf.constant(RNG.normal(size=(3, *positions, size))) for size in sides
    )
    return kind(x, dz, **(layout or {}))


def _full():
    return Full(tf.constant(RNG.normal(size=(3, 5, 4))))


class Upper(Adapted):
    """The upper triangles of a matrix."""

    def __init__(self, x, dz):
        super().__init__(Outer(x, dz))

    def change(self, tensor):
        return tf.linalg.band_part(tensor, 0, -1)

    def squared_norms(self):
        return tf.reduce_sum(tf.square(self.materialize()), [1, 2])


SAME = {"layout": {"shape": [5, 4], "perm": [0, 1], "unpermuted": [5, 4]}}
TURNED = {
    "sides": (4, 5),
    "layout": {"shape": [5, 4], "perm": [1, 0], "unpermuted": [4, 5]},
}
USES = {
    "tables": (lambda: [_rows(2), _rows(1), _rows(3, "int64")], Rows),
    "matrices": (lambda: [_outer(), _outer(2, 3)], Outer),
    "other layouts": (lambda: [_outer(), _outer(**SAME)], Joined),
    "other kinds": (lambda: [_rows(2), _full(), _rows(1)], Joined),
    "tied": (lambda: [_rows(2), _outer(3), _rows(4, "int64")], Tied),
    "tied, turned": (lambda: [_outer(3, **TURNED), _rows(2)], Tied),
    "tied to a changed one": (
        lambda: [_rows(2), _outer(3, kind=Upper)],
        Joined,
    ),
    "one": (lambda: [_full()], Full),
}


@pytest.mark.parametrize("name", USES)
def test_is_the_sum_of_the_uses(name):
    make, kind = USES[name]
    parts = make()
    full = sum(np.asarray(part.materialize()) for part in parts)
    weights = tf.constant([0.5, 2.0, 0.0], tf.float64)
    joint = join(parts)
    products = np.tensordot(full, full[0], 2)
    squares = np.square(full).sum(0)
    assert isinstance(joint, kind)
    if kind is Joined:
        assert len(joint.parts) == 2
    for found, expected in (
        (joint.dot(full[0]), products),
        (joint.sum_of_squares(), squares),
        (joint.gram(), np.tensordot(full, full, ((1, 2), (1, 2)))),
        (joint.squared_norms(), np.square(full).sum((1, 2))),
        (joint.weighted_sum(None), full.sum(0)),
        (joint.weighted_sum(weights), np.tensordot(weights, full, 1)),
        (joint.squared_norm_of_sum(), np.square(full.sum(0)).sum()),
        (joint.materialize(), full),
        (joint.dot(full[0]), products),
        (joint.sum_of_squares(), squares),
    ):
        found = tf.convert_to_tensor(found)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def _siamese(rows=7, width=3, steps=5):
    a, b = (keras.Input((steps,), dtype="int32") for _ in "ab")
    table, dense = layers.Embedding(rows, width), layers.Dense(2, "tanh")
    pool = layers.GlobalAveragePooling1D()
    # Once at each position, once at a single one.
    both = [pool(dense(table(a))), dense(pool(table(b)))]
    return keras.Model([a, b], layers.Dense(1)(layers.Concatenate()(both)))


@pytest.mark.parametrize("run", RUNS)
def test_a_siamese_network_is_exact(run):
    if run != "xla":
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
    ids = [RNG.integers(0, 4, (3, 5)).astype("int32") for _ in "ab"]
    assert_exact(randomized(_siamese()), ids, run=run)


@pytest.mark.usefixtures("float64")
def test_a_recurrent_layer_used_twice_is_exact():
    a, b = keras.Input((3, 2)), keras.Input((4, 2))
    layer = layers.LSTM(3)
    model = keras.Model([a, b], layer(a) * layer(b))
    assert_exact(randomized(model), [normal(2, 3, 2), normal(2, 4, 2)])


def test_a_shared_table_holds_its_used_rows():
    (table, dense, _) = kpg.explain(_siamese(1_000_000, 16, 8), 64)
    (found,) = table.variables
    assert found.shared
    assert (found.norms, found.sum) == ("unique", "slices")
    # ids and gradients of both uses; sorted, and the sums of equal ids.
    assert found.held_bytes == 64 * 16 * (4 + 3 * 16 * 4)
    kernel, bias = dense.variables
    assert kernel.norms == "full"
    assert bias.norms == "joined"
    inputs = keras.Input((512,))
    twice = layers.Dense(512)
    row = kpg.explain(keras.Model(inputs, twice(twice(inputs))), 256).rows[0]
    assert row.variables[0].norms == "gram"
    assert row.variables[0].held_bytes < 5e6


def test_the_mean_of_a_shared_table_stays_in_slices(monkeypatch):
    monkeypatch.setattr(one_step, "SMALL", 0)
    model = kpg.PerGradModel.from_model(_siamese())
    found = []
    optimizer = keras.optimizers.SGD()
    apply = optimizer.apply

    def noting(gradients, *args, **kwargs):
        found.extend(gradients)
        return apply(gradients, *args, **kwargs)

    optimizer.apply = noting
    model.compile(optimizer, "mse", gradient_mode="vectorized")
    ids = [RNG.integers(0, 4, (3, 5)) for _ in "ab"]
    model.train_on_batch(ids, np.ones((3, 1)))
    assert isinstance(found[0], tf.IndexedSlices)
