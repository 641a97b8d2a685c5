"""Type rules of ops that take a part of each axis, or put one into zeros."""

from keras_pergrad.proof.shape_rules import whole
from keras_pergrad.proof.tensor_types import (
    At,
    Free,
    Mixes,
    Untyped,
    joined,
    only_first,
    type_rule,
)


@type_rule("Slice", "XlaDynamicSlice")
def cut(op, types):
    """Take a part of each axis."""
    kind = only_first(types)
    if whole(kind):
        return kind
    begins, sizes = op.partial_number(1), op.partial_number(2)
    if begins is None:
        raise Untyped("where it begins is not known while tracing")
    length = op.shape()[kind.axis]
    begin, size = begins[kind.axis], None
    if op.shape_out()[kind.axis] is not None:
        size = op.shape_out()[kind.axis]
    elif sizes is not None:
        size = sizes[kind.axis]
        size = length if size == -1 else size
    if begin == 0 and size is not None and size == length:
        return kind
    return _blocks(kind, begin, size, op.n)


def _blocks(kind, begin, size, n):
    """Return the type of some whole batches of several, one after the other."""
    block = n * kind.rows
    if begin is None or size is None or begin % block or size % block:
        raise Mixes("takes some of the samples")
    if not size:
        raise Mixes("takes none of the samples")
    return At(kind.axis, kind.rows, size // block, kind.flags)


def sliced_axes(op, rank, begins):
    """Yield (input axis or None, output axis or None, k) of a strided slice.

    k is the place in the vectors of beginnings, which are input `begins`;
    None: the axis is taken whole.
    """
    count = op.inputs[begins].shape[0]
    if count is None:
        raise Untyped("how many axes it slices is not known while tracing")
    masks = {
        name: op.attribute(f"{name}_mask")
        for name in ("ellipsis", "new_axis", "shrink_axis")
    }
    source = target = 0
    for k in range(count):
        if masks["ellipsis"] >> k & 1:
            # New axes behind it do not count.
            behind = sum(
                not masks["new_axis"] >> j & 1 for j in range(k + 1, count)
            )
            while source < rank - behind:
                yield source, target, None
                source, target = source + 1, target + 1
        elif masks["new_axis"] >> k & 1:
            yield None, target, k
            target += 1
        elif masks["shrink_axis"] >> k & 1:
            yield source, None, k
            source += 1
        else:
            yield source, target, k
            source, target = source + 1, target + 1
    while source < rank:
        yield source, target, None
        source, target = source + 1, target + 1


@type_rule("StridedSlice")
def strided(op, types):
    """Take a part of each axis, as in Python."""
    kind = only_first(types)
    if whole(kind):
        return kind
    for source, target, k in sliced_axes(op, op.rank(), 1):
        if source != kind.axis:
            continue
        if k is None:
            return kind.on(target)
        if target is None:
            raise Mixes("takes one of the samples")
        steps = op.partial_number(3)
        if steps is None or steps[k] != 1:
            raise Mixes("takes the samples in another order, or some of them")
        length, size = op.shape()[source], op.shape_out()[target]
        if op.attribute("begin_mask") >> k & 1:
            begin = 0
        else:
            begins = op.partial_number(1)
            begin = None if begins is None else begins[k]
            if begin is not None and begin < 0 and length is not None:
                begin += length
        if begin == 0 and op.attribute("end_mask") >> k & 1:
            return kind.on(target)
        ends = op.partial_number(2)
        if op.any_number and ends is not None and ends[k] is not None:
            open_end = op.attribute("end_mask") >> k & 1
            if not open_end and length is not None and ends[k] > length:
                raise Mixes("takes as many of the samples as are given")
        if begin == 0 and size is not None and size == length:
            return kind.on(target)
        return _blocks(kind, begin, size, op.n).on(target)
    raise Untyped("its axes are not known")


@type_rule("StridedSliceGrad")
def strided_gradient(op, types):
    """Put zeros around the gradient of a slice."""
    kind = types[4]
    if any(not isinstance(t, Free) for t in types[:4]):
        raise Mixes("takes sizes or places from the values of the samples")
    if whole(kind):
        return kind
    for source, target, k in sliced_axes(op, op.rank_out(), 1):
        if target is not None and target == kind.axis and source is not None:
            size = op.shape_out()[source]
            if k is None or size == op.shape(4)[target]:
                return kind.on(source)
            begins = op.partial_number(1)
            begin = 0
            if not op.attribute("begin_mask") >> k & 1:
                begin = None if begins is None else begins[k]
            return _among_blocks(kind.on(source), begin, size, op.n)
    raise Mixes("puts samples where one of them was taken")


def _among_blocks(kind, begin, size, n):
    """Return the type of batches that were put among blank ones."""
    block = n * kind.rows
    if begin is None or size is None or begin % block or size % block:
        raise Mixes("puts the samples among others")
    return At(kind.axis, kind.rows, size // block, kind.flags)


@type_rule("XlaDynamicUpdateSlice")
def updated_slice(op, types):
    """Put a part into a tensor, as the gradient of a slice does under XLA.

    XLA moves a part that would reach beyond the end back into the tensor.
    """
    into, part, begins = types
    if not isinstance(begins, Free):
        raise Mixes("takes places from the values of the samples")
    kind = joined(into, part).flagged(begins.flags)
    if whole(kind):
        return kind
    length, size = op.shape()[kind.axis], op.shape(1)[kind.axis]
    if length is not None and size == length:
        return kind
    places = op.partial_number(2)
    begin = None if places is None else places[kind.axis]
    if isinstance(into, Free):
        return _among_blocks(kind, begin, length, op.n)
    block = op.n * kind.rows
    if begin is None or size is None or begin % block or size % block:
        raise Mixes("replaces some of the samples")
    return kind


@type_rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad")
def pad(op, types):
    """Entries before and behind; whole batches along the samples' axis."""
    kind = only_first(types)
    if whole(kind):
        return kind
    before = op.number(1)[kind.axis]
    if not any(before):
        return kind
    if op.type.startswith("Mirror"):
        raise Mixes("mirrors the samples")
    size = op.shape_out()[kind.axis]
    return _among_blocks(kind, int(before[0]), size, op.n)
