"""The layout of a batch's samples in a tensor."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.shared import integers


@dataclasses.dataclass(frozen=True)
class Layout:
    """The axis on which a tensor has its samples.

    Attributes:
        axis: the axis. It may be merged with positions: it has `lead` blocks,
            each with all samples in order, each sample as `rows` entries.
        rows, lead: these numbers; None for the one that differs from batch
            to batch (the other is one then).
    """

    axis: int
    rows: int | None = 1
    lead: int | None = 1

    def first(self, tensor, n):
        """Return (n, *the other axes in their order).

        Positions that were merged with the samples get their own axes, in
        the place of the former axis of the samples.
        """
        axis = self.axis
        if not self.added:
            return moved(tensor, axis, 0)
        static = tensor.shape.as_list()
        others = [k for k in range(len(static)) if k != axis]
        shape = sizes_of(tensor, others)
        lead, _, rows = self._sizes(tensor, n)
        if all(isinstance(s, int) and s for s in (lead, rows, *shape)):
            # A constant shape: fewer ops.
            n = -1
        parts = [] if self.lead == 1 else [lead]
        parts += [n] if self.rows == 1 else [n, rows]
        known = [s if isinstance(s, int) and s >= 0 else None for s in parts]
        sizes = integers(*shape[:axis], *parts, *shape[axis:])
        split = tf.reshape(tensor, sizes)
        split.set_shape([*static[:axis], *known, *static[axis + 1 :]])
        return moved(split, axis + (self.lead != 1), 0)

    def _sizes(self, tensor, n):
        """Return the sizes of (blocks, samples, entries of each)."""
        rows, lead = self.rows, self.lead
        if rows is None or lead is None:
            (size,) = sizes_of(tensor, [self.axis])
            count = tf.math.floordiv(size, tf.maximum(n, 1))
            rows, lead = (count, lead) if rows is None else (rows, count)
        return lead, n, rows

    @property
    def added(self):
        """The number of axes that `first` adds."""
        return (self.rows != 1) + (self.lead != 1)

    @property
    def leads(self):
        """Whether the samples are on the first axis, not merged."""
        return self.axis == 0 and not self.added

    def spread(self, numbers, tensor, n):
        """Return numbers (n,) for the samples, shaped to multiply a tensor."""
        lead, _, rows = self._sizes(tensor, n)
        times: Any = [lead]
        if self.rows != 1:
            numbers = tf.repeat(numbers, rows)
        if self.lead != 1:
            numbers = tf.tile(numbers, times)
        shape = [1] * tensor.shape.rank
        shape[self.axis] = -1
        return tf.cast(tf.reshape(numbers, shape), tensor.dtype)

    def taken(self, tensor, places, n):
        """Return the tensor with the samples `places`, (n,), in its rows."""
        lead, _, rows = self._sizes(tensor, n)
        if self.lead != 1:
            places = tf.range(lead)[:, None] * n + places
        if self.rows != 1:
            places = places[..., None] * rows + tf.range(rows)
        places = tf.reshape(places, [-1])
        return tf.gather(tensor, places, axis=self.axis)


def sizes_of(tensor, axes=None):
    """Get the sizes of a tensor's axes: numbers where known, else scalars."""
    known = tensor.shape.as_list()
    axes = range(len(known)) if axes is None else axes
    dynamic = any(known[k] is None for k in axes)
    # One op gives them all.
    sizes = tf.unstack(tf.shape(tensor)) if dynamic else known
    return [sizes[k] if known[k] is None else known[k] for k in axes]


def moved(tensor, source, target):
    """Return the tensor with one axis moved to another place."""
    if source == target:
        return tensor
    axes = list(range(tensor.shape.rank))
    axes.insert(target, axes.pop(source))
    return tf.transpose(tensor, axes)
