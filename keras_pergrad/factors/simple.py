"""Factors that are sums, small, of columns, or other factors changed."""

import abc
import copy
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients
from keras_pergrad.factors.full import Full
from keras_pergrad.factors.shared_tensors import integers
from keras_pergrad.factors.written_out import HALF, wide


class Sum(Full):
    """A bias: the sum of dz over all positions.

    Args:
        dz: (n, ..., *shape); the axes between are positions.
        shape: the variable's shape; default: the last axis of `dz`.
        rank: how many of the last axes of `dz` are no positions, where these
            are not the axes of `shape`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> factors.Sum(tf.ones((2, 5, 3))).materialize().numpy()[0]
    array([5., 5., 5.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("dz",)

    def __init__(
        self,
        dz: tf.Tensor,
        shape: Sequence[int] | None = None,
        rank: int | None = None,
    ):
        self.dz: tf.Tensor = dz
        self.shape: list[int] = [dz.shape[-1]] if shape is None else list(shape)
        self.rank: int | None = rank

    def held(self, pairs: bool = False) -> SampleGradients:
        """Return the sums, written out."""
        return Full(self.gradients)

    @property
    def gradients(self) -> tf.Tensor:
        """(n, *shape)."""
        rank = len(self.shape) if self.rank is None else self.rank
        total, positions = self.dz, range(1, self.dz.shape.rank - rank)
        if positions:
            total = tf.reduce_sum(total, integers(*positions))
        if self.rank is None or total.shape[1:].as_list() == self.shape:
            return total
        return tf.reshape(total, integers(-1, *self.shape))


class Product(Sum):
    """A scale: the sum of x·dz over all positions.

    Args:
        x: (n, ..., *shape).
        dz: the same shape.
        shape: the variable's shape; default: the last axis.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> scale = factors.Product(2 * tf.ones((2, 5, 3)), tf.ones((2, 5, 3)))
    >>> scale.weighted_sum(None).numpy()
    array([20., 20., 20.], dtype=float32)
    """

    def __init__(
        self, x: tf.Tensor, dz: tf.Tensor, shape: Sequence[int] | None = None
    ):
        super().__init__(x * dz, shape)


# Small per-sample gradients of many variables, side by side.


#: A sample's gradient with more entries is not copied to save ops.
_SMALL_SIZE = 2**12


class SmallFactors(Full):
    """Contributions of several variables as one vector for each sample.

    A model has a bias or a scale for each kernel. One norm and one sum for all
    of them take a tenth of the ops.
    """

    def __init__(self, factors):
        self._shapes = [f.gradients.shape[1:] for f in factors]
        super().__init__(tf.concat([_flat(f.gradients) for f in factors], 1))

    def split(self, vector):
        """Return a vector of all factors as one tensor a variable."""
        sizes = [shape.num_elements() for shape in self._shapes]
        return [
            part if shape.rank == 1 else tf.reshape(part, shape)
            for part, shape in zip(tf.split(vector, sizes), self._shapes)
        ]


def together(factors):
    """Put small factors side by side; None stays None.

    Args:
        factors: one `SampleGradients` (or None) a variable, as `held` gives
            it: the small ones are `Full`.

    Returns:
        (factors, apart): fewer of them, and a function that takes one tensor
        for each of these, and returns one a variable.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> biases = [factors.Full(tf.ones((2, k))) for k in (3, 4)]
    >>> joined, apart = factors.together(biases)
    >>> len(joined), joined[0].squared_norms().numpy()
    (1, array([7., 7.], dtype=float32))
    >>> [t.shape[0] for t in apart([joined[0].weighted_sum(None)])]
    [3, 4]
    """
    groups = {}
    for k, factor in enumerate(factors):
        if _is_small(factor):
            groups.setdefault(factor.gradients.dtype, []).append(k)
    groups = [indices for indices in groups.values() if len(indices) > 1]
    if not groups:
        return factors, list
    joined = [SmallFactors([factors[k] for k in indices]) for indices in groups]
    joined_indices = {k for indices in groups for k in indices}
    others = [k for k in range(len(factors)) if k not in joined_indices]

    def apart(tensors):
        by_variable = dict(zip(others, tensors[len(joined) :]))
        for factor, indices, tensor in zip(joined, groups, tensors):
            by_variable.update(zip(indices, factor.split(tensor)))
        return [by_variable[k] for k in range(len(factors))]

    return [*joined, *(factors[k] for k in others)], apart


def _is_small(factor):
    if type(factor) is not Full:
        return False
    size = factor.gradients.shape[1:].num_elements()
    return size is not None and size <= _SMALL_SIZE


def _flat(tensor):
    if tensor.shape.rank == 2:
        return tensor
    return tf.reshape(tensor, integers(-1, tensor.shape[1:].num_elements()))


# Contributions whose columns come from different factors.


class Columns(SampleGradients):
    """Factors of a variable's columns, side by side on the last axis.

    Args:
        parts: the factors of each range of columns, in order.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> left, right = (factors.Full(tf.ones((2, 3, k))) for k in (1, 4))
    >>> factors.Columns([left, right]).materialize().shape.as_list()
    [2, 3, 5]
    """

    sampled = ("parts",)

    def __init__(self, parts):
        self.parts = parts

    def held(self, pairs=False):
        return Columns([part.held(pairs) for part in self.parts])

    def squared_norms(self):
        return tf.add_n([part.squared_norms() for part in self.parts])

    def weighted_sum(self, weights):
        return tf.concat([p.weighted_sum(weights) for p in self.parts], -1)

    def materialize(self):
        return tf.concat([part.materialize() for part in self.parts], -1)

    def dot(self, direction):
        direction = tf.convert_to_tensor(direction)
        columns = tf.split(direction, self.widths(), -1)
        return tf.add_n([p.dot(c) for p, c in zip(self.parts, columns)])

    def sum_of_squares(self):
        return tf.concat([part.sum_of_squares() for part in self.parts], -1)

    def gram(self, other=None):
        if other is None:
            return tf.add_n([part.gram() for part in self.parts])
        if not isinstance(other, Columns) or self.widths() != other.widths():
            return super().gram(other)
        pairs = zip(self.parts, other.parts)
        return tf.add_n([part.gram(other_part) for part, other_part in pairs])

    def widths(self):
        """Return how many columns each part has."""
        return [_width(part) for part in self.parts]

    def chosen_method(self):
        return self.parts[0].chosen_method()

    def norm_bytes(self, n):
        part_bytes = [part.norm_bytes(n) for part in self.parts]
        return None if None in part_bytes else sum(part_bytes)


def _width(part):
    """Return the number of columns of a factor."""
    shape = getattr(part, "shape", None)
    return (shape or part.weighted_sum(None).shape)[-1]


# Factors that change the sums and gradients of another one.


class Adapted(SampleGradients):
    """A factor whose sums and gradients are those of another, changed.

    Subclasses say what is changed, and give the norms.

    Args:
        factor: the other `SampleGradients`, which holds the tensors.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> class Doubled(factors.Adapted):
    ...     entrywise = True
    ...
    ...     def change(self, tensor):
    ...         return 2 * tensor
    ...
    ...     def squared_norms(self):
    ...         return 4 * self.factor.squared_norms()
    >>> Doubled(factors.Full(tf.ones((3, 2)))).squared_norms().numpy()
    array([8., 8., 8.], dtype=float32)
    """

    sampled: tuple[str, ...] = ("factor",)
    #: Whether `change` treats each entry by itself: of the sum of a table it
    #: is given only the rows that were looked up then.
    entrywise = False

    def __init__(self, factor):
        self.factor = factor

    @abc.abstractmethod
    def change(self, tensor) -> Any:
        """Return a sum or gradients of the other factor, changed.

        Count axes from the last: gradients have the samples in front.
        """

    def of(self, factor):
        """Return another factor, changed in the same way."""
        changed = copy.copy(self)
        changed.factor = factor
        return changed

    def held(self, pairs=False):
        return self.of(self.factor.held(pairs))

    def weighted_sum(self, weights):
        return self._changed(self.factor.weighted_sum(weights))

    def _changed(self, total):
        if not self.entrywise:
            total = tf.convert_to_tensor(total)
        return of_values(self.change, total)

    def dot(self, direction):
        if not self.entrywise:
            return super().dot(direction)
        # `change` multiplies each entry by a number. In an inner product the
        # direction's entries may be multiplied instead.
        return self.factor.dot(self._changed(direction))

    def sum_of_squares(self):
        if not self.entrywise:
            return super().sum_of_squares()
        return self._changed(self._changed(self.factor.sum_of_squares()))

    def materialize(self):
        return self.change(self.factor.materialize())

    def chosen_method(self):
        return self.factor.chosen_method()

    def sum_method(self):
        return self.factor.sum_method()

    def norm_bytes(self, n):
        return self.factor.norm_bytes(n)


def of_values(change, total):
    """Return a tensor, or the values of slices, changed."""
    if not isinstance(total, tf.IndexedSlices):
        return change(tf.convert_to_tensor(total))
    values = change(total.values)
    return tf.IndexedSlices(values, total.indices, total.dense_shape)


# Factors of half-precision variables, with norms in single precision.
#
# The square of a number above 256 overflows in float16, and below 2e-4 it is
# zero; bfloat16 keeps three digits, too few for a sum.


def widened(factor, dtype):
    """Return `factor` if `dtype` is wide enough for norms, else `Widened`.

    Args:
        factor: `SampleGradients`.
        dtype: the type of the variable.

    Returns:
        `factor`, or a `Widened`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> single = factors.Full(tf.ones((2, 1)))
    >>> factors.widened(single, tf.float32) is single
    True
    """
    return Widened(factor, dtype) if dtype in HALF else factor


class Widened(Adapted):
    """A factor in float32; gradients written out have the variable's type.

    What is squared, multiplied or added stays in float32.

    Args:
        factor: `SampleGradients` of half precision.
        dtype: the type of the variable.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> half = factors.Full(300 * tf.ones((2, 1), tf.float16))
    >>> wide = factors.Widened(half, tf.float16)
    >>> wide.squared_norms().numpy(), wide.materialize().dtype.name
    (array([90000., 90000.], dtype=float32), 'float16')
    """

    entrywise = True

    def __init__(self, factor, dtype):
        super().__init__(factor.map(wide))
        self.dtype = dtype

    def squared_norms(self):
        return self.factor.squared_norms()

    def squared_norm_of_sum(self):
        return self.factor.squared_norm_of_sum()

    def weighted_sum(self, weights):
        return self.factor.weighted_sum(weights)

    def dot(self, direction):
        return self.factor.dot(of_values(wide, direction))

    def sum_of_squares(self):
        return self.factor.sum_of_squares()

    def gram(self, other=None):
        is_widened = isinstance(other, Widened)
        return self.factor.gram(other.factor if is_widened else other)

    def change(self, tensor):
        return tf.cast(tensor, self.dtype)
