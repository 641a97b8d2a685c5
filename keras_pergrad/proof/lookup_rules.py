"""The types of look-ups, gathers and scatters."""

import numpy as np

from keras_pergrad.proof.elementwise_rules import as_divisor
from keras_pergrad.proof.intervals import addends, own_column, stays
from keras_pergrad.proof.tensor_types import (
    FREE,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
    type_rule,
)


def without_sums(types):
    """Refuse to look sums over the samples up."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        raise Mixes("looks sums over the samples up")


@type_rule("Gather", "GatherV2", "ResourceGather")
def gather(op, types):
    """Rows of a table, or entries of each sample."""
    table, ids = types[:2]
    if isinstance(table, Total) and isinstance(ids, Free):
        return table
    without_sums(types)
    if any(not isinstance(t, Free) for t in types[2:]):
        raise Mixes("takes its axis from the samples")
    flags, batch = flags_of(types), 0
    if op.type != "Gather":
        batch = op.attribute("batch_dims")
    axis, rank_ids = 0, op.rank(1)
    if op.type == "GatherV2":
        axis = int(op.number(2)) % op.rank()
    batch = batch + rank_ids if batch < 0 else batch
    if isinstance(table, Free):
        place = ids.axis
        if place >= batch:
            place += axis - batch
        return At(place, ids.rows, ids.lead, flags)
    if isinstance(ids, Free):
        if table.axis == axis and _is_identity(op, table):
            return table
        own = None
        if table.axis == axis and not batch:
            own = _of_own_sample(op, table, flags)
        if own is not None:
            return own
        if table.axis == axis:
            raise Mixes("takes some of the samples, or in another order")
        place = table.axis
        if place > axis:
            place += rank_ids - batch - 1
        return At(place, table.rows, table.lead, flags)
    if table.axis < batch and table.place == ids.place:
        return At.placed(table.place, flags)
    if table.axis == axis == batch == 0:
        return _own_rows(op, table, ids, flags)
    raise Mixes("looks entries of other samples up")


def _is_identity(op, table):
    """Whether each entry of an axis is taken, in order."""
    ids, length = op.number_or_none(1), op.shape(0)[table.axis]
    return ids is not None and np.array_equal(ids, np.arange(length or 0))


def _of_own_sample(op, table, flags):
    """Return the type where known numbers are of each sample's own entries.

    `table` is the type of what entries are taken from, along the samples' axis.
    """
    ids = op.number_or_none(1)
    if ids is None or table.lead != 1 or not ids.size:
        return None
    for place, length in enumerate(ids.shape):
        rows = length // op.n
        shape = [-1 if k == place else 1 for k in range(ids.ndim)]
        samples = np.arange(length).reshape(shape) // max(rows, 1)
        whole = length == rows * op.n
        if whole and (ids // table.rows == samples).all():
            return At(table.axis + place, rows, 1, flags)
    return None


def _own_rows(op, table, ids, flags):
    """Let each sample's indices begin at its own block of a merged axis."""
    if not stays(op, op.inputs[1], ids, op.shape(0)[0], table):
        raise Mixes("looks entries up by numbers that may be of other samples")
    return At.placed(ids.place, flags)


def _given_rows(op, kind, ids, length, flags):
    """Return the type of an axis to which numbers send a sample's entries.

    Entry e, of type `kind` on axis 0, goes to ids[e]. None: entries leave
    their sample.
    """
    block = op.n * kind.lead
    if kind.axis or ids.size % block or length % block:
        return None
    rows = length // block
    own = np.arange(ids.size) // (ids.size // block)
    if (np.ravel(ids) // rows == own).all():
        return At(0, rows, kind.lead, flags)
    return None


_SUMS = {"UnsortedSegmentSum", "SegmentSum", "SegmentSumV2"}


@type_rule(
    *_SUMS,
    "SegmentMax",
    "SegmentMaxV2",
    "SegmentMean",
    "SegmentMin",
    "SegmentMinV2",
    "SegmentProd",
    "SegmentProdV2",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentProd",
)
def segments(op, types):
    """Reduce the entries that have the same number."""
    values, ids = types[:2]
    without_sums(types[1:])
    if any(not isinstance(t, Free) for t in types[2:]):
        raise Mixes("takes sizes from the values of the samples")
    if isinstance(values, (Total, Divisor)):
        if not isinstance(ids, Free):
            raise Mixes("adds sums over the samples by their numbers")
        return values if op.type in _SUMS else as_divisor(op, 0, values)
    flags, rank_ids = flags_of(types), op.rank(1)
    if isinstance(values, At) and values.axis >= rank_ids:
        if not isinstance(ids, Free):
            raise Mixes("takes entries by numbers of other samples")
        place = values.axis - rank_ids + 1
        return At(place, values.rows, values.lead, flags)
    both = isinstance(values, At) and isinstance(ids, At)
    if both and values.place != ids.place:
        raise Mixes("takes entries by numbers of other samples")
    reduced = _own_segments(
        op, values if isinstance(values, At) else ids, flags
    )
    if reduced is None and op.type not in _SUMS:
        raise Mixes("compares entries of several samples")
    return Total(flags) if reduced is None else reduced


def _own_segments(op, at, flags):
    """Return the type where segments have entries of one sample; or None."""
    length = op.shape_out()[0]
    if not op.rank(1) or length is None:
        return None
    numbers = op.number_or_none(1)
    if numbers is not None:
        return _given_rows(op, at, numbers, length, flags)
    for lead in {at.lead, 1} if at.axis == 0 else ():
        where = At(0, length // (op.n * lead), lead, flags)
        whole = length == op.n * where.rows * lead
        if whole and stays(op, op.inputs[1], at, length, where):
            return where
    return None


@type_rule("LookupTableFind LookupTableFindV2")
def table(op, types):
    """Look up what a table holds for each key."""
    kind = types[1]
    if any(not isinstance(t, Free) for k, t in enumerate(types) if k != 1):
        raise Mixes("looks up in a table of the samples")
    return kind if isinstance(kind, At) else as_divisor(op, 1, kind)


@type_rule("CollectiveReduceV2", "CollectiveReduce", "CollectiveReduceV3")
def over_replicas(op, types):
    """Add what all replicas have."""
    kind = types[0]
    if isinstance(kind, At):
        raise Mixes("adds samples of several replicas")
    return kind


@type_rule("SparseToDense", "SparseReshape")
def sparse(op, types):
    """Entries of a sparse tensor are of all samples."""
    del types
    raise Untyped("sparse tensors have no axis for the samples")


# Type rules of look-ups and of writes by indices of several axes.


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
