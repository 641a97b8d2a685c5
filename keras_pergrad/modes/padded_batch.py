"""A batch that is never empty, and has one of a few sizes."""

import tensorflow as tf

from keras_pergrad.common.batches import (
    map_tensors,
    pack_like,
    sample_count,
    tensors_of,
)
from keras_pergrad.keras_internals.models.parts import mask_of, set_mask


class PaddedBatch:
    """A batch with samples of zeros after its own, so that it is not empty.

    TensorFlow's convolutions fail without a sample, or give garbage. With
    `sizes`, in ascending order, the batch gets the first of them that is large
    enough: XLA compiles each size anew.

    Attributes:
        batch: the batch with at least one sample.
        n: how many samples the batch had.
        present: for each sample whether it is one of these, (rows,).
    """

    def __init__(self, batch, sizes=()):
        self.n = sample_count(batch)
        tensors = tensors_of(batch)
        if sizes:
            large_enough = tf.boolean_mask(sizes, tf.constant(sizes) >= self.n)
            missing = tf.concat([large_enough, [self.n]], 0)[0] - self.n
            padded = [
                tf.concat([t, tf.zeros([missing, *t.shape[1:]], t.dtype)], 0)
                for t in tensors
            ]
        else:
            padded = tf.cond(
                self.n > 0,
                lambda: [tf.identity(t) for t in tensors],
                lambda: [tf.zeros([1, *t.shape[1:]], t.dtype) for t in tensors],
            )
        # `concat` and `cond` may lose the static sizes of the other axes.
        for tensor, original in zip(padded, tensors):
            tensor.set_shape([None, *original.shape[1:]])
        self.present = tf.range(sample_count(padded)) < self.n
        self.batch = pack_like(batch, padded)

    def weights(self, weights, sample_index=None):
        """Return the weights of samples, (rows, ...); zeros of added ones.

        `sample_index`: the number of the only sample that the weights are for.
        """
        present = self.present
        if sample_index is not None:
            present = present[sample_index : sample_index + 1]
        present = tf.reshape(present, [-1] + [1] * (weights.shape.rank - 1))
        return tf.where(present, weights, tf.zeros_like(weights))

    def cut(self, outputs):
        """Return what has a row for each sample, without those added."""

        def cut(tensor):
            rows = tensor[: self.n]
            mask = mask_of(tensor)
            if mask is not None:
                set_mask(rows, mask[: self.n])
            return rows

        return map_tensors(cut, outputs)
