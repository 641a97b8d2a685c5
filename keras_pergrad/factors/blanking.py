"""Samples that are not finite are blanked in what factors hold."""

import tensorflow as tf

#: Numbers of a sample that are blanked without asking whether any must be.
_SMALL = 4000


def select(factors, keep):
    """Call `select` for many factors at once, with a single condition."""
    held = [
        (part, name)
        for factor in factors
        for part in factor.holders()
        for name in _read(part)
    ]
    held = [
        (place, tensor)
        for place in held
        if (tensor := getattr(*place)) is not None and tensor.dtype.is_floating
    ]
    small = [entry for entry in held if _is_small(entry[1])]
    large = [entry for entry in held if not _is_small(entry[1])]
    _set(small, blank(keep, [tensor for _, tensor in small]))
    if large:
        tensors = [tensor for _, tensor in large]
        # A called function would spare ops, but nobody could see where its ops
        # run, nor would each run where it has a kernel.
        selected = tf.cond(
            tf.reduce_all(keep), lambda: tensors, lambda: blank(keep, tensors)
        )
        _set(large, selected)
    for place, _ in held:
        if place[1] == "_gradients":
            place[0]._kept = keep


def _is_small(tensor):
    """Whether blanking costs less than the ops of a condition."""
    size = tensor.shape[1:].num_elements()
    return size is not None and size <= _SMALL


def _set(held, selected):
    for (place, tensor), chosen in zip(held, selected):
        chosen.set_shape(tensor.shape)
        setattr(place[0], place[1], chosen)


def _read(part):
    """Return the names of the tensors that the weighted sum reads."""
    held = "_gradients" in part.rows and part._gradients is not None
    return ("_gradients",) if held else part.rows


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
