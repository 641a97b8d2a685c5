"""What is asked of a batch before anything is computed."""

import tensorflow as tf


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


def is_composite(tensor):
    """Whether it is sparse or ragged."""
    return isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor))
