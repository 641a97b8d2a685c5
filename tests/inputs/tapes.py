"""What `input_gradients` must give, by tapes."""

import keras
import numpy as np
import tensorflow as tf

import keras_pergrad as kpg


def gradients(model, x, outputs=None, **how):
    """What it gives, without a bar."""
    return kpg.input_gradients(model, x, outputs=outputs, verbose=0, **how)


def of_ids(outputs):
    """A model of ids from 0 to 5, its embedding, and what is behind it."""
    ids = keras.Input((4,), dtype="int32")
    table = keras.layers.Embedding(6, 3)
    parts = keras.layers.Flatten(), keras.layers.Dense(outputs, "tanh")
    head = keras.Sequential(parts)
    return keras.Model(ids, head(table(ids))), table, head


def assert_close(found, expected):
    """Assert that two structures of arrays are equal up to rounding."""
    found, expected = tf.nest.flatten(found), tf.nest.flatten(expected)
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-10, atol=1e-10)


def jacobians(model, x):
    """The Jacobians of the flat outputs by the flat inputs, in this order."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        outputs = tf.nest.flatten(model(x, training=False))
    return [
        tape.batch_jacobian(y, one, experimental_use_pfor=False).numpy()
        for y in outputs
        for one in tf.nest.flatten(x)
    ]


def diagonals(model, x):
    """The diagonal of the Hessian of each output, (n, outputs, *input)."""
    x = tf.convert_to_tensor(x)
    size = int(np.prod(x.shape[1:]))
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(x)
            outputs = tf.unstack(model(x), axis=1)
        slopes = [inner.gradient(y, x) for y in outputs]
    full = [
        outer.batch_jacobian(s, x, experimental_use_pfor=False) for s in slopes
    ]
    full = [np.reshape(h, (-1, size, size)) for h in full]
    found = [np.diagonal(h, axis1=1, axis2=2) for h in full]
    return np.stack([d.reshape(x.shape) for d in found], 1)
