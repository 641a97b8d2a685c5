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


def axes_of_samples(shape, other, number):
    """List the axes of a tensor that may hold the samples.

    Args:
        shape: its shape for a batch.
        other: its shape for another number of samples; None: not known, as
            the model takes only one number.
        number: how many samples the batch has.

    Returns:
        A list; None if the tensor has another rank there.
    """
    if other is None:
        return [k for k, s in enumerate(shape) if s and not s % number]
    if len(other) != len(shape):
        return None
    return [k for k, s in enumerate(shape) if s != other[k]]


@dataclasses.dataclass(frozen=True)
class Change:
    """How a tensor changed when one sample was exchanged.

    Attributes:
        sample: the number of the sample.
        moved: whether anything moved.
        lines: axis to the largest change at each place on it, for each axis
            that may hold the samples; None: the tensor got another shape.
    """

    sample: int
    moved: bool = True
    lines: dict | None = None

    @classmethod
    def of(cls, sample, before, after, axes):
        """Compare a tensor, an array, before and after.

        Args:
            sample: the number of the exchanged sample.
            before, after: the arrays.
            axes: as from `axes_of_samples`.
        """
        if axes is None or before.shape != after.shape:
            return cls(sample)
        change = _distances(before, after)
        limit = ROUNDING.get(before.dtype.name, 0.02)
        lines = {}
        for axis in axes:
            others = tuple(k for k in range(change.ndim) if k != axis)
            line = change.max(axis=others, initial=0) if others else change
            limited = limit * line.max(initial=0)
            lines[axis] = np.where(line > limited, line, 0)
        return cls(sample, bool(change.any()), lines)


def watch(changes, any_number=True, number=SAMPLES, fixed=True):
    """Find out where the samples are in a tensor.

    Args:
        changes: a `Change` for each exchanged sample.
        any_number: whether the model takes another number of samples, too.
        number: how many samples the batch has.
        fixed: whether every batch has the same sizes but for the samples.

    Returns:
        A `Motion`.
    """
    found = [_watch_one(c, any_number, number, fixed) for c in changes]
    moved = [m for m in found if m.moved]
    if any(m.mixed for m in found):
        return Motion(moved=True, mixed=True)
    if not moved:
        return found[0]
    if len({(m.layout and m.layout.axis) for m in moved}) > 1:
        return Motion(moved=True, mixed=True)
    return next((m for m in moved if m.ordered), moved[0])


def _watch_one(change, any_number, number, fixed):
    """Return the motion when one sample is exchanged."""
    moved, lines = change.moved, change.lines
    if lines is None:
        return Motion(moved=True, mixed=True)
    if not lines or (not any_number and not moved):
        return Motion(moved=moved, mixed=moved)
    found = [
        _on_axis(line, axis, change.sample, number, fixed)
        for axis, line in lines.items()
    ]
    found = [m for m in found if m is not None]
    if len(lines) == 1 and found:
        return found[0]
    sound = [m for m in found if m.moved and not m.mixed]
    if len(sound) == 1:
        return sound[0]
    return Motion(moved=moved, mixed=True)


def _distances(before, after):
    """Return how far each entry moved; a NaN that stays has not moved."""
    kind = before.dtype.kind
    # NumPy does not know bfloat16 and float8: their kind is V or f.
    small = kind in "fV" and before.dtype.itemsize < 4
    if kind not in "fc" and not small:
        return (before != after).astype(np.float32)
    if small:
        before, after = before.astype(np.float32), after.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.asarray(np.abs(before - after))
    # The largest of numbers is NaN if one of them is.
    if not np.isfinite(found.max(initial=0)):
        odd = ~np.isfinite(found)
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        found[odd] = np.finfo(found.dtype).max
        found[same] = 0
    return found


def _on_axis(line, axis, sample, number, fixed):
    """Return the motion if the samples are on this axis, or None."""
    if len(line) % number:
        return None
    count = len(line) // number
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
