"""The intervals of integers, and the places that are a sample's own."""

import functools
import itertools
import math
import operator

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.op_facts import (
    JOINS,
    MOVES,
    SELECTS,
    has,
    source_of,
)
from keras_pergrad.proof.tensor_types import BY_SIZE, Free

#: Ops that round each entry, and how.
_ROUNDING = {
    "Cast": math.trunc,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Rint": round,
    "Round": round,
}


def number_range(op, tensor):
    """Return the least and the largest number that a tensor can have.

    Whatever the batch, by interval arithmetic (Moore, Interval Analysis, 1966)
    over the ops that made the tensor. An entry that is no number leaves its
    range; a look-up refuses it.

    Args:
        op: the `TypedOp` that knows numbers that shapes determine.
        tensor: a tensor of numbers or of truth values.
    """
    return _Ranges(op).of(tensor)


def is_constant(op, types):
    """Whether an op that has `MAY_BE_CONSTANT` is so with these inputs."""
    if op.type == "Equal":
        return is_self_comparison(op)
    return _has_only_number(op, types)


def is_self_comparison(op):
    """Whether an op compares what can be no NaN with itself.

    `tf.recompute_grad` and `keras.remat` do, to wait for a gradient.
    """
    if op.inputs[0] is not op.inputs[1]:
        return False
    return not (op.inputs[0].dtype.is_floating or op.inputs[0].dtype.is_complex)


def _has_only_number(op, types):
    """Whether an op gives one number, whatever the samples are; note it.

    So many columns `tf.math.bincount` gives with `minlength` = `maxlength`.
    """
    (output,) = op.outputs
    if output.shape.rank != 0 or not output.dtype.is_integer:
        return False
    free_types = [t for t in types if isinstance(t, Free)]
    if len(free_types) == len(types) or any(t.flags for t in free_types):
        return False
    least, greatest = number_range(op, output)
    if least != greatest:
        return False
    op.typing.numbers.set(output, least)
    return True


class _Ranges:
    """The ranges of the tensors from which one is made."""

    #: So many ops are looked through, one after the other.
    MAX_DEPTH = 40

    def __init__(self, op):
        self._op = op
        self._cache, self._depth = {}, 0

    def of(self, tensor):
        """Return the range of a tensor."""
        key = tensor.ref()
        if key not in self._cache:
            self._cache[key] = self._compute(tensor)
        return self._cache[key]

    def _compute(self, tensor):
        if self._op.type_of(tensor) == Free(BY_SIZE):
            # Its value holds for the typed number of samples alone.
            return limits(tensor.dtype)
        number = self._op.value_of(tensor)
        if self._op.lengths.units and tensor.op.type != "Const":
            # What follows a length is known for one length alone.
            number = None
        if number is None and tensor.op.type == "Const":
            number = tf.get_static_value(tensor)
        bounds = None
        if number is not None:
            bounds = _array_range(np.asarray(number))
        elif self._depth < self.MAX_DEPTH:
            self._depth += 1
            bounds = _rounded_bounds(self._propagate(tensor), tensor.dtype)
            self._depth -= 1
        least, greatest = limits(tensor.dtype)
        if bounds is not None and least <= bounds[0] <= bounds[1] <= greatest:
            return tuple(bounds)
        # Whole numbers wrap beyond what the data type holds.
        return least, greatest

    def _propagate(self, tensor):
        """Return the range by what made a tensor, or None."""
        producer = tensor.op
        op_type, inputs = producer.type, list(producer.inputs)
        if op_type in ("ArgMax", "ArgMin"):
            return self._index_range(inputs[0], tf.get_static_value(inputs[1]))
        if op_type == "TopKV2" and tensor.value_index:
            return self._index_range(inputs[0], -1)
        if has(producer, MOVES) or op_type == "TopKV2":
            return self.of(inputs[source_of(producer)])
        if has(producer, JOINS | SELECTS):
            ranges = [self.of(t) for t in _alternatives(producer)]
            return min(bounds[0] for bounds in ranges), max(
                bounds[1] for bounds in ranges
            )
        if op_type in _ROUNDING:
            bounds = self.of(inputs[0])
            if op_type == "Cast" and not tensor.dtype.is_integer:
                return bounds
            return [
                bound if math.isinf(bound) else _ROUNDING[op_type](bound)
                for bound in bounds
            ]
        if op_type == "Sum":
            if any(map(self._op.lengths.has, inputs[0].shape)):
                return None
            return _sum_range(inputs[0], tensor, self.of(inputs[0]))
        if op_type == "FloorMod":
            return _remainder_range(tensor.dtype, *map(self.of, inputs))
        if op_type in _ARITHMETIC:
            return _ARITHMETIC[op_type](*map(self.of, inputs))
        return None

    def _index_range(self, tensor, axis):
        """Return the range of places along an axis."""
        if axis is None or tensor.shape.rank is None:
            return None
        length = tensor.shape[int(axis)]
        if not length or self._op.lengths.has(length):
            return None
        return 0, length - 1


def _alternatives(op):
    """Return the inputs of which an entry is one, of a choice or a joint."""
    inputs = list(op.inputs)
    if op.type == "ConcatV2":
        return inputs[:-1]
    return inputs if op.type == "Pack" else inputs[1:]


def limits(dtype):
    """Return the least and the largest number of a data type."""
    if dtype.is_bool:
        return 0, 1
    return (dtype.min, dtype.max) if dtype.is_integer else (-math.inf, math.inf)


def _rounded_bounds(bounds, dtype):
    """Return bounds that hold after rounding to a floating-point type.

    Rounding is monotonic: no number within the bounds is rounded beyond the
    type's next number outside of them.
    """
    if bounds is None or not dtype.is_floating:
        return bounds
    return _round_bound(bounds[0], dtype, -math.inf), _round_bound(
        bounds[1], dtype, math.inf
    )


def _round_bound(bound, dtype, outward):
    np_type = dtype.as_numpy_dtype
    with np.errstate(over="ignore"):
        nearest = np_type(float(bound))
    is_outside = (
        float(nearest) >= bound if outward > 0 else float(nearest) <= bound
    )
    return float(
        nearest if is_outside else np.nextafter(nearest, np_type(outward))
    )


def _array_range(number):
    if not number.size or number.dtype.kind not in "iufb":
        return None
    low, high = number.min().item(), number.max().item()
    return low, high


def _sum_range(tensor, total, bounds):
    """Return the range of sums of as many entries as are added up."""
    before, after = tensor.shape.num_elements(), total.shape.num_elements()
    if not before or not after:
        return None
    terms = before // after
    if total.dtype.is_integer:
        return [terms * bound for bound in bounds]
    return _sum_bound(bounds[0], terms, total.dtype, outward=-1), _sum_bound(
        bounds[1], terms, total.dtype, outward=1
    )


def _sum_bound(bound, terms, dtype, *, outward):
    """Return a bound for the sum of `terms` numbers, added in any order.

    For whole numbers that the type holds, each partial sum is exact. Otherwise
    each addition has a rounding error (Higham, Accuracy and Stability of
    Numerical Algorithms, 2002, section 4.2).
    """
    total, np_type = terms * bound, dtype.as_numpy_dtype
    epsilon = float(np.nextafter(np_type(1), np_type(2))) - 1
    if float(bound).is_integer() and abs(total) * epsilon <= 2:
        return total
    if terms * epsilon > 1:
        return outward * math.inf
    return total + outward * 2 * terms * epsilon * abs(total)


def _remainder_range(dtype, x, divisor):
    """Return the range of remainders: below the divisor, if that is positive.

    A rounded remainder of a negative number may be the divisor itself.
    """
    least, greatest = divisor
    if least <= 0:
        return None
    if dtype.is_integer:
        return 0, greatest - 1
    np_type = dtype.as_numpy_dtype
    below = float(np.nextafter(np_type(greatest), np_type(0)))
    return 0, below if x[0] >= 0 else greatest


def _product_range(x, y):
    corners = [a * b for a in x for b in y]
    return min(corners), max(corners)


def _absolute_range(x):
    least = 0 if x[0] <= 0 <= x[1] else min(map(abs, x))
    return least, max(map(abs, x))


_ARITHMETIC = {
    "Add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "AddV2": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "Sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "Mul": _product_range,
    "Minimum": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "Maximum": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "Neg": lambda x: (-x[1], -x[0]),
    "Abs": _absolute_range,
}


def reaches_own_entries(op, ids, index_type, *, length, block_type):
    """Whether indices lead each sample to its own entries of an axis.

    Indices are places in a block plus the place where the block begins, as
    the gradient of a look-up with `batch_dims` has them.

    Args:
        ids: the tensor of indices.
        index_type: the `At` of the indices, or of the values that go there.
        length: how many entries the axis has.
        block_type: the `At` of the axis to which the indices lead.
    """
    if length is None or not ids.shape.is_fully_defined():
        return False
    shape = ids.shape.as_list()
    owners = np.arange(shape[index_type.axis]) // index_type.rows % op.n
    trailing_ones = [1] * (len(shape) - index_type.axis - 1)
    owners = np.broadcast_to(
        owners.reshape([-1, *trailing_ones]), shape
    ).ravel()
    run_length = index_type.rows * int(np.prod(shape[index_type.axis + 1 :]))
    samples = np.arange(length) // block_type.rows % op.n
    return _reaches_owners(
        op, ids, owners, run_length=run_length, samples=samples
    )


def _reaches_owners(op, ids, owners, *, run_length, samples):
    """Whether indices of samples lead to entries of the same ones.

    Args:
        owners: the sample of each index.
        run_length: how many indices of one sample are in a row.
        samples: the sample of each entry.
    """
    ids = _number_source(op, ids)
    for strip in (_without_clip, _without_wrap):
        ids = _number_source(op, strip(op, ids))
    if not ids.shape.is_fully_defined():
        return False
    if ids.op.type == "ConcatV2" and _is_first_axis(ids.op.inputs[-1]):
        parts = list(ids.op.inputs)[:-1]
        ends = np.cumsum([part.shape.num_elements() for part in parts])
        pieces = zip(parts, np.split(owners, ends[:-1]))
        return all(
            _reaches_owners(
                op, part, piece, run_length=run_length, samples=samples
            )
            for part, piece in pieces
        )
    offsets, unknown_parts = np.zeros([], np.int64), []
    for tensor in addends(ids):
        number = op.value_of(tensor)
        if number is None:
            unknown_parts.append(tensor)
        else:
            offsets = offsets + np.asarray(number, np.int64)
    shape = ids.shape.as_list()
    offsets = np.broadcast_to(offsets, shape).ravel()
    # How many indices share a block is not known: what fits the shape is tried.
    for run in [int(np.prod(shape[axes:])) for axes in range(1, 6)] + [
        run_length
    ]:
        run_count = max(owners.size // max(run, 1), 1)
        if owners.size != run_count * run or samples.size % run_count:
            continue
        block_size, first_owner = samples.size // run_count, owners[::run, None]
        is_own = (owners.reshape([run_count, run]) == first_owner).all()
        is_own = (
            is_own
            and (samples.reshape([run_count, block_size]) == first_owner).all()
        )
        if (
            is_own
            and (offsets == np.arange(offsets.size) // run * block_size).all()
        ):
            # A sum beyond what its type holds would wrap.
            fits = samples.size - 1 <= limits(ids.dtype)[1]
            return fits and _are_below(op, unknown_parts, block_size)
    return False


def _is_first_axis(axis):
    number = tf.get_static_value(axis)
    return number is not None and int(number) == 0


def _number_source(op, tensor):
    """Return the tensor of which this one has the same numbers, in order."""
    while _keeps_numbers(op, tensor.op):
        tensor = tensor.op.inputs[0]
    return tensor


def _keeps_numbers(op, producer):
    if producer.type == "Cast":
        return _keeps_integers(
            op, producer.inputs[0], producer.outputs[0].dtype
        )
    if producer.type == "StridedSlice":
        # As `ids[:, None]`.
        input_shape = producer.inputs[0].shape
        output_shape = producer.outputs[0].shape
        strides = op.value_of(producer.inputs[3])
        if strides is None or not output_shape.is_fully_defined():
            return False
        is_whole = input_shape.num_elements() == output_shape.num_elements()
        return is_whole and (strides == 1).all()
    return producer.type in ("Reshape", "Identity", "ExpandDims")


def _keeps_integers(op, tensor, dtype):
    """Whether whole numbers are the same in another type of whole numbers."""
    if not tensor.dtype.is_integer or not dtype.is_integer:
        return False
    if min(tensor.dtype.size, dtype.size) >= 4:
        # Both types hold any index, so that none wraps.
        return True
    low, high = number_range(op, tensor)
    least, greatest = limits(dtype)
    return least <= low <= high <= greatest


def _without_clip(op, ids):
    """Return indices without a clip at zero.

    The gradient of a segment reduction clips its indices. Places in a block
    are not negative, so that the clip leaves them as they are.
    """
    if ids.op.type != "Maximum":
        return ids
    clipped, bound = ids.op.inputs
    number = op.value_of(bound)
    is_zero = (
        bound.op.type == "ZerosLike" if number is None else not number.any()
    )
    return clipped if is_zero else ids


def _without_wrap(op, ids):
    """Return indices without the wrap of negative ones.

    `keras.ops.take` counts negative indices from the end. Those that are
    proved to be in their block are not negative.
    """
    if ids.op.type not in ("Select", "SelectV2"):
        return ids
    is_negative, _, places = ids.op.inputs
    if is_negative.op.type != "Less":
        return ids
    compared, zero = is_negative.op.inputs
    number = op.value_of(zero)
    if number is None or np.asarray(number).any():
        return ids
    is_same = compared.name == places.name and places.shape == ids.shape
    return places if is_same else ids


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


def own_column_flags(op, k, ids, *, target):
    """Return the flags of indices that lead each sample to its own entries.

    The indices do if their column `target` has the number of the sample that
    they belong to, as in `tf.stack([tf.range(n), last], -1)`. The flags are
    those of the other columns: a sample's own number is no dependence on how
    many samples there are. None: it is not known where they lead.
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
    producer, flags = tensor.op, op.type_of(tensor).flags
    number = op.value_of(tensor)
    if number is not None:
        return [(number[..., j], flags) for j in range(number.shape[-1])]
    if producer.type == "Pack" and producer.get_attr("axis") in (last, -1):
        return [(op.value_of(t), op.type_of(t).flags) for t in producer.inputs]
    if producer.type == "ConcatV2":
        *parts, axis = producer.inputs
        if tf.get_static_value(axis) in (last, -1):
            column_lists = [_columns(op, part) for part in parts]
            return (
                None
                if None in column_lists
                else list(itertools.chain(*column_lists))
            )
    if producer.type == "Transpose" and producer.inputs[0].op.type == "Pack":
        return _transposed_columns(op, producer)
    if producer.type in ("Identity", "Cast", "Reshape"):
        source = producer.inputs[0]
        if source.shape.rank and source.shape[-1] == tensor.shape[-1]:
            return _cast_columns(_columns(op, source), tensor.dtype)
    return [(None, flags)] if tensor.shape[-1] == 1 else None


def _cast_columns(columns, dtype):
    """Return columns with what a data type holds of their numbers."""
    if columns is None:
        return None
    np_type = dtype.as_numpy_dtype
    is_wide = dtype.is_integer and dtype.size >= 4
    return [
        (
            None
            if number is None or (flags & BY_SIZE and not is_wide)
            else number.astype(np_type),
            flags,
        )
        for number, flags in columns
    ]


def _transposed_columns(op, producer):
    """Return the columns of a transposed pack that becomes the last axis."""
    pack, perm = producer.inputs[0].op, op.value_of(producer.inputs[1])
    axis = pack.get_attr("axis") % producer.inputs[0].shape.rank
    if perm is None or perm[-1] != axis:
        return None
    rest = [int(p) - (p > axis) for p in perm[:-1]]
    numbers = [op.value_of(t) for t in pack.inputs]
    numbers = [
        None if number is None else number.transpose(rest) for number in numbers
    ]
    return [
        (number, op.type_of(t).flags) for number, t in zip(numbers, pack.inputs)
    ]
