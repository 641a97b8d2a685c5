"""Sums over samples whose gradients are never held all at once."""

import tensorflow as tf

from keras_pergrad.factors.sample_gradients import squares, wide

#: How many numbers of gradients are held at a time; they fit into a cache.
HELD = 2**20


def squares_by_chunks(gradients, tensors, shape):
    """Return Σ_n g², where `gradients(*tensors)` gives those of some samples.

    `shape` is that of a sample's gradient. Blank samples fill the last chunk.
    """
    numbers = tf.TensorShape(shape).num_elements()
    return sum_by_chunks(
        lambda *parts: squares(gradients(*parts)), tensors, numbers, shape
    )


def sum_by_chunks(of_some, tensors, numbers, shape):
    """Return the sum of `of_some(*tensors)` of the samples, a few at a time.

    It holds `numbers` numbers a sample, and what it returns has this shape;
    that of blank samples is zero.
    """
    most = max(HELD // max(numbers, 1), 1)
    n = tensors[0].shape[0]
    if n is not None and n <= most:
        return of_some(*tensors)
    n = tf.shape(tensors[0])[0]
    size = tf.maximum(tf.minimum(n, most), 1)
    count = -(-n // size)
    chunks = [_cut(tensor, count, size) for tensor in tensors]

    def add(k, total):
        parts = [tf.gather(chunk, k) for chunk in chunks]
        return k + 1, total + of_some(*parts)

    nothing = tf.zeros(shape, wide(tensors[0]).dtype)
    return tf.while_loop(
        lambda k, _: k < count, add, (0, nothing), parallel_iterations=1
    )[1]


def _cut(tensor, count, size):
    """Return (n, ...) as (count, size, ...), with zeros at the end."""
    missing = count * size - tf.shape(tensor)[0]
    zeros = [[0, missing], *[[0, 0]] * (tensor.shape.rank - 1)]
    shape = tf.concat([[count, size], tf.shape(tensor)[1:]], 0)
    chunks = tf.reshape(tf.pad(tensor, zeros), shape)
    chunks.set_shape([None, None, *tensor.shape[1:]])
    return chunks
