"""Ranges of the numbers that a tensor can have, whatever the batch.

Interval arithmetic (Moore, Interval Analysis, 1966) over the ops that made the
tensor. An entry that is no number leaves its range; a look-up refuses it.
"""

import math

import numpy as np
import tensorflow as tf

from keras_pergrad.samples.op_facts import op_types
from keras_pergrad.samples.types.tensor_types import BY_SIZE, Free

#: Each entry of the output is one of the first input.
_SAME = op_types(
    "Identity StopGradient PreventGradient Reshape ExpandDims Squeeze Tile "
    "BroadcastTo Transpose StridedSlice Slice GatherV2 GatherNd ReverseV2 "
    "EnsureShape"
)
#: Each entry is made of one of an input.
_EACH = {
    "Cast": math.trunc,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Rint": round,
    "Round": round,
}
_CHOICES = {
    "Pack": slice(None),
    "ConcatV2": slice(-1),
    "Select": slice(1, None),
    "SelectV2": slice(1, None),
}


def number_range(op, tensor):
    """Return the least and the largest number that a tensor can have.

    Args:
        op: the `TypedOp` that knows numbers that shapes determine.
        tensor: a tensor of numbers or of truth values.
    """
    return _Ranges(op).of(tensor)


class _Ranges:
    """The ranges of the tensors from which one is made."""

    #: So many ops are looked through, one after the other.
    DEPTH = 40

    def __init__(self, op):
        self._op = op
        self._known, self._depth = {}, 0

    def of(self, tensor):
        """Return the range of a tensor."""
        if id(tensor) not in self._known:
            self._known[id(tensor)] = self._found(tensor)
        return self._known[id(tensor)]

    def _found(self, tensor):
        if self._op.type_of(tensor) == Free(BY_SIZE):
            # It is known for one number of samples alone.
            return limits(tensor.dtype)
        number = self._op.of_tensor(tensor)
        if self._op.lengths.primes and tensor.op.type != "Const":
            # What follows a length is known for one length alone.
            number = None
        if number is None and tensor.op.type == "Const":
            number = tf.get_static_value(tensor)
        found = None
        if number is not None:
            found = _of_numbers(np.asarray(number))
        elif self._depth < self.DEPTH:
            self._depth += 1
            found = _as_held(self._made(tensor), tensor.dtype)
            self._depth -= 1
        least, most = limits(tensor.dtype)
        if found is not None and least <= found[0] <= found[1] <= most:
            return tuple(found)
        # Beyond what the data type holds, whole numbers begin anew.
        return least, most

    def _made(self, tensor):
        """Return the range by what made a tensor, or None."""
        made = tensor.op
        kind, inputs = made.type, list(made.inputs)
        if kind in ("ArgMax", "ArgMin"):
            return self._of_places(inputs[0], tf.get_static_value(inputs[1]))
        if kind == "TopKV2" and tensor.value_index:
            return self._of_places(inputs[0], -1)
        if kind in _SAME or kind == "TopKV2":
            return self.of(inputs[0])
        if kind in _CHOICES:
            ranges = [self.of(t) for t in inputs[_CHOICES[kind]]]
            return min(r[0] for r in ranges), max(r[1] for r in ranges)
        if kind in _EACH:
            bounds = self.of(inputs[0])
            if kind == "Cast" and not tensor.dtype.is_integer:
                return bounds
            return [b if math.isinf(b) else _EACH[kind](b) for b in bounds]
        if kind == "Sum":
            if any(map(self._op.lengths.has, inputs[0].shape)):
                return None
            return _of_sum(inputs[0], tensor, self.of(inputs[0]))
        if kind == "FloorMod":
            return _of_remainder(tensor.dtype, *map(self.of, inputs))
        if kind in _ARITHMETIC:
            return _ARITHMETIC[kind](*map(self.of, inputs))
        return None

    def _of_places(self, tensor, axis):
        """Return the range of places along an axis."""
        if axis is None or tensor.shape.rank is None:
            return None
        length = tensor.shape[int(axis)]
        if not length or self._op.lengths.has(length):
            return None
        return 0, length - 1


def limits(dtype):
    """Return the least and the largest number of a data type."""
    if dtype.is_bool:
        return 0, 1
    return (dtype.min, dtype.max) if dtype.is_integer else (-math.inf, math.inf)


def _as_held(bounds, dtype):
    """Return bounds of what is left of numbers in a data type of floats.

    Rounding keeps the order: no rounded number passes the type's own number
    that is next to a bound, on its far side.
    """
    if bounds is None or not dtype.is_floating:
        return bounds
    return _rounded(bounds[0], dtype, -math.inf), _rounded(
        bounds[1], dtype, math.inf
    )


def _rounded(bound, dtype, outward):
    held = dtype.as_numpy_dtype
    with np.errstate(over="ignore"):
        near = held(float(bound))
    beyond = float(near) >= bound if outward > 0 else float(near) <= bound
    return float(near if beyond else np.nextafter(near, held(outward)))


def _of_numbers(number):
    if not number.size or number.dtype.kind not in "iufb":
        return None
    low, high = number.min().item(), number.max().item()
    return low, high


def _of_sum(tensor, total, bounds):
    """Return the range of sums of as many entries as are added up."""
    before, after = tensor.shape.num_elements(), total.shape.num_elements()
    if not before or not after:
        return None
    terms = before // after
    if total.dtype.is_integer:
        return [terms * bound for bound in bounds]
    return _added(bounds[0], terms, total.dtype, -1), _added(
        bounds[1], terms, total.dtype, 1
    )


def _added(bound, terms, dtype, outward):
    """Return what a number added up may come to, in whatever order.

    Of whole numbers that the type holds, each partial sum is exact. Else each
    addition loses a part of the sum (Higham, Accuracy and Stability of
    Numerical Algorithms, 2002, section 4.2).
    """
    total, held = terms * bound, dtype.as_numpy_dtype
    part = float(np.nextafter(held(1), held(2))) - 1
    if float(bound).is_integer() and abs(total) * part <= 2:
        return total
    if terms * part > 1:
        return outward * math.inf
    return total + outward * 2 * terms * part * abs(total)


def _of_remainder(dtype, x, divisor):
    """Return the range of remainders: below the divisor, if that is positive.

    A rounded remainder of a negative number may be the divisor itself.
    """
    least, most = divisor
    if least <= 0:
        return None
    if dtype.is_integer:
        return 0, most - 1
    held = dtype.as_numpy_dtype
    below = float(np.nextafter(held(most), held(0)))
    return 0, below if x[0] >= 0 else most


def _product(x, y):
    corners = [a * b for a in x for b in y]
    return min(corners), max(corners)


def _absolute(x):
    low = 0 if x[0] <= 0 <= x[1] else min(map(abs, x))
    return low, max(map(abs, x))


_ARITHMETIC = {
    "Add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "AddV2": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "Sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "Mul": _product,
    "Minimum": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "Maximum": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "Neg": lambda x: (-x[1], -x[0]),
    "Abs": _absolute,
}
