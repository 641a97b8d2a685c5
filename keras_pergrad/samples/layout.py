"""The layout of a batch's samples in a tensor."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Layout:
    """The axis on which a tensor has its samples.

    Attributes:
        axis: the axis.
        merged: None: the axis has one entry per sample. "samples first": all
            positions of the first sample come first. "positions first": the
            first position of each sample comes first.
        count: how many positions there are for each sample; None if this
            differs from batch to batch.
    """

    axis: int
    merged: str | None = None
    count: int | None = 1

    def first(self, tensor, n):
        """Return the tensor with an axis for the samples first.

        Positions that were merged with the samples get their own axis, in
        the place of the former axis of the samples.

        Args:
            tensor: of this layout.
            n: the number of samples, a scalar tensor.

        Returns:
            (n, *the other axes in their order).
        """
        axis = self.axis
        if self.merged is None:
            return moved(tensor, axis, 0)
        static, count = tensor.shape.as_list(), self.count
        others = [k for k in range(len(static)) if k != axis]
        shape = sizes_of(tensor, others)
        if count is None:
            (size,) = sizes_of(tensor, [axis])
            count = tf.math.floordiv(size, tf.maximum(n, 1))
        pair = [n, count]
        if self.merged == "positions first":
            pair.reverse()
        split = tf.reshape(tensor, [*shape[:axis], *pair, *shape[axis:]])
        pair = [None, self.count]
        if self.merged == "positions first":
            pair.reverse()
        split.set_shape([*static[:axis], *pair, *static[axis + 1 :]])
        return moved(split, axis + (self.merged == "positions first"), 0)

    @property
    def added(self):
        """The number of axes that `first` adds."""
        return 0 if self.merged is None else 1

    def spread(self, numbers, tensor, n):
        """Return a number for each sample, shaped to multiply a tensor.

        Args:
            numbers: (n,).
            tensor: of this layout.
            n: the number of samples.
        """
        if self.merged is not None:
            size = tf.shape(tensor)[self.axis]
            count = tf.math.floordiv(size, tf.maximum(n, 1))
            if self.merged == "samples first":
                numbers = tf.repeat(numbers, count)
            else:
                numbers = tf.tile(numbers, [count])
        shape = [1] * tensor.shape.rank
        shape[self.axis] = -1
        return tf.cast(tf.reshape(numbers, shape), tensor.dtype)


def sizes_of(tensor, axes=None):
    """Get the sizes of a tensor's axes: numbers where known, else scalars.

    Args:
        tensor: the tensor.
        axes: the places of the axes; default: all.
    """
    known = tensor.shape.as_list()
    axes = range(len(known)) if axes is None else axes
    dynamic = any(known[k] is None for k in axes)
    sizes = tf.shape(tensor) if dynamic else known
    return [sizes[k] if known[k] is None else known[k] for k in axes]


def moved(tensor, source, target):
    """Return the tensor with one axis moved to another place."""
    if source == target:
        return tensor
    axes = list(range(tensor.shape.rank))
    axes.insert(target, axes.pop(source))
    return tf.transpose(tensor, axes)
