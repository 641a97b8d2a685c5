"""Indices that follow the samples' values, and lead to their own entries."""

import functools
import itertools
import operator

import numpy as np
import tensorflow as tf

from keras_pergrad.samples.types.number_ranges import limits, number_range
from keras_pergrad.samples.types.tensor_types import BY_SIZE


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
    ids = _source(op, _unclipped(op, _source(op, ids)))
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
