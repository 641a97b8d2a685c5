"""Type rules of ops that move, split, join, take or repeat entries."""

import numpy as np

from keras_pergrad.proof.elementwise_rules import as_divisor
from keras_pergrad.proof.tensor_types import (
    ALL,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
    product,
    type_rule,
)


def has_no_axis(input_type):
    """Whether a type has no axis that an op on shapes could disturb."""
    return not isinstance(input_type, At)


@type_rule("Reshape", inputs=0)
def reshape(op, types):
    """Keep the samples separate, if no axis has parts of several."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    output_type = reshaped_type(input_type, op.shape(), op.shape_out(), n=op.n)
    if op.lengths.units and not _is_explicit(op, output_type.axis):
        _check_inferred_axis(op, input_type, output_type)
    return output_type


def _is_explicit(op, axis):
    """Whether a size is given, instead of -1."""
    sizes = op.partial_number(1)
    return sizes is not None and sizes[axis] is not None and sizes[axis] >= 0


def _check_inferred_axis(op, input_type, output_type):
    """Refuse a samples' axis whose size is given as -1, if it may mix them.

    It cuts across samples if, for some lengths, the other axes do not divide
    the entries of each sample. Where all sizes are given, TensorFlow checks
    that they have as many entries.
    """
    input_sizes, output_sizes = op.shape(), op.shape_out()
    input_sizes[input_type.axis] = input_type.rows * input_type.lead
    del output_sizes[output_type.axis]
    tensor, sizes = op.inputs[:2]
    are_same = op.lengths.is_regular(sizes, op.value_of, tensor.ref())
    is_regular = are_same or op.lengths.is_regular(sizes, op.value_of)
    if not is_regular or not op.lengths.divides(
        input_sizes, output_sizes, are_same
    ):
        raise Mixes(
            "has -1 in place of the number of samples, which may cut across "
            f"them, since the length of {op.lengths.text(op.lengths.axes)} is "
            "not known: give tf.shape(x)[0] instead of -1, or declare the "
            "length in the signature of the data (tf.TensorSpec, or "
            "`padded_shapes` of padded_batch)"
        )


def reshaped_type(input_type, input_sizes, output_sizes, *, n):
    """Return the type of a tensor in another shape; there are n samples."""
    blocks = product(input_sizes[: input_type.axis]) * input_type.lead
    entries = input_type.rows * product(input_sizes[input_type.axis + 1 :])
    # The entries are blocks x n x entries, in this order. Output axes before
    # that of the samples may take some of the blocks; `outer` counts them.
    outer = 1
    for axis, size in enumerate(output_sizes):
        if size is None:
            raise Untyped("a size is not known while tracing")
        if outer * size <= blocks and (n > 1 or outer != blocks):
            outer *= size
            continue
        if blocks % outer or size % (n * (blocks // outer)):
            break
        lead = blocks // outer
        rows = size // (n * lead)
        if rows * product(output_sizes[axis + 1 :]) != entries:
            break
        return At(axis, rows, lead, flags=input_type.flags)
    raise Mixes("splits the samples' axis")


@type_rule("ExpandDims", inputs=0)
def expand_dims(op, types):
    """One more axis."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    (axis,) = op.axes(1, op.rank_out())
    return input_type.on(input_type.axis + (axis <= input_type.axis))


@type_rule("Squeeze", inputs=0)
def squeeze(op, types):
    """Fewer axes of size one."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    rank = op.rank()
    axes = [a % rank for a in op.attribute("squeeze_dims")]
    if not axes:
        axes = [k for k, s in enumerate(op.shape()) if s == 1]
        if input_type.axis in axes or None in op.shape():
            raise Untyped("which axes it removes follows the sizes")
    if input_type.axis in axes:
        raise Mixes("removes the samples' axis")
    return input_type.on(
        input_type.axis - sum(a < input_type.axis for a in axes)
    )


@type_rule("Transpose", "ConjugateTranspose", inputs=0)
def transpose(op, types):
    """Move the samples' axis to another place."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    order = [int(p) for p in op.number(1)]
    return input_type.on(order.index(input_type.axis))


@type_rule("ConcatV2", inputs=0)
@type_rule("Concat", inputs=1)
def concat(op, types):
    """Tensors beside each other, or batches one after the other."""
    axis_first = op.type == "Concat"
    part_types = types[1:] if axis_first else types[:-1]
    axis_value = op.number_or_none(0 if axis_first else len(types) - 1)
    if any(isinstance(t, (Total, Divisor)) for t in part_types):
        return _type_of_sums(op, types)
    if axis_value is None:
        raise Untyped("its axis is not known while tracing")
    axis = int(axis_value) % op.rank_out()
    flags = flags_of(part_types)
    sample_types = [t for t in part_types if isinstance(t, At)]
    if len({t.axis for t in sample_types}) > 1:
        raise Mixes("joins tensors whose samples are on different axes")
    input_type = sample_types[0]
    if input_type.axis != axis:
        if len({t.place for t in sample_types}) > 1:
            raise Mixes("joins tensors whose samples lie differently")
        return input_type.flagged(flags)
    if len(sample_types) < len(part_types):
        lengths = [
            op.shape(k + axis_first)[axis] for k in range(len(part_types))
        ]
        for t, length in zip(part_types, lengths):
            block = op.n * input_type.rows
            if isinstance(t, Free) and (length is None or length % block):
                raise Mixes("adds entries of no sample to the samples")
        sample_types = [
            t
            if isinstance(t, At)
            else At(axis, input_type.rows, length // (op.n * input_type.rows))
            for t, length in zip(part_types, lengths)
        ]
    if len({t.rows for t in sample_types}) > 1:
        raise Mixes("joins batches whose samples lie differently")
    return At(
        axis, input_type.rows, sum(t.lead for t in sample_types), flags=flags
    )


def _type_of_sums(op, types):
    if any(isinstance(t, At) for t in types):
        raise Mixes("joins sums over the samples with samples")
    if any(isinstance(t, Divisor) for t in types):
        return Divisor(
            flags_of(as_divisor(op, k, t) for k, t in enumerate(types))
        )
    return Total(flags_of(types))


@type_rule("Pack", inputs=ALL)
def pack(op, types):
    """One more axis, for the inputs."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        return _type_of_sums(op, types)
    places = {t.place for t in types if isinstance(t, At)}
    if len(places) > 1:
        raise Mixes("joins tensors whose samples are on different axes")
    axis = op.attribute("axis") % op.rank_out()
    place, rows, lead = places.pop()
    return At(place + (axis <= place), rows, lead, flags=flags_of(types))


@type_rule("Unpack", inputs=0)
def unpack(op, types):
    """One axis less, in several tensors."""
    (input_type,) = types
    if has_no_axis(input_type):
        return input_type
    axis = op.attribute("axis") % op.rank()
    if axis == input_type.axis:
        raise Mixes("splits the samples' axis")
    return input_type.on(input_type.axis - (axis < input_type.axis))


@type_rule("Split", inputs=1)
@type_rule("SplitV", inputs=0)
def split(op, types):
    """Parts of an axis; whole batches along the samples' axis."""
    data_input = 1 if op.type == "Split" else 0
    input_type = types[data_input]
    if has_no_axis(input_type):
        return input_type
    (axis,) = op.axes(0 if op.type == "Split" else 2, op.rank(data_input))
    if axis != input_type.axis:
        return input_type
    output_types = []
    for k in range(len(op.outputs)):
        length = op.shape_out(k)[axis]
        if length is None or length % (op.n * input_type.rows):
            raise Mixes("splits the samples' axis")
        lead = length // (op.n * input_type.rows)
        output_types.append(
            At(axis, input_type.rows, lead, flags=input_type.flags)
        )
    return output_types


@type_rule("Tile", inputs=0)
def tile(op, types):
    """Repeat along each axis."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    size, length = op.shape_out()[input_type.axis], op.shape()[input_type.axis]
    if size is None or not length:
        raise Untyped("how often it repeats is not known while tracing")
    times = size // length
    return At(
        input_type.axis,
        input_type.rows,
        input_type.lead * times,
        flags=input_type.flags,
    )


@type_rule("BroadcastTo", inputs=0)
def broadcast(op, types):
    """Repeat axes of size one."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    return input_type.on(input_type.axis + op.rank_out() - op.rank())


@type_rule("OneHot", inputs=0)
def one_hot(op, types):
    """One more axis, for the classes."""
    input_type = types[0]
    if has_no_axis(input_type):
        return as_divisor(op, 0, input_type)
    axis = op.attribute("axis")
    axis = op.rank() if axis == -1 else axis
    return input_type.on(input_type.axis + (axis <= input_type.axis))


@type_rule("Roll", inputs=0)
def roll(op, types):
    """Shift along axes."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    if input_type.axis in op.axes(2, op.rank()):
        raise Mixes("shifts the samples")
    return input_type


@type_rule("ReverseV2", "Reverse", inputs=0)
def reverse(op, types):
    """Turn axes round."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    if op.type == "Reverse":
        axes = np.flatnonzero(op.number(1))
    else:
        axes = op.axes(1, op.rank())
    if input_type.axis in axes:
        raise Mixes("turns the order of the samples round")
    return input_type


@type_rule("ReverseSequence", inputs=ALL)
def reverse_sequence(op, types):
    """Turn the first entries of each row round; lengths by row."""
    if any(not isinstance(t, (Free, At)) for t in types):
        raise Mixes("turns sums over the samples round")
    batch_axis = op.attribute("batch_dim") % op.rank()
    sequence_axis = op.attribute("seq_dim") % op.rank()
    input_type, lengths = types
    if isinstance(input_type, At) and input_type.axis == sequence_axis:
        raise Mixes("turns the order of the samples round")
    if isinstance(lengths, At):
        if isinstance(input_type, At):
            if (
                input_type.axis != batch_axis
                or input_type.place[1:] != lengths.place[1:]
            ):
                raise Mixes("takes lengths of other samples")
            return input_type.flagged(lengths.flags)
        return lengths.on(batch_axis)
    return input_type


@type_rule("SpaceToBatchND", inputs=0)
def space_to_batch(op, types):
    """Blocks of pixels go before the samples."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    size, length = op.shape_out()[0], op.shape()[0]
    if input_type.axis != 0 or size is None or not length:
        raise Mixes("takes the samples for pixels")
    return At(
        0,
        input_type.rows,
        input_type.lead * (size // length),
        flags=input_type.flags,
    )


@type_rule("BatchToSpaceND", inputs=0)
def batch_to_space(op, types):
    """Blocks before the samples go back into their pixels."""
    input_type = types[0]
    if has_no_axis(input_type):
        return input_type
    size, length = op.shape_out()[0], op.shape()[0]
    if input_type.axis != 0 or not size or length is None:
        raise Mixes("takes the samples for pixels")
    times = length // size
    if input_type.lead % times:
        raise Mixes("takes pixels of several samples")
    return At(
        0, input_type.rows, input_type.lead // times, flags=input_type.flags
    )
