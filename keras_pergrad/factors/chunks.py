"""Sums over samples whose gradients are never held all at once."""

import tensorflow as tf

from keras_pergrad.factors.written_out import (
    squares,
    wide,
)

#: How many numbers of gradients are held at a time; they fit into a cache.
HELD_AT_ONCE = 2**20


def squares_by_chunks(gradients, tensors, shape):
    """Return Σ_n g², where `gradients(*tensors)` gives those of some samples.

    `shape` is that of a sample's gradient. Blank samples fill the last chunk.
    """
    numbers = tf.TensorShape(shape).num_elements()
    return sum_by_chunks(
        lambda *parts: squares(gradients(*parts)), tensors, numbers, shape=shape
    )


def sum_by_chunks(chunk_sum, tensors, numbers, *, shape):
    """Return the sum of `chunk_sum(*tensors)` of the samples, a few at a time.

    It holds `numbers` numbers a sample, and what it returns has this shape;
    that of blank samples is zero.
    """
    max_samples = max(HELD_AT_ONCE // max(numbers, 1), 1)
    n = tensors[0].shape[0]
    if n is not None and n <= max_samples:
        return chunk_sum(*tensors)
    n = tf.shape(tensors[0])[0]
    size = tf.maximum(tf.minimum(n, max_samples), 1)
    count = -(-n // size)
    chunks = [_split_chunks(tensor, count, size) for tensor in tensors]

    def add(k, total):
        parts = [tf.gather(chunk, k) for chunk in chunks]
        return k + 1, total + chunk_sum(*parts)

    zeros = tf.zeros(shape, wide(tensors[0]).dtype)
    return tf.while_loop(
        lambda k, _: k < count, add, (0, zeros), parallel_iterations=1
    )[1]


def _split_chunks(tensor, count, size):
    """Return (n, ...) as (count, size, ...), with zeros at the end."""
    padding = count * size - tf.shape(tensor)[0]
    zeros = [[0, padding], *[[0, 0]] * (tensor.shape.rank - 1)]
    shape = tf.concat([[count, size], tf.shape(tensor)[1:]], 0)
    chunks = tf.reshape(tf.pad(tensor, zeros), shape)
    chunks.set_shape([None, None, *tensor.shape[1:]])
    return chunks
