"""Numbers that follow the number of samples in the same way for each.

A step that takes any number of samples is typed with one of them. What is
found of a size or place holds for all others only if the ops that made it do
the same for every number: sums, products and parts of sizes do. A number that
wraps, is clipped, rounded or compared is known for this one alone.
"""

import dataclasses
from typing import Any

import numpy as np

from keras_pergrad.proof.elementwise_rules import elementwise, unary
from keras_pergrad.proof.intervals import limits
from keras_pergrad.proof.op_facts import (
    FACTS,
    ON_LISTS,
    READS_LISTS,
    REGULAR,
    SHAPED_BY_INPUTS,
    TAKES_PARTS,
    TAKES_SIZES,
    has,
)
from keras_pergrad.proof.static_numbers import count_sample_axes
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    RULES,
    At,
    Total,
    Untyped,
)

_ELEMENTWISE_RULES = unary, elementwise
#: Products must not overflow with so many times as many samples.
_HEADROOM = 16
_IRREGULAR_SIZE = (
    "takes a size that follows the number of samples in a way that is known "
    "for one number alone: it wraps, is clipped, rounded or compared"
)


@dataclasses.dataclass
class EveryNumber:
    """Tells which tensors without samples are known for one number alone.

    Attributes:
        is_needed: whether there are any. Only then does it matter which ops
            take them.
    """

    n: int
    numbers: Any
    values: Any
    lengths_of: Any
    is_needed: bool = False

    def note_sizes(self, op):
        """Note that sizes of an irregular shape are irregular, too."""
        if self.is_needed and self._has_irregular_shape(op.inputs):
            self._mark_irregular(op.outputs)

    def note(self, op, types, flags):
        """Note what an op without samples gives; `flags`: of all its inputs."""
        follows_number = flags & BY_SIZE
        is_irregular = follows_number and not self._is_regular(op, types)
        if not is_irregular and not self.is_needed:
            return
        has_irregular_shape = self._has_irregular_shape(op.inputs)
        if (
            is_irregular
            or has_irregular_shape
            or self._any_irregular(op.inputs)
        ):
            self._mark_irregular(op.outputs)
        if has_irregular_shape or self._takes_irregular_size(op):
            self.is_needed = True
            for tensor in op.outputs:
                if tensor.shape.rank != 0:
                    self.values[tensor].has_irregular_shape = True

    def check(self, op):
        """Refuse an op on samples that takes an irregular size or shape."""
        # A place in a list, or a hint at its shape, moves no entries.
        is_of_lists = has(op, ON_LISTS | READS_LISTS)
        takes_size = not is_of_lists and self._takes_irregular_size(op)
        if takes_size or self._has_irregular_shape(op.inputs):
            raise Untyped(_IRREGULAR_SIZE)

    def _mark_irregular(self, tensors):
        for tensor in tensors:
            if tensor.dtype.is_integer or tensor.dtype.is_bool:
                self.is_needed = True
                self.values[tensor].is_irregular = True
                self.numbers.forget([tensor])

    def _any_irregular(self, tensors):
        return any(self.values[t].is_irregular for t in tensors)

    def _has_irregular_shape(self, tensors):
        return any(self.values[t].has_irregular_shape for t in tensors)

    def _takes_irregular_size(self, op):
        """Whether the shapes of outputs may follow an irregular number."""
        size_inputs = list(op.inputs)
        is_elementwise = RULES.get(op.type) in _ELEMENTWISE_RULES
        if is_elementwise or has(op, TAKES_SIZES | SHAPED_BY_INPUTS):
            places = FACTS[op.type].size_inputs
            size_inputs = [
                size_inputs[k] for k in places if k < len(size_inputs)
            ]
        return self._any_irregular(size_inputs)

    def _is_regular(self, op, types):
        if has(op, REGULAR):
            return True
        if has(op, TAKES_PARTS):
            # These must follow the number themselves.
            return types[0].flags & BY_SIZE and not self._is_clipped(op)
        if op.type == "Cast":
            source_dtype, target_dtype = op.inputs[0].dtype, op.outputs[0].dtype
            return is_wide(target_dtype) and (
                source_dtype.is_integer or source_dtype.is_bool
            )
        numbers = [self.numbers.of(t) for t in op.inputs]
        if op.type not in _CONDITIONS or any(v is None for v in numbers):
            return False
        numbers = [v.astype(np.int64) for v in numbers]
        if op.type == "Mul":
            largest = limits(op.outputs[0].dtype)[1]
            first, second = numbers
            return _has_headroom(first, second, self.n, largest=largest)
        holds = _CONDITIONS[op.type]
        is_quotient = holds is _is_regular_quotient
        if is_quotient and not self._divides(op, *numbers):
            return False
        return holds(*numbers, self.n)

    def _divides(self, op, x, y):
        """Whether sizes that follow the number are multiples at any length."""
        lengths = self.lengths_of(op)
        if lengths.is_distinct or _is_long(x, self.n):
            return True
        pairs = zip(*map(np.ravel, np.broadcast_arrays(x, y)))
        return all(
            lengths.divides([int(a)], [int(b)])
            for a, b in pairs
            if a and a % self.n == 0
        )

    def _is_clipped(self, op):
        """Whether a slice ends by a given number behind as many samples."""
        if op.type != "StridedSlice" or op.inputs[0].shape.rank != 1:
            return False
        length, output_shape = op.inputs[0].shape[0], op.outputs[0].shape
        ends = self.numbers.of(op.inputs[2])
        if (
            ends is None
            or op.attribute("end_mask") & 1
            or output_shape.rank != 1
        ):
            return False
        return length is None or (length % self.n == 0 and ends[0] > length)


def has_other_axis(tensor, tensor_type, n):
    """Whether an axis other than the samples' is as long as the batch.

    What is added up there depends on the number of samples.
    """
    if not isinstance(tensor_type, (At, Total)):
        return False
    own_axes = isinstance(tensor_type, At)
    if own_axes and not (tensor_type.rows % n and tensor_type.lead % n):
        return True
    return count_sample_axes(tensor, n) > own_axes


def with_other_axes(op, types, n):
    """Return the types of outputs, `BY_SIZE` where one has such an axis."""
    return [
        t.flagged(BY_SIZE) if has_other_axis(tensor, t, n) else t
        for tensor, t in zip(op.outputs, types)
    ]


def is_wide(dtype):
    """Whether a data type holds as many samples as memory does."""
    return dtype.is_integer and dtype.size >= 4


def _is_regular_maximum(x, y, n):
    """Whether a maximum is one of both, however many samples there are."""
    del n
    least = np.minimum(x, y)
    return ((x == y) | (least == 0) | (least == 1)).all()


def _counts_several(x, y, n):
    """Whether a comparison distinguishes several samples from one or none.

    The answer is the same for all numbers but one, and a single sample cannot
    mix with others.
    """
    is_size = (x % n == 0) & (x > 0) & ((y == 0) | (y == 1))
    return is_size.all()


def _are_equal(x, axes, n):
    """Whether all numbers of which one is taken are equal."""
    del axes, n
    return (x == x.ravel()[:1]).all()


def _is_regular_quotient(x, y, n):
    """Whether a quotient, rounded down, is the same function of the number.

    Of a size it is if nothing is left. Of places in a long axis it is if the
    divisor is reached, so that it shows what lies behind.
    """
    if (y <= 0).any() or (x < 0).any():
        return False
    if _is_long(x, n):
        return y.ndim == 0 and (y % n == 0 or y <= x.max())
    is_size = x.ndim > 0 or x % n == 0
    return is_size and (x % y == 0).all()


def _is_regular_remainder(x, y, n):
    """Tell the same of what is left."""
    if (y <= 0).any() or (x < 0).any() or y.ndim:
        return False
    return y % n == 0 or (_is_long(x, n) and y <= x.max())


def _has_headroom(x, y, n, *, largest):
    """Whether products leave room for more samples."""
    product = x.astype(float) * y
    return (
        not _is_long(product, n) or np.abs(product).max() * _HEADROOM < largest
    )


def _is_long(x, n):
    return any(size and size % n == 0 for size in x.shape)


_CONDITIONS = {
    "Equal": _counts_several,
    "Greater": _counts_several,
    "NotEqual": _counts_several,
    "Max": _are_equal,
    "Maximum": _is_regular_maximum,
    "Min": _are_equal,
    "Mul": None,
    "FloorDiv": _is_regular_quotient,
    "TruncateDiv": _is_regular_quotient,
    "FloorMod": _is_regular_remainder,
    "Mod": _is_regular_remainder,
    "TruncateMod": _is_regular_remainder,
}
