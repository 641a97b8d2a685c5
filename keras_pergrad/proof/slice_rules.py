"""Type rules of ops that take a part of each axis, or put one into zeros."""

from keras_pergrad.proof.op_facts import GIVES_SIZES, IS_GIVEN, SIZE_SUMS, has
from keras_pergrad.proof.shape_rules import has_no_axis
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    At,
    Free,
    Mixes,
    Untyped,
    join_types,
    type_rule,
)


@type_rule("Slice", "XlaDynamicSlice", inputs=0)
def plain_slice(op, types):
    """Take a part of each axis."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    other_axes = [k for k in range(op.rank()) if k != input_type.axis]
    bounds = [(j, k) for j in (1, 2) for k in other_axes]
    input_type = _flag_bounds(op, input_type, bounds)
    begins, sizes = op.partial_number(1), op.partial_number(2)
    if begins is None:
        raise Untyped("where it begins is not known while tracing")
    length = op.shape()[input_type.axis]
    begin, size = begins[input_type.axis], None
    if op.shape_out()[input_type.axis] is not None:
        size = op.shape_out()[input_type.axis]
    elif sizes is not None:
        size = sizes[input_type.axis]
        size = length if size == -1 else size
    if begin == 0 and size is not None and size == length:
        return input_type
    return _batch_range(input_type, begin, size, n=op.n)


def _flag_bounds(op, input_type, bounds):
    """Return the type of a part whose place may follow the number of samples.

    `bounds`: (input, place in it) of each number that bounds another axis.
    """
    flags = 0
    for j, k in bounds:
        bound, numbers = op.inputs[j], op.number_or_none(j)
        if bound.op.type == "Pack":
            bound = bound.op.inputs[k]
        elif (
            has(bound.op, GIVES_SIZES | SIZE_SUMS | IS_GIVEN)
            and numbers is not None
            and numbers[k] % op.n
        ):
            continue  # The size of another axis.
        flags |= op.type_of(bound).flags & BY_SIZE
    return input_type.flagged(flags)


def _batch_range(input_type, begin, size, *, n):
    """Return the type of a range of batches that lie one after the other."""
    block = n * input_type.rows
    if begin is None or size is None or begin % block or size % block:
        raise Mixes("takes some of the samples")
    if not size:
        raise Mixes("takes none of the samples")
    return At(
        input_type.axis, input_type.rows, size // block, flags=input_type.flags
    )


def sliced_axes(op, rank, begins_input):
    """Yield (input axis or None, output axis or None, k) of a strided slice.

    k is the place of the axis in the vector of beginnings, which is input
    `begins_input`; None: the axis is taken whole.
    """
    count = op.inputs[begins_input].shape[0]
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
            later_axes = sum(
                not masks["new_axis"] >> j & 1 for j in range(k + 1, count)
            )
            while source < rank - later_axes:
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


@type_rule("StridedSlice", inputs=0)
def strided_slice(op, types):
    """Take a part of each axis, as in Python."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    bounds = [
        (j, k)
        for source, _, k in sliced_axes(op, op.rank(), 1)
        if source not in (None, input_type.axis) and k is not None
        for j, mask in ((1, "begin_mask"), (2, "end_mask"))
        if not op.attribute(mask) >> k & 1
    ]
    input_type = _flag_bounds(op, input_type, bounds)
    for source, target, k in sliced_axes(op, op.rank(), 1):
        if source != input_type.axis:
            continue
        if k is None:
            return input_type.on(target)
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
            return input_type.on(target)
        ends = op.partial_number(2)
        if op.any_number and ends is not None and ends[k] is not None:
            # An end beyond the samples of this trace would cut larger batches.
            open_end = op.attribute("end_mask") >> k & 1
            if not open_end and length is not None and ends[k] > length:
                raise Mixes("takes as many of the samples as are given")
        if begin == 0 and size is not None and size == length:
            return input_type.on(target)
        return _batch_range(input_type, begin, size, n=op.n).on(target)
    raise Untyped("its axes are not known")


@type_rule("StridedSliceGrad", inputs=4)
def strided_gradient(op, types):
    """Put zeros around the gradient of a slice."""
    input_type = types[4]
    if has_no_axis(input_type):
        return input_type
    for source, target, k in sliced_axes(op, op.rank_out(), 1):
        if (
            target is not None
            and target == input_type.axis
            and source is not None
        ):
            size = op.shape_out()[source]
            if k is None or size == op.shape(4)[target]:
                return input_type.on(source)
            begins = op.partial_number(1)
            begin = 0
            if not op.attribute("begin_mask") >> k & 1:
                begin = None if begins is None else begins[k]
            return _padded_batches(input_type.on(source), begin, size, n=op.n)
    raise Mixes("puts samples where one of them was taken")


def _padded_batches(input_type, begin, size, *, n):
    """Return the type of batches with whole batches of zeros around them."""
    block = n * input_type.rows
    if begin is None or size is None or begin % block or size % block:
        raise Mixes("puts the samples among others")
    return At(
        input_type.axis, input_type.rows, size // block, flags=input_type.flags
    )


@type_rule("XlaDynamicUpdateSlice", inputs=(0, 1))
def updated_slice(op, types):
    """Put a part into a tensor, as the gradient of a slice does under XLA.

    XLA moves a part that would reach beyond the end back into the tensor.
    """
    target_type, part_type, begins = types
    input_type = join_types(target_type, part_type).flagged(begins.flags)
    if has_no_axis(input_type):
        return input_type
    length, size = op.shape()[input_type.axis], op.shape(1)[input_type.axis]
    if length is not None and size == length:
        return input_type
    places = op.partial_number(2)
    begin = None if places is None else places[input_type.axis]
    if isinstance(target_type, Free):
        return _padded_batches(input_type, begin, length, n=op.n)
    block = op.n * input_type.rows
    if begin is None or size is None or begin % block or size % block:
        raise Mixes("replaces some of the samples")
    return input_type


@type_rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad", inputs=0)
def pad(op, types):
    """Entries before and behind; whole batches along the samples' axis."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    widths = op.number(1)[input_type.axis]
    if not any(widths):
        # As many entries as there are samples, along another axis.
        return input_type.flagged(op.type_of(op.inputs[1]).flags & BY_SIZE)
    if op.type.startswith("Mirror"):
        raise Mixes("mirrors the samples")
    size = op.shape_out()[input_type.axis]
    return _padded_batches(input_type, int(widths[0]), size, n=op.n)
