"""The axis on which a tensor has the samples of a batch."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.written_out import integers, sizes_of


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
        if not self.added_axes:
            return move_axis(tensor, axis, 0)
        static_shape = tensor.shape.as_list()
        other_axes = [k for k in range(len(static_shape)) if k != axis]
        shape = sizes_of(tensor, other_axes)
        lead, _, rows = self._sizes(tensor, n)
        if all(isinstance(s, int) and s for s in (lead, rows, *shape)):
            # -1 makes the shape a constant, which spares ops.
            n = -1
        parts = [] if self.lead == 1 else [lead]
        parts += [n] if self.rows == 1 else [n, rows]
        static_parts = [
            s if isinstance(s, int) and s >= 0 else None for s in parts
        ]
        sizes = integers(*shape[:axis], *parts, *shape[axis:])
        split_tensor = tf.reshape(tensor, sizes)
        split_tensor.set_shape(
            [*static_shape[:axis], *static_parts, *static_shape[axis + 1 :]]
        )
        return move_axis(split_tensor, axis + (self.lead != 1), 0)

    def labels(self, term):
        """Return the labels of `first`, of those of a tensor's axes.

        A merged axis gives others.
        """
        sample = term[self.axis]
        return sample + term.replace(sample, "01"[: self.added_axes])

    def _sizes(self, tensor, n):
        """Return the sizes of (blocks, samples, entries of each)."""
        rows, lead = self.rows, self.lead
        if rows is None or lead is None:
            (size,) = sizes_of(tensor, [self.axis])
            count = tf.math.floordiv(size, tf.maximum(n, 1))
            rows, lead = (count, lead) if rows is None else (rows, count)
        return lead, n, rows

    @property
    def added_axes(self):
        """The number of axes that `first` adds."""
        return (self.rows != 1) + (self.lead != 1)

    @property
    def leads(self):
        """Whether the samples are on the first axis, not merged."""
        return self.axis == 0 and not self.added_axes

    def spread(self, numbers, tensor, n):
        """Return numbers (n,) for the samples, shaped to multiply a tensor."""
        lead, _, rows = self._sizes(tensor, n)
        multiples: Any = [lead]
        if self.rows != 1:
            numbers = tf.repeat(numbers, rows)
        if self.lead != 1:
            numbers = tf.tile(numbers, multiples)
        shape = [1] * tensor.shape.rank
        shape[self.axis] = -1
        return tf.cast(tf.reshape(numbers, shape), tensor.dtype)


def move_axis(tensor, source, target):
    """Return the tensor with one axis moved to another place."""
    if source == target:
        return tensor
    axes = list(range(tensor.shape.rank))
    axes.insert(target, axes.pop(source))
    return tf.transpose(tensor, axes)
