"""What is different where XLA compiles: look-ups, and gradients of slices.

The reference is each sample alone on a plain tape, compiled as well.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla as xla_ops

from keras_pergrad.keras_internals.tensorflow.settings import in_xla
from keras_pergrad.proof.tensor_types import Mixed, Total
from keras_pergrad.uses import TracedStep, refusals
from tests import oracle
from tests.marks import few
from tests.proof.mixing_cases import Weighed
from tests.proof.motion import witness

layers, ops = keras.layers, keras.ops
_rng = np.random.default_rng(3)
X = _rng.normal(size=(4, 3, 4))
#: Of three entries: those before the first and behind the last are none.
BEYOND = np.array([[0, -1], [2, 3], [1, 1], [-2, 7]], "int32")
INSIDE = BEYOND % 3


def make(function):
    x, ids = keras.Input((3, 4)), keras.Input((2,), dtype="int32")
    h = layers.Dense(4, "tanh")(x)
    h = Weighed(function, (4, 3), "glorot_uniform")(h, ids)
    model = keras.Model([x, ids], layers.Dense(1)(layers.Flatten()(h)))
    model.compile("sgd", "mse", jit_compile=True)
    return model


def vectorized(model, x):
    """What each sample contributes to the gradient, for targets of zero."""

    @tf.function(jit_compile=True, autograph=False)
    def compute(x):
        y = tf.zeros([x[0].shape[0], 1], x[0].dtype)
        step = TracedStep(model, (x, y, None))
        with step:
            loss = tf.reduce_mean(tf.square(step.forward(x)))
        found = step.sample_gradients(loss)
        return [None if f is None else f.materialize() for f in found]

    return compute(x)


def alone(model, x):
    """The same, of one sample after the other."""

    @tf.function(jit_compile=True, autograph=False)
    def of_one(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        return tape.gradient(loss, model.trainable_variables)

    n = x[0].shape[0]
    rows = [of_one([t[i : i + 1] for t in x]) for i in range(n)]
    return [
        None
        if parts[0] is None
        else np.stack([tf.convert_to_tensor(p) for p in parts]) / n
        for parts in zip(*rows)
    ]


def of_heads(h, ids, w):
    """Two heads of each sample, with indices of their own."""
    heads = tf.transpose(tf.reshape(h, [-1, 3, 2, 2]), [0, 2, 1, 3])
    ids = tf.stack([ids, 2 - ids], 1)
    return tf.gather(heads, ids, batch_dims=2)


LOOKUPS = {
    "entries": lambda h, ids, w: tf.gather(h, ids, batch_dims=1),
    "one_each": lambda h, ids, w: tf.gather(h, ids[:, 0], batch_dims=1),
    "features": lambda h, ids, w: tf.gather(h, ids, axis=2, batch_dims=1),
    "two_axes": lambda h, ids, w: tf.gather(
        h, tf.stack([ids, ids], 2), axis=1, batch_dims=1
    ),
    "long": lambda h, ids, w: tf.gather(
        h, tf.cast(ids, "int64"), batch_dims=-1
    ),
    "negative_axis": lambda h, ids, w: tf.gather(h, ids, axis=-2, batch_dims=1),
    "by_values": lambda h, ids, w: tf.gather(
        h, tf.where(tf.stop_gradient(h[:, :2, 0]) > 0, ids, 1), batch_dims=1
    ),
}
ALONG = {
    "along": lambda h, ids, w: ops.take_along_axis(h, ids[:, :, None], 1),
    "along_features": lambda h, ids, w: ops.take_along_axis(h, ids[:, None], 2),
    "heads": of_heads,
}
QUICK = ["entries", "features"]


def _assert_exact(function, ids=INSIDE):
    model, x = make(function), [tf.constant(X), tf.constant(ids)]
    oracle.assert_agree(vectorized(model, x), alone(model, x))
    return model


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", few(LOOKUPS, QUICK))
@pytest.mark.parametrize("ids", [BEYOND, INSIDE], ids=["beyond", "inside"])
def test_entries_beyond_a_samples_own_are_no_others(name, ids):
    _assert_exact(LOOKUPS[name], ids)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", few(ALONG, ["along"]))
def test_entries_along_an_axis_are_each_samples_own(name):
    """They are merged with other axes: alone, TensorFlow mixes these."""
    model = _assert_exact(ALONG[name])
    found, others = (
        vectorized(model, [tf.constant(given), tf.constant(BEYOND)])
        for given in (X, np.concatenate([X[:2], 3 * X[2:]]))
    )
    for one, other in zip(found, others, strict=True):
        if one is not None:
            np.testing.assert_array_equal(one[:2], other[:2])


@pytest.mark.usefixtures("float64")
def test_slices_of_samples_and_weights_are_exact():
    def function(h, ids, w):
        part = tf.slice(h, [0, 1, 0], [-1, 2, 3])
        columns = tf.split(w, [1, 2], 1)
        both = tf.concat([tf.sin(columns[1]), columns[0]], 1)
        with tf.GradientTape() as tape:
            tape.watch(part)
            value = tf.slice(part, [0, 0, 1], [-1, 2, 2]) ** 3
        slope = tape.gradient(value, part)
        moved = ops.slice_update(slope, (0, 0, 2), part[:, :, :1])
        made = tf.matmul(moved, tf.slice(both, [1, 0], [3, 2]))
        return tf.ensure_shape(made, (None, 2, 2))

    _assert_exact(function)


def test_an_op_without_a_gradient_is_named():
    def function(h, ids, w):
        part = xla_ops.dynamic_slice(h, [0, 1, 0], [4, 2, 4])
        return tf.ensure_shape(part, (4, 2, 4))

    x = [tf.constant(X, tf.float32), tf.constant(INSIDE)]
    said = r"op XlaDynamicSlice \(.*jit_compile=False"
    with pytest.raises(ValueError, match=said):
        vectorized(make(function), x)


MATRIX = tf.constant(_rng.normal(size=(3, 4)))


def _rows(x):
    return tf.shape(x)[0]


def _twice_as_many(x):
    return tf.zeros([2 * _rows(x), 4], x.dtype)


#: name → (what `slice_update` is given, the place of samples or a type).
UPDATES = {
    "features": (lambda x: (x, (0, 2), x[:, :2]), (0, 1, 1)),
    "into_constants": (lambda x: (MATRIX, (0, 1), x[:, :2]), None),
    "of_constants": (lambda x: (x, (0, 1), 0 * x[:, :2] + 3.0), (0, 1, 1)),
    "behind": (lambda x: (_twice_as_many(x), (_rows(x), 0), x), (0, 1, 2)),
    "beyond_the_end": (lambda x: (x, (5, 9), x[:, :2]), (0, 1, 1)),
    "among_others": (lambda x: (_twice_as_many(x), (1, 0), x), Mixed),
    "one_sample": (lambda x: (x, (1, 0), MATRIX[:1]), Mixed),
    "by_values": (
        lambda x: (x, (0, tf.cast(x[0, 0] > 0, "int32")), x[:, :2]),
        Mixed,
    ),
    "sums": (
        lambda x: (tf.zeros([4], x.dtype), (1,), tf.reduce_sum(x[:, :2], 0)),
        Total,
    ),
    "sums_among_samples": (
        lambda x: (x[:, None], (0, 0, 0), tf.reduce_sum(x, 0)[None, None]),
        Mixed,
    ),
}


@pytest.mark.parametrize("name", UPDATES)
def test_types_of_updated_slices_agree_with_motion(name):
    given, expected = UPDATES[name]
    found = witness(
        lambda x: ops.slice_update(*given(x)), _rng.normal(size=(6, 4))
    )
    found.assert_right(expected)


@pytest.mark.parametrize("xla", [False, True])
def test_a_trace_aside_is_compiled_as_the_step_will_be(xla):
    """As what checks private training before `fit` looks at a model."""
    seen = []

    def function(h, ids, w):
        seen.append(in_xla())
        return h

    model = make(function)
    model.compile("sgd", "mse", jit_compile=xla)
    seen.clear()
    batch = [tf.constant(X, tf.float32), tf.constant(INSIDE)]
    batch = batch, tf.zeros([4, 1]), None
    assert not refusals(TracedStep(model, batch), repeated="example")
    assert seen == [xla]
