"""The types of look-ups, gathers and scatters."""

import numpy as np

from keras_pergrad.proof.elementwise_rules import as_divisor
from keras_pergrad.proof.intervals import (
    addends,
    own_column_flags,
    reaches_own_entries,
)
from keras_pergrad.proof.tensor_types import (
    ALL,
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


def refuse_sums(types):
    """Refuse a look-up in, or by, sums over the samples."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        raise Mixes("looks sums over the samples up")


@type_rule("Gather", "GatherV2", "ResourceGather", inputs=(0, 1))
def gather(op, types):
    """Rows of a table, or entries of each sample."""
    table_type, id_type = types[:2]
    if isinstance(table_type, Total) and isinstance(id_type, Free):
        return table_type
    refuse_sums(types)
    flags, batch = flags_of(types), 0
    if op.type != "Gather":
        batch = op.attribute("batch_dims")
    axis, rank_ids = 0, op.rank(1)
    if op.type == "GatherV2":
        axis = int(op.number(2)) % op.rank()
    batch = batch + rank_ids if batch < 0 else batch
    # The output has the table's axes before `axis`, the axes of the indices
    # without the batch axes, and the rest of the table's.
    if isinstance(table_type, Free):
        axis_out = id_type.axis
        if axis_out >= batch:
            axis_out += axis - batch
        return At(axis_out, id_type.rows, id_type.lead, flags=flags)
    if isinstance(id_type, Free):
        if table_type.axis == axis and _is_identity(op, table_type):
            return table_type
        own_type = None
        if table_type.axis == axis and not batch:
            own_type = _own_sample_type(op, table_type, flags)
        if own_type is not None:
            return own_type
        if table_type.axis == axis:
            raise Mixes("takes some of the samples, or in another order")
        axis_out = table_type.axis
        if axis_out > axis:
            axis_out += rank_ids - batch - 1
        return At(axis_out, table_type.rows, table_type.lead, flags=flags)
    if table_type.axis < batch and table_type.place == id_type.place:
        return At.placed(table_type.place, flags)
    if table_type.axis == axis == batch == 0:
        return _own_rows_type(op, table_type, id_type, flags=flags)
    raise Mixes("looks entries of other samples up")


def _is_identity(op, table_type):
    """Whether each entry of an axis is taken, in order."""
    ids, length = op.number_or_none(1), op.shape(0)[table_type.axis]
    return ids is not None and np.array_equal(ids, np.arange(length or 0))


def _own_sample_type(op, table_type, flags):
    """Return the type where known numbers are of each sample's own entries.

    `table_type`: the type of the tensor whose entries are taken, along the
    samples' axis.
    """
    ids = op.number_or_none(1)
    if ids is None or table_type.lead != 1 or not ids.size:
        return None
    for place, length in enumerate(ids.shape):
        rows = length // op.n
        shape = [-1 if k == place else 1 for k in range(ids.ndim)]
        samples = np.arange(length).reshape(shape) // max(rows, 1)
        is_whole = length == rows * op.n
        if is_whole and (ids // table_type.rows == samples).all():
            return At(table_type.axis + place, rows, 1, flags=flags)
    return None


def _own_rows_type(op, table_type, id_type, *, flags):
    """Let each sample's indices begin at its own block of a merged axis."""
    if not reaches_own_entries(
        op, op.inputs[1], id_type, length=op.shape(0)[0], block_type=table_type
    ):
        raise Mixes("looks entries up by numbers that may be of other samples")
    return At.placed(id_type.place, flags)


def _scattered_rows(op, input_type, ids, *, length, flags):
    """Return the type of an axis to whose places `ids` sends entries.

    Entry e, of type `input_type` on axis 0, goes to ids[e]. None: some entry
    goes to another sample.
    """
    block = op.n * input_type.lead
    if input_type.axis or ids.size % block or length % block:
        return None
    rows = length // block
    # An entry stays with its sample if it goes to the block it comes from.
    owners = np.arange(ids.size) // (ids.size // block)
    if (np.ravel(ids) // rows == owners).all():
        return At(0, rows, input_type.lead, flags=flags)
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
    inputs=(0, 1),
)
def segments(op, types):
    """Reduce the entries that have the same number."""
    value_type, id_type = types[:2]
    refuse_sums(types[1:])
    if isinstance(value_type, (Total, Divisor)):
        if not isinstance(id_type, Free):
            raise Mixes("adds sums over the samples by their numbers")
        return value_type if op.type in _SUMS else as_divisor(op, 0, value_type)
    flags, rank_ids = flags_of(types), op.rank(1)
    if isinstance(value_type, At) and value_type.axis >= rank_ids:
        if not isinstance(id_type, Free):
            raise Mixes("takes entries by numbers of other samples")
        # All axes of the ids become one, that of the segments.
        axis_out = value_type.axis - rank_ids + 1
        return At(axis_out, value_type.rows, value_type.lead, flags=flags)
    are_sampled = isinstance(value_type, At) and isinstance(id_type, At)
    if are_sampled and value_type.place != id_type.place:
        raise Mixes("takes entries by numbers of other samples")
    reduced = _own_segments(
        op, value_type if isinstance(value_type, At) else id_type, flags
    )
    if reduced is None and op.type not in _SUMS:
        raise Mixes("compares entries of several samples")
    return Total(flags) if reduced is None else reduced


def _own_segments(op, sample_type, flags):
    """Return the type where segments have entries of one sample; or None."""
    length = op.shape_out()[0]
    if not op.rank(1) or length is None:
        return None
    numbers = op.number_or_none(1)
    if numbers is not None:
        return _scattered_rows(
            op, sample_type, numbers, length=length, flags=flags
        )
    for lead in {sample_type.lead, 1} if sample_type.axis == 0 else ():
        block_type = At(0, length // (op.n * lead), lead, flags=flags)
        is_whole = length == op.n * block_type.rows * lead
        if is_whole and reaches_own_entries(
            op, op.inputs[1], sample_type, length=length, block_type=block_type
        ):
            return block_type
    return None


@type_rule("LookupTableFind LookupTableFindV2", inputs=1)
def table_lookup(op, types):
    """Look up what a table holds for each key."""
    input_type = types[1]
    return (
        input_type
        if isinstance(input_type, At)
        else as_divisor(op, 1, input_type)
    )


@type_rule("CollectiveReduce CollectiveReduceV2 CollectiveReduceV3", inputs=0)
def collective_reduce(op, types):
    """Add what all replicas have."""
    input_type = types[0]
    if isinstance(input_type, At):
        raise Mixes("adds samples of several replicas")
    by = "reduction" if op.type == "CollectiveReduceV3" else "merge_op"
    if op.attribute(by) != b"Add":
        raise Mixes("does more with sums over the samples than to add them")
    return input_type


@type_rule("SparseToDense", "SparseReshape", inputs=ALL)
def sparse_op(op, types):
    """Entries of a sparse tensor are of all samples."""
    del types
    raise Untyped("sparse tensors have no axis for the samples")


@type_rule("GatherNd", "ResourceGatherNd", inputs=ALL)
def gather_nd(op, types):
    """Entries by indices of several axes."""
    refuse_sums(types)
    table_type, id_type = types
    depth = op.shape(1)[-1]
    if depth is None:
        raise Untyped("how many axes it indexes is not known while tracing")
    if isinstance(id_type, At) and id_type.axis == op.rank(1) - 1:
        raise Mixes("takes the samples for axes")
    flags = flags_of(types)
    if isinstance(table_type, Free):
        return At.placed(id_type.place, flags)
    if isinstance(id_type, Free) and table_type.axis >= depth:
        axis_out = table_type.axis - depth + op.rank(1) - 1
        return At(axis_out, table_type.rows, table_type.lead, flags=flags)
    if isinstance(id_type, Free) and table_type.place[1:] == (1, 1):
        for axis, source in _counting_axes(op, 1, op.shape()).items():
            if source == table_type.axis:
                types = _drop_counter_flags(
                    op, types, 1, axis=axis, target=source
                )
                return At(axis, flags=flags_of(types))
    if isinstance(id_type, At) and isinstance(table_type, At):
        own_flags = own_column_flags(op, 1, id_type, target=table_type.axis)
        if own_flags is not None and table_type.place[1:] == (1, 1):
            return At.placed(id_type.place, table_type.flags | own_flags)
        is_merged = depth == 1 and table_type.axis == 0
        if is_merged and reaches_own_entries(
            op,
            op.inputs[1],
            id_type,
            length=op.shape(0)[0],
            block_type=table_type,
        ):
            return At.placed(id_type.place, flags)
    raise Mixes("looks entries up by numbers that may be of other samples")


@type_rule("ScatterNd", inputs=(0, 1))
@type_rule(
    "TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub "
    "TensorScatterUpdate",
    inputs=ALL,
)
def scatter(op, types):
    """Entries go to places that indices give."""
    first = 0 if op.type == "ScatterNd" else 1
    id_type, value_type = types[first : first + 2]
    refuse_sums(types)
    if not isinstance(id_type, Free):
        return _scatter_own_entries(op, types, first)
    depth = op.shape(first)[-1]
    if depth is None:
        raise Untyped("how many axes it indexes is not known while tracing")
    places = set()
    if isinstance(value_type, At):
        axis_out = value_type.axis - (op.rank(first) - 1) + depth
        if axis_out < depth:
            axis_out = _scattered_axis(
                op, first, op.shape_out(), value_type=value_type
            )
            if axis_out is None:
                raise Mixes("puts samples into places that are given")
            types = _drop_counter_flags(
                op, types, first, axis=value_type.axis, target=axis_out
            )
        places.add((axis_out, value_type.rows, value_type.lead))
    if first and isinstance(types[0], At):
        is_complete = types[0].place in places
        if isinstance(value_type, Free):
            is_complete = (
                types[0].axis in _counting_axes(op, 1, op.shape()).values()
            )
        if types[0].axis < depth and not is_complete:
            raise Mixes("replaces some of the samples")
        places.add(types[0].place)
    if len(places) != 1:
        raise Mixes("brings samples together that are on different axes")
    return At.placed(places.pop(), flags_of(types))


def _counting_axes(op, k, sizes):
    """Return which axes of indices count the samples, and along which axis.

    It is a dict: axis of the indices → axis of the tensor of these sizes. Both
    axes are as long as the batch, and indices at i on the one lead to i on the
    other.
    """
    ids, counting_axes = op.number_or_none(k), {}
    if ids is None:
        return counting_axes
    for axis, length in enumerate(ids.shape[:-1]):
        for target in range(min(ids.shape[-1], len(sizes))):
            is_whole = length == sizes[target] == op.n
            if (
                is_whole
                and (ids[..., target] == _step_numbers(ids, axis)).all()
            ):
                counting_axes[axis] = target
    return counting_axes


def _step_numbers(ids, axis):
    """Return 0, 1, ... along one axis of indices, to be compared with them."""
    shape = [-1 if a == axis else 1 for a in range(ids.ndim - 1)]
    return np.arange(ids.shape[axis]).reshape(shape)


def _scattered_axis(op, k, sizes, *, value_type):
    """Return the axis on which scattered samples come to lie, or None."""
    if value_type.place[1:] != (1, 1):
        return None
    return _counting_axes(op, k, sizes).get(value_type.axis)


def _drop_counter_flags(op, types, k, *, axis, target):
    """Return the types, without the flags of a mere count of the samples.

    By such a count each sample finds its own place, in a batch of any size.
    """
    ids, flags = op.number(k), 0
    for tensor in addends(op.inputs[k]):
        number = op.value_of(tensor)
        if number is not None and number.shape[-1:] == ids.shape[-1:]:
            number = np.broadcast_to(number, ids.shape)
            others = np.delete(number, target, -1)
            steps = number[..., target] == _step_numbers(ids, axis)
            if steps.all() and not others.any():
                continue
        flags |= op.type_of(tensor).flags
    return [
        Free(flags) if j == k else input_type
        for j, input_type in enumerate(types)
    ]


def _scatter_own_entries(op, types, first):
    """Put each sample's entries to places that are its own."""
    id_type, value_type = types[first : first + 2]
    if isinstance(value_type, Free) or value_type.place == id_type.place:
        for target, length in enumerate(op.shape_out()[: op.shape(first)[-1]]):
            flags = own_column_flags(op, first, id_type, target=target)
            if length != op.n or flags is None:
                continue
            target_type = types[0] if first else FREE
            if isinstance(target_type, Free) or target_type.place == (
                target,
                1,
                1,
            ):
                flags |= target_type.flags | value_type.flags
                return At(target, flags=flags)
    shape = None if first else op.number_or_none(2)
    is_own = isinstance(value_type, Free) or value_type.place == id_type.place
    is_own = is_own and id_type.axis == 0
    if (
        shape is not None
        and len(shape) == 1
        and is_own
        and op.shape(0)[-1] == 1
    ):
        length, block = int(shape[0]), op.n * id_type.lead
        block_type = At(0, length // block, id_type.lead, flags=flags_of(types))
        is_whole = length == block * block_type.rows
        if is_whole and reaches_own_entries(
            op, op.inputs[0], id_type, length=length, block_type=block_type
        ):
            return block_type
    raise Mixes("puts entries of all samples together, by their values")
