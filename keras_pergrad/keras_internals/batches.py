"""Batches as steps need them: tensors of one length, at least one sample."""

import numpy as np
import tensorflow as tf


def as_tensors(batch):
    """Return a batch with tensors in place of the arrays of eager steps."""
    return tf.nest.map_structure(
        lambda t: tf.convert_to_tensor(t) if isinstance(t, np.ndarray) else t,
        batch,
    )


def first_tensor(x):
    """Return the tensor whose first axis counts the samples."""
    return next(t for t in tf.nest.flatten(x) if t is not None)


def check_lengths(x, y, sample_weight):
    """Refuse a batch whose parts differ in length, if it is known."""
    parts = (("x", x), ("y", y), ("sample_weight", sample_weight))
    lengths = [
        (name, tensor.shape[0])
        for name, part in parts
        for tensor in tf.nest.flatten(part)
        if tensor is not None and tensor.shape.rank
    ]
    require_one_length([pair for pair in lengths if pair[1] is not None])


def require_one_length(lengths):
    """Refuse arrays of different lengths, given as pairs (name, length)."""
    if len({length for _, length in lengths}) > 1:
        raise ValueError(
            "x, y and sample_weight must have the same number of entries on "
            "their first axis. Received: "
            + ", ".join(f"{name} with {length}" for name, length in lengths)
        )


class Filled:
    """A batch that gets one sample of zeros if it has no sample.

    TensorFlow's convolutions fail without a sample, or give garbage.

    Args:
        batch: a nested structure of tensors and None.

    Attributes:
        batch: the batch with at least one sample.
        n: how many samples the batch had.
        present: whether it had any sample.
    """

    def __init__(self, batch):
        self.n = tf.shape(first_tensor(batch))[0]
        self.present = self.n > 0
        tensors = [t for t in tf.nest.flatten(batch) if t is not None]
        filled = tf.cond(
            self.present,
            lambda: [tf.identity(t) for t in tensors],
            lambda: [tf.zeros([1, *t.shape[1:]], t.dtype) for t in tensors],
        )
        for tensor, before in zip(filled, tensors):
            tensor.set_shape([None, *before.shape[1:]])
        filled = iter(filled)
        self.batch = tf.nest.map_structure(
            lambda t: None if t is None else next(filled), batch
        )

    def weights(self, weights):
        """Return the weights of samples, (rows, ...); zeros for no sample."""
        return tf.where(self.present, weights, tf.zeros_like(weights))

    def outputs(self, y_pred):
        """Return the model's outputs without the output for added zeros."""

        def cut(tensor):
            found = tensor[: self.n]
            mask = getattr(tensor, "_keras_mask", None)
            if mask is not None:
                found._keras_mask = mask[: self.n]
            return found

        return tf.nest.map_structure(cut, y_pred)


def is_composite(tensor):
    """Whether a tensor is sparse or ragged."""
    return isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor))
