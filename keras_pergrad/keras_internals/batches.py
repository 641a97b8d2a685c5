"""Batches as steps need them: tensors of one length, never without a sample."""

import numpy as np
import tensorflow as tf


def as_tensors(batch):
    """Return a batch with tensors for arrays, which an eager step is given."""
    return tf.nest.map_structure(
        lambda t: tf.convert_to_tensor(t) if isinstance(t, np.ndarray) else t,
        batch,
    )


def first_tensor(x):
    """Return the tensor whose first axis counts the samples."""
    return next(t for t in tf.nest.flatten(x) if t is not None)


def check_lengths(x, y, sample_weight):
    """Refuses a batch whose parts differ in length, where that is known."""
    lengths = {}
    for name, part in (("x", x), ("y", y), ("sample_weight", sample_weight)):
        for tensor in tf.nest.flatten(part):
            if tensor is not None and tensor.shape.rank:
                lengths.setdefault(name, tensor.shape[0])
    known = {k: n for k, n in lengths.items() if n is not None}
    if len(set(known.values())) > 1:
        raise ValueError(
            "x, y and sample_weight must have as many entries on their first "
            "axis. Received: "
            + ", ".join(f"{k} with {n}" for k, n in known.items())
        )


class Filled:
    """A batch that may have no sample, with one of zeros in that case.

    TensorFlow's convolutions fail on no sample, or give garbage.

    Args:
        batch: a nested structure of tensors and None.

    Attributes:
        batch: it with at least one sample.
        n: how many samples it had.
        present: whether it had one.
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
        """Return the weights of samples, (rows, ...), or zeros without any."""
        return tf.where(self.present, weights, tf.zeros_like(weights))

    def outputs(self, y_pred):
        """Return the model's outputs without those for a sample of zeros."""

        def cut(tensor):
            found = tensor[: self.n]
            mask = getattr(tensor, "_keras_mask", None)
            if mask is not None:
                found._keras_mask = mask[: self.n]
            return found

        return tf.nest.map_structure(cut, y_pred)


def is_composite(tensor):
    """Whether it is sparse or ragged."""
    return isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor))
