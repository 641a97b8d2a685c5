"""Gradients by variable: as dense tensors, and with shapes that are known."""

import tensorflow as tf


def dense_gradients(gradients, variables):
    """Return dense gradients; those that are None become zeros."""
    return [
        tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
        for g, v in zip(gradients, variables, strict=True)
    ]


def with_shapes(gradients, variables):
    """Return gradients, or None, that know to have their variables' shapes.

    TensorFlow does not know them where the length of an axis is not known.
    """
    return gradients and [
        tf.ensure_shape(g, v.shape)
        if tf.is_tensor(g)
        and not isinstance(g, tf.IndexedSlices)
        and not g.shape.is_fully_defined()
        else g
        for g, v in zip(gradients, variables, strict=True)
    ]
