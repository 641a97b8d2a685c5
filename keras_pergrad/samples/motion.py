"""The layout of tensors, from what moves when one sample is exchanged.

A model is run on a few samples, again with each of them exchanged in turn, and
on another number of samples. The samples are on the axis whose size follows
their number. The entries that moved show in which order samples and positions
are merged on it. If entries of other samples moved too, samples are mixed.
"""

import dataclasses

import numpy as np

from keras_pergrad.samples.layout import Layout

#: The number of samples, and the other number for a second run.
SAMPLES, OTHER_SAMPLES = 3, 5
#: How far others may move, relative to the exchanged sample.
ROUNDING = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-4,
    "complex64": 1e-4,
}


@dataclasses.dataclass(frozen=True)
class Motion:
    """What was seen of one tensor.

    Attributes:
        layout: where the samples are in it; None: nowhere.
        moved: whether anything moved.
        mixed: whether entries moved that belong to other samples than the
            exchanged one, or to no sample.
        ordered: whether the order of merged axes was seen; else it is not
            known.
    """

    layout: Layout | None = None
    moved: bool = False
    mixed: bool = False
    ordered: bool = True


def watch(before, exchanged, other, number=SAMPLES, fixed=True):
    """Find out where the samples are in a tensor.

    Args:
        before: the tensor, an array, for the batch.
        exchanged: pairs of the number of a sample and the tensor with that
            sample exchanged.
        other: the tensor for another number of samples; None: the model
            takes only one number.
        number: how many samples the batch has.
        fixed: whether every batch has the same sizes but for the samples.

    Returns:
        A `Motion`.
    """
    found = [
        _watch_one(before, after, k, other, number, fixed)
        for k, after in exchanged
    ]
    moved = [m for m in found if m.moved]
    if any(m.mixed for m in found):
        return Motion(moved=True, mixed=True)
    if not moved:
        return found[0]
    if len({(m.layout and m.layout.axis) for m in moved}) > 1:
        return Motion(moved=True, mixed=True)
    return next((m for m in moved if m.ordered), moved[0])


def _watch_one(before, after, sample, other, number, fixed):
    """Return the motion when one sample is exchanged."""
    if before.shape != after.shape:
        return Motion(moved=True, mixed=True)
    change = _change(before, after)
    if other is None:
        axes = [k for k, s in enumerate(before.shape) if s and not s % number]
    elif other.ndim != before.ndim:
        return Motion(moved=True, mixed=True)
    else:
        pairs = zip(before.shape, other.shape)
        axes = [k for k, (one, more) in enumerate(pairs) if one != more]
    moved = bool(change.any())
    if not axes or (other is None and not moved):
        return Motion(moved=moved, mixed=moved)
    dtype = before.dtype.name
    found = [_on_axis(change, k, sample, dtype, number, fixed) for k in axes]
    found = [m for m in found if m is not None]
    if len(axes) == 1 and found:
        return found[0]
    sound = [m for m in found if m.moved and not m.mixed]
    if len(sound) == 1:
        return sound[0]
    return Motion(moved=moved, mixed=True)


def _change(before, after):
    """Return how far each entry moved; a NaN that stays has not moved."""
    if before.dtype.kind not in "cfV" and before.dtype.name != "bfloat16":
        return (before != after).astype(np.float64)
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    before, after = before.astype(wide), after.astype(wide)
    same = (before == after) | (np.isnan(before) & np.isnan(after))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(before - after)
    most = np.finfo(np.float64).max
    distance = np.where(np.isfinite(distance), distance, most)
    return np.where(same, 0.0, distance)


def _on_axis(change, axis, sample, dtype, number, fixed):
    """Return the motion if the samples are on this axis, or None."""
    size = change.shape[axis]
    if size % number:
        return None
    count = size // number
    others = tuple(k for k in range(change.ndim) if k != axis)
    line = change.max(axis=others, initial=0.0) if others else change
    limit = ROUNDING.get(dtype, 0.02) * line.max(initial=0.0)
    line = np.where(line > limit, line, 0.0)
    known = count if fixed or count == 1 else None
    if not line.any():
        merged = None if count == 1 else "samples first"
        return Motion(Layout(axis, merged, known), ordered=count == 1)
    first = line.reshape(number, count).any(axis=1)
    last = line.reshape(count, number).any(axis=0)
    fits = [
        merged
        for merged, pattern in (
            ("samples first", first),
            ("positions first", last),
        )
        if np.flatnonzero(pattern).tolist() == [sample]
    ]
    if not fits:
        return Motion(Layout(axis), moved=True, mixed=True)
    merged = None if count == 1 else fits[0]
    ordered = count == 1 or len(fits) == 1
    return Motion(Layout(axis, merged, known), moved=True, ordered=ordered)
