"""What XLA cannot compile is named, with what to do, before a weight moves."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.keras_internals.replicas.advice import advising
from tests.models.making import compiled, net

layers = keras.layers


class Text(layers.Layer):
    """Multiplies each number by the length of its text, which XLA has not."""

    def call(self, x):
        lengths = tf.strings.length(tf.strings.as_string(x))
        return x * tf.cast(lengths, x.dtype)


class InPython(layers.Layer):
    def call(self, x):
        twice = tf.py_function(lambda t: t * 2, [x], x.dtype)
        return tf.ensure_shape(twice, x.shape)


class Doubled(layers.Layer):
    def call(self, x):
        return x * 2


def _model(layer, mode):
    return compiled(net(layer, shape=(3,), units=2), mode, jit_compile=True)


def _train(model, by_batch=False):
    """Return whether the weights have changed, and what was raised."""
    x, y, before = np.ones((4, 3)), np.ones((4, 2)), model.get_weights()
    error = None
    try:
        if by_batch:
            model.train_on_batch(x, y)
        else:
            model.fit(x, y, verbose=0)
    except tf.errors.OpError as raised:
        error = raised
    pairs = zip(before, model.get_weights())
    return not all((a == b).all() for a, b in pairs), error


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize(
    ("layer", "mode", "op"),
    [
        (Text, "batch", "AsString"),
        (Text, "per_sample", "AsString"),
        (Text, "vectorized", "AsString"),
        (InPython, "batch", "EagerPyFunc"),
    ],
)
def test_what_xla_lacks_is_named_with_the_way_out(layer, mode, op, *, by_batch):
    changed, error = _train(_model(layer(), mode), by_batch)
    assert not changed
    assert op in str(error)
    assert "jit_compile=False" in error.__notes__[-1]


@pytest.mark.parametrize("mode", ["batch", "per_sample", "vectorized"])
def test_what_xla_has_is_trained_on(mode):
    assert _train(_model(Doubled(), mode)) == (True, None)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "Trying to access resource counter located in device "
            "/job:localhost/device:CPU:0 from device GPU:0",
            "Make it int64 or float32",
        ),
        (
            "Input 1 to node `OneHot` with op OneHot must be a compile-time "
            "constant",
            "jit_compile=False",
        ),
        (
            "Deterministic GPU implementation of CTC loss is not available",
            "leave determinism off",
        ),
        ("Incompatible shapes: [2] against [3]", None),
    ],
)
def test_errors_of_a_gpu_have_advice(text, advice):
    error = tf.errors.InvalidArgumentError(None, None, text)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught, advising():
        raise error
    notes = getattr(caught.value, "__notes__", [])
    assert [advice in note for note in notes] == ([True] if advice else [])
