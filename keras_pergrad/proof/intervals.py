"""The intervals of integers, and the places that are a sample's own."""

import functools
import itertools
import math
import operator

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.op_facts import op_types
from keras_pergrad.proof.tensor_types import BY_SIZE, Free

# Ranges of the numbers that a tensor can have, whatever the batch.
#
# Interval arithmetic (Moore, Interval Analysis, 1966) over the ops that made
# the tensor. An entry that is no number leaves its range; a look-up refuses
# it.


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

# Indices that follow the samples' values, and lead to their own entries.


def stays(op, ids, at, length, where):
    """Whether indices lead each sample to its own entries of an axis.

    Indices are places in a block plus the place where the block begins, as
    the gradient of a look-up with `batch_dims` has them.

    Args:
        ids: the tensor of indices.
        at: the `At` of what they are for.
        length: how many entries the axis has.
        where: the `At` of the axis.
    """
    if length is None or not ids.shape.is_fully_defined():
        return False
    shape = ids.shape.as_list()
    owners = np.arange(shape[at.axis]) // at.rows % op.n
    after = [1] * (len(shape) - at.axis - 1)
    owners = np.broadcast_to(owners.reshape([-1, *after]), shape).ravel()
    run = at.rows * int(np.prod(shape[at.axis + 1 :]))
    samples = np.arange(length) // where.rows % op.n
    return _lead_to(op, ids, owners, run, samples)


def _lead_to(op, ids, owners, run, samples):
    """Whether indices of samples lead to entries of the same ones.

    `owners` has the sample of each index, of which `run` are in a row, and
    `samples` that of each entry.
    """
    ids = _source(op, ids)
    for inner in (_unclipped, _unwrapped):
        ids = _source(op, inner(op, ids))
    if not ids.shape.is_fully_defined():
        return False
    if ids.op.type == "ConcatV2" and _is_first_axis(ids.op.inputs[-1]):
        parts = list(ids.op.inputs)[:-1]
        ends = np.cumsum([part.shape.num_elements() for part in parts])
        pieces = zip(parts, np.split(owners, ends[:-1]))
        return all(_lead_to(op, *piece, run, samples) for piece in pieces)
    begins, others = np.zeros([], np.int64), []
    for tensor in addends(ids):
        number = op.of_tensor(tensor)
        if number is None:
            others.append(tensor)
        else:
            begins = begins + np.asarray(number, np.int64)
    shape = ids.shape.as_list()
    begins = np.broadcast_to(begins, shape).ravel()
    # So many indices may be of one block.
    for many in [int(np.prod(shape[axes:])) for axes in range(1, 6)] + [run]:
        count = max(owners.size // max(many, 1), 1)
        if owners.size != count * many or samples.size % count:
            continue
        size, first = samples.size // count, owners[::many, None]
        own = (owners.reshape([count, many]) == first).all()
        own = own and (samples.reshape([count, size]) == first).all()
        if own and (begins == np.arange(begins.size) // many * size).all():
            # A sum beyond what its type holds begins anew.
            held = samples.size - 1 <= limits(ids.dtype)[1]
            return held and _are_below(op, others, size)
    return False


def _is_first_axis(axis):
    number = tf.get_static_value(axis)
    return number is not None and int(number) == 0


def _source(op, tensor):
    """Return the tensor of which this one has the same numbers, in order."""
    while _keeps_numbers(op, tensor.op):
        tensor = tensor.op.inputs[0]
    return tensor


def _keeps_numbers(op, made):
    if made.type == "Cast":
        return _has_room(op, made.inputs[0], made.outputs[0].dtype)
    if made.type == "StridedSlice":
        # As `ids[:, None]`.
        before, after = made.inputs[0].shape, made.outputs[0].shape
        strides = op.of_tensor(made.inputs[3])
        if strides is None or not after.is_fully_defined():
            return False
        whole = before.num_elements() == after.num_elements()
        return whole and (strides == 1).all()
    return made.type in ("Reshape", "Identity", "ExpandDims")


def _has_room(op, tensor, dtype):
    """Whether whole numbers are the same in another type of whole numbers."""
    if not tensor.dtype.is_integer or not dtype.is_integer:
        return False
    if min(tensor.dtype.size, dtype.size) >= 4:
        # Both hold every place; whether one is, is told by its parts.
        return True
    low, high = number_range(op, tensor)
    least, most = limits(dtype)
    return least <= low <= high <= most


def _unclipped(op, ids):
    """Return what a gradient of segments keeps from being below zero.

    Places in blocks are not: a block begins at zero or later.
    """
    if ids.op.type != "Maximum":
        return ids
    below, least = ids.op.inputs
    number = op.of_tensor(least)
    zeros = least.op.type == "ZerosLike" if number is None else not number.any()
    return below if zeros else ids


def _unwrapped(op, ids):
    """Return the places of which `keras.ops.take` counts negative ones back.

    Places that are proved are not negative: they stay as they are.
    """
    if ids.op.type not in ("Select", "SelectV2"):
        return ids
    is_negative, _, places = ids.op.inputs
    if is_negative.op.type != "Less":
        return ids
    compared, zero = is_negative.op.inputs
    number = op.of_tensor(zero)
    if number is None or np.asarray(number).any():
        return ids
    same = compared.name == places.name and places.shape == ids.shape
    return places if same else ids


def _are_below(op, parts, size):
    """Whether sums of some numbers are known to be from 0 up to a size."""
    ranges = [number_range(op, t) for t in parts]
    # A size that follows a length may be less than a number that is known.
    if op.lengths.has(size):
        return False
    return sum(r[0] for r in ranges) >= 0 and sum(r[1] for r in ranges) < size


def addends(tensor):
    """Return the tensors of which this one is the sum."""
    if tensor.op.type not in ("AddV2", "Add"):
        return [tensor]
    return [one for t in tensor.op.inputs for one in addends(t)]


def own_column(op, k, ids, target):
    """Return the flags of indices that are each sample's own; None: not known.

    They are where the column `target` has the number of the sample that the
    entry is of, as in `tf.stack([tf.range(n), last], -1)`. The flags are those
    of the other columns: each sample finds its place whatever their number.
    """
    shape = op.shape(k)[:-1]
    columns = _columns(op, op.inputs[k])
    if columns is None or target >= len(columns) or None in shape:
        return None
    number, _ = columns.pop(target)
    if number is None or ids.axis >= len(shape):
        return None
    samples = np.arange(shape[ids.axis]) // ids.rows % op.n
    samples = samples.reshape(
        [-1 if a == ids.axis else 1 for a in range(len(shape))]
    )
    if not (number.reshape(shape) == samples).all():
        return None
    return functools.reduce(operator.or_, (f for _, f in columns), 0)


def _columns(op, tensor):
    """Return (number or None, flags) for each entry of a tensor's last axis.

    None: it is not known what the last axis is made of.
    """
    last = tensor.shape.rank - 1
    made, flags = tensor.op, op.type_of(tensor).flags
    number = op.of_tensor(tensor)
    if number is not None:
        return [(number[..., j], flags) for j in range(number.shape[-1])]
    if made.type == "Pack" and made.get_attr("axis") in (last, -1):
        return [(op.of_tensor(t), op.type_of(t).flags) for t in made.inputs]
    if made.type == "ConcatV2":
        *parts, axis = made.inputs
        if tf.get_static_value(axis) in (last, -1):
            found = [_columns(op, part) for part in parts]
            return None if None in found else list(itertools.chain(*found))
    if made.type == "Transpose" and made.inputs[0].op.type == "Pack":
        return _transposed(op, made)
    if made.type in ("Identity", "Cast", "Reshape"):
        source = made.inputs[0]
        if source.shape.rank and source.shape[-1] == tensor.shape[-1]:
            return _held(_columns(op, source), tensor.dtype)
    return [(None, flags)] if tensor.shape[-1] == 1 else None


def _held(columns, dtype):
    """Return columns with what a data type holds of their numbers."""
    if columns is None:
        return None
    held, wide = dtype.as_numpy_dtype, dtype.is_integer and dtype.size >= 4
    return [
        (None if m is None or (f & BY_SIZE and not wide) else m.astype(held), f)
        for m, f in columns
    ]


def _transposed(op, made):
    """Return the same of a transposed pack, if that packs the last axis."""
    pack, perm = made.inputs[0].op, op.of_tensor(made.inputs[1])
    axis = pack.get_attr("axis") % made.inputs[0].shape.rank
    if perm is None or perm[-1] != axis:
        return None
    rest = [int(p) - (p > axis) for p in perm[:-1]]
    numbers = [op.of_tensor(t) for t in pack.inputs]
    numbers = [None if m is None else m.transpose(rest) for m in numbers]
    return [(m, op.type_of(t).flags) for m, t in zip(numbers, pack.inputs)]
