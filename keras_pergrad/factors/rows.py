"""The factor of look-up tables."""

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients, expand, sum_of_squares


class Rows(SampleGradients):
    """Contributions of an embedding: row ids[t] receives dz[t].

    Equal ids within a sample are summed before they are squared, so norms
    are exact; memory is that of `dz`, never that of the vocabulary.

    Args:
        ids: (n, ...) integers.
        dz: (n, ..., d).
        shape: the table's shape, (vocabulary, d).
    """

    rows = ("dz",)

    def __init__(self, ids, dz, shape):
        batch = tf.shape(dz)[0]
        self.dz = tf.reshape(dz, [batch, -1, shape[-1]])
        self.ids = tf.reshape(ids, [batch, -1])
        self.shape = list(shape)

    def squared_norms(self):
        n, positions = tf.unstack(tf.shape(self.ids))
        order = tf.argsort(self.ids, axis=1)
        ids = tf.gather(self.ids, order, axis=1, batch_dims=1)
        dz = tf.gather(self.dz, order, axis=1, batch_dims=1)
        # A segment is a run of equal ids in one sample.
        starts = tf.concat(
            [
                tf.ones([n, 1], tf.int32),
                tf.cast(ids[:, 1:] != ids[:, :-1], tf.int32),
            ],
            1,
        )
        segments = tf.cumsum(tf.reshape(starts, [-1])) - 1
        count = n * positions
        runs = tf.math.unsorted_segment_sum(
            tf.reshape(dz, [-1, self.shape[-1]]), segments, count
        )
        squares = tf.gather(sum_of_squares(runs), segments)
        squares *= tf.cast(tf.reshape(starts, [-1]), squares.dtype)
        return tf.reduce_sum(tf.reshape(squares, [n, positions]), 1)

    def weighted_sum(self, weights):
        dz = self.dz if weights is None else self.dz * expand(weights, self.dz)
        return tf.IndexedSlices(
            tf.reshape(dz, [-1, self.shape[-1]]),
            tf.reshape(self.ids, [-1]),
            tf.constant(self.shape),
        )

    def materialize(self):
        n = tf.shape(self.ids)[0]
        rows = tf.range(n)[:, None] * self.shape[0]
        ids = tf.reshape(tf.cast(self.ids, tf.int32) + rows, [-1])
        values = tf.reshape(self.dz, [-1, self.shape[-1]])
        table = tf.math.unsorted_segment_sum(values, ids, n * self.shape[0])
        return tf.reshape(table, [n, *self.shape])
