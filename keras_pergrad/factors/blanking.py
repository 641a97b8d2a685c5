"""Samples that are not finite are blanked in what factors hold."""

import tensorflow as tf

from keras_pergrad.factors.base import map_factors

#: Numbers of a sample that are blanked without asking whether any must be.
_SMALL_SIZE = 4000


def select(factors, keep):
    """Return factors that are blank for the samples that are not kept.

    A weight of zero is not enough: zero times NaN is NaN. Large tensors are
    not touched if every sample is kept.

    Args:
        factors: `SampleGradients`; None stays None.
        keep: (n,) booleans.
    """
    tensors = {}
    map_factors(factors, lambda t: tensors.setdefault(id(t), t))
    tensors = [t for t in tensors.values() if t.dtype.is_floating]
    small = [t for t in tensors if _is_small(t)]
    large = [t for t in tensors if not _is_small(t)]
    blanked = blank(keep, small)
    if large:
        # A called function would spare ops, but would hide where they run, and
        # each could not run on the device that has its kernel.
        blanked += tf.cond(
            tf.reduce_all(keep), lambda: large, lambda: blank(keep, large)
        )
    by_id = {}
    for tensor, chosen in zip(small + large, blanked):
        chosen.set_shape(tensor.shape)
        by_id[id(tensor)] = chosen
    return map_factors(factors, lambda t: by_id.get(id(t), t))


def _is_small(tensor):
    """Whether blanking costs less than the ops of a condition."""
    size = tensor.shape[1:].num_elements()
    return size is not None and size <= _SMALL_SIZE


def blank(keep, tensors):
    """Return tensors with zeros for samples that are not kept."""
    masks, zeros = {}, {}
    for t in tensors:
        rank, dtype = t.shape.rank, t.dtype
        if rank not in masks:
            masks[rank] = tf.reshape(keep, [-1] + [1] * (rank - 1))
        if dtype not in zeros:
            zeros[dtype] = tf.zeros([], dtype)
    return [tf.where(masks[t.shape.rank], t, zeros[t.dtype]) for t in tensors]
