"""Embedding tables under every optimizer: one gradient, one update.

A table's gradient is a `tf.IndexedSlices`; Keras's optimizers square its rows
one by one, also where several are of one id.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.modes import one_step
from keras_pergrad.modes.one_step import for_optimizer
from tests import zoo
from tests.models.making import assert_equal, compiled, net, trained

layers = keras.layers
optimizers = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optimizers.Adam(0.05),
    "adamw": lambda: optimizers.AdamW(0.05, weight_decay=0.1),
    "adagrad": lambda: optimizers.Adagrad(0.05),
    "rmsprop": lambda: optimizers.RMSprop(0.05, centered=True),
    "nadam": lambda: optimizers.Nadam(0.05),
    "adamax": lambda: optimizers.Adamax(0.05),
    "ftrl": lambda: optimizers.Ftrl(0.05),
    "lion": lambda: optimizers.Lion(0.05),
    "lamb": lambda: optimizers.Lamb(0.05),
    "adafactor": lambda: optimizers.Adafactor(0.05),
    "clipnorm": lambda: optimizers.SGD(0.5, clipnorm=0.05),
    "clipvalue": lambda: optimizers.SGD(0.5, clipvalue=0.02),
    "global_clipnorm": lambda: optimizers.Adagrad(0.5, global_clipnorm=0.05),
    "ema": lambda: optimizers.Adam(0.05, use_ema=True, ema_momentum=0.5),
    "accumulating": lambda: optimizers.Adam(
        0.05, gradient_accumulation_steps=2
    ),
    "scaled": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adagrad(0.05), initial_scale=4.0
    ),
}
rng = np.random.default_rng(0)
ROWS = 12
STEPS = [
    (rng.integers(0, ROWS, 8), rng.normal(size=(8, 3)).astype("float32"))
    for _ in range(4)
]
START = rng.normal(size=(ROWS, 3)).astype("float32")


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Have all tables treated as large ones are."""
    monkeypatch.setattr(one_step, "SMALL", 0)


def updated(make, gradient):
    table = keras.Variable(START)
    optimizer = make()
    optimizer.build([table])
    scale = 4.0 if isinstance(optimizer, optimizers.LossScaleOptimizer) else 1.0
    for ids, rows in STEPS:
        slices = tf.IndexedSlices(scale * rows, ids, tf.constant([ROWS, 3]))
        optimizer.apply(gradient(slices), [table])
    return np.array(table)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_is_that_of_the_dense_gradient(name):
    make = OPTIMIZERS[name]
    found = updated(make, lambda slices: for_optimizer([slices]))
    dense = updated(make, lambda slices: [tf.convert_to_tensor(slices)])
    np.testing.assert_allclose(found, dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_equal_ids_are_added_where_the_sizes_are_unknown(jit):
    spec = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3])

    @tf.function(jit_compile=jit, input_signature=spec)
    def added(ids, rows):
        slices = tf.IndexedSlices(rows, ids, tf.constant([1000, 3]))
        (slices,) = for_optimizer([slices])
        return slices.indices, slices.values

    ids, rows = np.array([7, 3, 7, 999, 7, 3]), rng.normal(size=(6, 3))
    found, values = map(np.array, added(ids, rows.astype("float32")))
    np.testing.assert_array_equal(found, ids)
    right = np.zeros((6, 3))
    right[4], right[5] = rows[[0, 2, 4]].sum(0), rows[[1, 5]].sum(0)
    right[3] = rows[3]
    np.testing.assert_allclose(values, right, rtol=1e-5, atol=1e-6)
    none, rows = added(np.zeros(0, int), np.zeros((0, 3), "float32"))
    assert none.shape == 0
    assert rows.shape == (0, 3)


def test_a_small_table_gets_a_dense_gradient(monkeypatch):
    monkeypatch.setattr(one_step, "SMALL", 8)
    ids, shape = tf.constant([0, 1, 0, 3, 0]), tf.constant([4, 2])
    slices = tf.IndexedSlices(tf.ones((5, 2)), ids, shape)
    (dense,) = for_optimizer([slices])
    np.testing.assert_array_equal(dense, [[3, 3], [1, 1], [0, 0], [1, 1]])


def test_ids_of_no_row_stay_alone():
    # XLA and a GPU pass over them; the last row must not get theirs.
    ids = tf.constant([5, 40, 5, -1, 39])
    rows = tf.reshape(tf.range(10.0), (5, 2))

    @tf.function(jit_compile=True)
    def dense():
        slices = tf.IndexedSlices(rows, ids, tf.constant([40, 2]))
        (slices,) = for_optimizer([slices])
        places = tf.reshape(slices.indices, (-1, 1))
        return tf.tensor_scatter_nd_add(
            tf.zeros((40, 2)), places, slices.values
        )

    right = np.zeros((40, 2))
    right[5], right[39] = [4, 6], [8, 9]
    np.testing.assert_array_equal(dense(), right)


IDS = rng.integers(0, 9, (12, 4))
Y = rng.normal(size=(12, 1)).astype("float32")


def network(kind):
    keras.utils.set_random_seed(3)
    penalty = keras.regularizers.L2(0.01) if kind == "penalty" else None
    table = layers.Embedding(9, 3, embeddings_regularizer=penalty)
    parts = [table, layers.Flatten()]
    if kind == "tied":
        parts = [table, layers.GlobalAveragePooling1D(), zoo.TiedLogits(table)]
    return net(*parts, shape=(4,), dtype="int32", units=1)


def by_formula(kind, optimizer):
    """Train by the gradients of a plain tape, made dense."""
    model = compiled(network(kind))
    for _ in range(3):
        with tf.GradientTape() as tape:
            y_pred = model(IDS, training=True)
            loss = model.compute_loss(IDS, Y, y_pred)
        values = [v.value for v in model.trainable_variables]
        gradients = map(tf.convert_to_tensor, tape.gradient(loss, values))
        optimizer.apply(list(gradients), model.trainable_variables)
    return model.get_weights()


class Again(kpg.Batch):
    """A mode of a user's own, on top of plain gradients."""

    changes_gradients = True

    def step(self, model, x, y, sample_weight):
        step = super().step(model, x, y, sample_weight)
        step.gradients = [tf.identity(g) for g in step.gradients]
        return step


class OwnStep(kpg.PerGradModel):
    def train_step(self, data):
        def loss_fn(x, y, sample_weight):
            return (y - self(x, training=True))[:, 0] ** 2

        gradients, logs = self.compute_gradients(loss_fn, *data)
        self.optimizer.apply(gradients, self.trainable_variables)
        return logs


MODES = {
    "vectorized": kpg.Vectorized,
    "clipped": lambda: kpg.Vectorized(kpg.ClippedMean(1e6)),
    "per_sample": kpg.PerSample,
    "microbatches": lambda: kpg.Accumulated(microbatch_size=5),
    "inner": lambda: kpg.Accumulated(microbatch_size=5, inner="vectorized"),
    "own": Again,
}


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *((mode, "table") for mode in MODES),
        ("own step", "table"),
        ("vectorized", "tied"),
        ("clipped", "tied"),
        ("vectorized", "penalty"),
    ],
)
def test_modes_update_by_the_formula(mode, kind):
    model, make = network(kind), MODES.get(mode, kpg.Vectorized)
    if mode == "own step":
        model = OwnStep(model.inputs, model.outputs)
    model = with_adam(model, make())
    for _ in range(3):
        model.train_on_batch(IDS, Y)
    right = by_formula(kind, optimizers.Adam(0.05))
    assert_equal(model.get_weights(), right, rtol=1e-4, atol=1e-5)


def with_adam(model, mode):
    adam = optimizers.Adam(0.05)
    return compiled(model, mode, optimizer=adam, jit_compile=False)


def test_updates_by_sample():
    found = with_adam(network("table"), kpg.PerSample(updates="sample"))
    found.train_on_batch(IDS, Y)
    right = with_adam(network("table"), "vectorized")
    trained(right, IDS, Y, batch_size=1)
    assert_equal(found.get_weights(), right.get_weights(), rtol=1e-4, atol=1e-5)


def test_batch_stays_keras_to_the_bit():
    found = [with_adam(network("table"), mode) for mode in (None, "batch")]
    for _ in range(3):
        for model in found:
            model.train_on_batch(IDS, Y)
    assert_equal(*(model.get_weights() for model in found))
