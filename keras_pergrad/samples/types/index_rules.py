"""Type rules of look-ups and of writes by indices of several axes."""

import numpy as np

from keras_pergrad.samples.types.lookup_rules import without_sums
from keras_pergrad.samples.types.own_indices import (
    addends,
    own_column,
    stays,
)
from keras_pergrad.samples.types.tensor_types import (
    FREE,
    At,
    Free,
    Mixes,
    Untyped,
    flags_of,
)
from keras_pergrad.samples.types.type_rules import type_rule


@type_rule("GatherNd", "ResourceGatherNd")
def gather_nd(op, types):
    """Entries by indices of several axes."""
    without_sums(types)
    table, ids = types
    depth = op.shape(1)[-1]
    if depth is None:
        raise Untyped("how many axes it indexes is not known while tracing")
    if isinstance(ids, At) and ids.axis == op.rank(1) - 1:
        raise Mixes("takes the samples for axes")
    flags = flags_of(types)
    if isinstance(table, Free):
        return At.placed(ids.place, flags)
    if isinstance(ids, Free) and table.axis >= depth:
        place = table.axis - depth + op.rank(1) - 1
        return At(place, table.rows, table.lead, flags)
    if isinstance(ids, Free) and table.place[1:] == (1, 1):
        for axis, source in _counts(op, 1, op.shape()).items():
            if source == table.axis:
                types = _without_counts(op, types, 1, axis, source)
                return At(axis, flags=flags_of(types))
    if isinstance(ids, At) and isinstance(table, At):
        own = own_column(op, 1, ids, table.axis)
        if own is not None and table.place[1:] == (1, 1):
            return At.placed(ids.place, table.flags | own)
        merged = depth == 1 and table.axis == 0
        if merged and stays(op, op.inputs[1], ids, op.shape(0)[0], table):
            return At.placed(ids.place, flags)
    raise Mixes("looks entries up by numbers that may be of other samples")


@type_rule(
    "ScatterNd TensorScatterAdd TensorScatterMax TensorScatterMin "
    "TensorScatterSub TensorScatterUpdate"
)
def scatter(op, types):
    """Entries go to places that indices give."""
    begin = 0 if op.type == "ScatterNd" else 1
    ids, values = types[begin : begin + 2]
    without_sums(types)
    if begin == 0 and not isinstance(types[2], Free):
        raise Mixes("takes sizes from the values of the samples")
    if not isinstance(ids, Free):
        return _scatter_own(op, types, begin)
    depth = op.shape(begin)[-1]
    if depth is None:
        raise Untyped("how many axes it indexes is not known while tracing")
    places = set()
    if isinstance(values, At):
        place = values.axis - (op.rank(begin) - 1) + depth
        if place < depth:
            place = _counted_along(op, begin, op.shape_out(), values)
            if place is None:
                raise Mixes("puts samples into places that are given")
            types = _without_counts(op, types, begin, values.axis, place)
        places.add((place, values.rows, values.lead))
    if begin and isinstance(types[0], At):
        every = types[0].place in places
        if isinstance(values, Free):
            every = types[0].axis in _counts(op, 1, op.shape()).values()
        if types[0].axis < depth and not every:
            raise Mixes("replaces some of the samples")
        places.add(types[0].place)
    if len(places) != 1:
        raise Mixes("brings samples together that are on different axes")
    return At.placed(places.pop(), flags_of(types))


def _counts(op, k, sizes):
    """Return which axes of indices count the samples, and along which axis.

    Axis of the indices → axis of the tensor of these sizes: what is at i along
    the one has the index i along the other, both as long as the batch.
    """
    ids, counted = op.number_or_none(k), {}
    if ids is None:
        return counted
    for axis, length in enumerate(ids.shape[:-1]):
        for target in range(min(ids.shape[-1], len(sizes))):
            whole = length == sizes[target] == op.n
            if whole and (ids[..., target] == _steps(ids, axis)).all():
                counted[axis] = target
    return counted


def _steps(ids, axis):
    """Return 0, 1, ... along one axis of indices, to be compared with them."""
    shape = [-1 if a == axis else 1 for a in range(ids.ndim - 1)]
    return np.arange(ids.shape[axis]).reshape(shape)


def _counted_along(op, k, sizes, values):
    """Return the axis on which scattered samples come to lie, or None."""
    if values.place[1:] != (1, 1):
        return None
    return _counts(op, k, sizes).get(values.axis)


def _without_counts(op, types, k, axis, target):
    """Return the types, without the flags of what only counts the samples.

    Each sample finds its own place by it, whatever their number.
    """
    ids, flags = op.number(k), 0
    for tensor in addends(op.inputs[k]):
        number = op.of_tensor(tensor)
        if number is not None and number.shape[-1:] == ids.shape[-1:]:
            number = np.broadcast_to(number, ids.shape)
            others = np.delete(number, target, -1)
            steps = number[..., target] == _steps(ids, axis)
            if steps.all() and not others.any():
                continue
        flags |= op.type_of(tensor).flags
    return [Free(flags) if j == k else kind for j, kind in enumerate(types)]


def _scatter_own(op, types, begin):
    """Put each sample's entries to places that are its own."""
    ids, values = types[begin : begin + 2]
    if isinstance(values, Free) or values.place == ids.place:
        for target, length in enumerate(op.shape_out()[: op.shape(begin)[-1]]):
            flags = own_column(op, begin, ids, target)
            if length != op.n or flags is None:
                continue
            into = types[0] if begin else FREE
            if isinstance(into, Free) or into.place == (target, 1, 1):
                flags |= into.flags | values.flags
                return At(target, flags=flags)
    shape = None if begin else op.number_or_none(2)
    own = isinstance(values, Free) or values.place == ids.place
    own = own and ids.axis == 0
    if shape is not None and len(shape) == 1 and own and op.shape(0)[-1] == 1:
        length, block = int(shape[0]), op.n * ids.lead
        where = At(0, length // block, ids.lead, flags_of(types))
        whole = length == block * where.rows
        if whole and stays(op, op.inputs[0], ids, length, where):
            return where
    raise Mixes("puts entries of all samples together, by their values")
