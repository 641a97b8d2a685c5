"""Type rules of ops that move, split, join, take or repeat entries."""

from keras_pergrad.proof.elementwise_rules import as_divisor
from keras_pergrad.proof.tensor_types import (
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
    only_first,
    product,
    type_rule,
)


def whole(kind):
    """Whether a type has no axis that an op on shapes could disturb."""
    return not isinstance(kind, At)


@type_rule("Reshape")
def reshape(op, types):
    """Keep the samples apart, if no axis has parts of several."""
    kind = only_first(types)
    if whole(kind):
        return kind
    made = reshaped(kind, op.shape(), op.shape_out(), op.n)
    if op.lengths.primes and not _is_given(op, made.axis):
        _check_what_is_left(op, kind, made)
    return made


def _is_given(op, axis):
    """Whether a size is given, instead of -1."""
    sizes = op.partial_number(1)
    return sizes is not None and sizes[axis] is not None and sizes[axis] >= 0


def _check_what_is_left(op, kind, made):
    """Refuse a samples' axis that is as long as all entries make it.

    That cuts across samples if, for some lengths, the other axes do not divide
    the entries of each. Sizes that are all given must have as many entries.
    """
    before, after = op.shape(), op.shape_out()
    before[kind.axis] = kind.rows * kind.lead
    del after[made.axis]
    tensor, sizes = op.inputs[:2]
    of = None if op.lengths.distinct else tensor.ref()
    same = op.lengths.is_regular(sizes, op.of_tensor, of)
    regular = same or op.lengths.is_regular(sizes, op.of_tensor)
    if not regular or not op.lengths.divides(before, after, same):
        raise Mixes(
            "has -1 in place of the number of samples, which may cut across "
            "them where the length of an axis is not known (give tf.shape(x)"
            "[0], or data of known lengths)"
        )


def reshaped(kind, before, after, n):
    """Return the type of a tensor in another shape; there are n samples."""
    blocks = product(before[: kind.axis]) * kind.lead
    entries = kind.rows * product(before[kind.axis + 1 :])
    outer = 1
    for axis, size in enumerate(after):
        if size is None:
            raise Untyped("a size is not known while tracing")
        if outer * size <= blocks and (n > 1 or outer != blocks):
            outer *= size
            continue
        if blocks % outer or size % (n * (blocks // outer)):
            break
        lead = blocks // outer
        rows = size // (n * lead)
        if rows * product(after[axis + 1 :]) != entries:
            break
        return At(axis, rows, lead, kind.flags)
    raise Mixes("takes the samples' axis apart")


@type_rule("ExpandDims")
def expand(op, types):
    """One more axis."""
    kind = only_first(types)
    if whole(kind):
        return kind
    (axis,) = op.axes(1, op.rank_out())
    return kind.on(kind.axis + (axis <= kind.axis))


@type_rule("Squeeze")
def squeeze(op, types):
    """Fewer axes of size one."""
    kind = types[0]
    if whole(kind):
        return kind
    rank = op.rank()
    axes = [a % rank for a in op.attribute("squeeze_dims")]
    if not axes:
        axes = [k for k, s in enumerate(op.shape()) if s == 1]
        if kind.axis in axes or None in op.shape():
            raise Untyped("which axes it removes follows the sizes")
    if kind.axis in axes:
        raise Mixes("removes the samples' axis")
    return kind.on(kind.axis - sum(a < kind.axis for a in axes))


@type_rule("Transpose", "ConjugateTranspose")
def transpose(op, types):
    """Move the samples' axis to another place."""
    kind = only_first(types)
    if whole(kind):
        return kind
    order = [int(p) for p in op.number(1)]
    return kind.on(order.index(kind.axis))


@type_rule("ConcatV2", "Concat")
def concat(op, types):
    """Tensors beside each other, or batches one after the other."""
    first = op.type == "Concat"
    parts = types[1:] if first else types[:-1]
    places = op.number_or_none(0 if first else len(types) - 1)
    if any(isinstance(t, (Total, Divisor)) for t in parts):
        return _of_sums(parts)
    if places is None:
        raise Untyped("its axis is not known while tracing")
    axis = int(places) % op.rank_out()
    flags = flags_of(parts)
    with_samples = [t for t in parts if isinstance(t, At)]
    if len({t.axis for t in with_samples}) > 1:
        raise Mixes("joins tensors whose samples are on different axes")
    kind = with_samples[0]
    if kind.axis != axis:
        if len({t.place for t in with_samples}) > 1:
            raise Mixes("joins tensors whose samples lie differently")
        return kind.flagged(flags)
    if len(with_samples) < len(parts):
        lengths = [op.shape(k + first)[axis] for k in range(len(parts))]
        for t, length in zip(parts, lengths):
            block = op.n * kind.rows
            if isinstance(t, Free) and (length is None or length % block):
                raise Mixes("adds entries of no sample to the samples")
        with_samples = [
            t
            if isinstance(t, At)
            else At(axis, kind.rows, length // (op.n * kind.rows))
            for t, length in zip(parts, lengths)
        ]
    if len({t.rows for t in with_samples}) > 1:
        raise Mixes("joins batches whose samples lie differently")
    return At(axis, kind.rows, sum(t.lead for t in with_samples), flags)


def _of_sums(parts):
    if any(isinstance(t, At) for t in parts):
        raise Mixes("joins sums over the samples with samples")
    flags = flags_of(parts)
    if any(isinstance(t, Divisor) for t in parts):
        return Divisor(flags)
    return Total(flags)


@type_rule("Pack")
def pack(op, types):
    """One more axis, for the inputs."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        return _of_sums(types)
    places = {t.place for t in types if isinstance(t, At)}
    if len(places) > 1:
        raise Mixes("joins tensors whose samples are on different axes")
    axis = op.attribute("axis") % op.rank_out()
    place, rows, lead = places.pop()
    return At(place + (axis <= place), rows, lead, flags_of(types))


@type_rule("Unpack")
def unpack(op, types):
    """One axis less, in several tensors."""
    (kind,) = types
    if whole(kind):
        return kind
    axis = op.attribute("axis") % op.rank()
    if axis == kind.axis:
        raise Mixes("takes the samples apart")
    return kind.on(kind.axis - (axis < kind.axis))


@type_rule("Split", "SplitV")
def split(op, types):
    """Parts of an axis; whole batches along the samples' axis."""
    value = 1 if op.type == "Split" else 0
    kind = types[value]
    if any(not isinstance(t, Free) for k, t in enumerate(types) if k != value):
        raise Mixes("takes sizes from the values of the samples")
    if whole(kind):
        return kind
    (axis,) = op.axes(0 if op.type == "Split" else 2, op.rank(value))
    if axis != kind.axis:
        return kind
    kinds = []
    for k in range(len(op.outputs)):
        length = op.shape_out(k)[axis]
        if length is None or length % (op.n * kind.rows):
            raise Mixes("takes the samples apart")
        lead = length // (op.n * kind.rows)
        kinds.append(At(axis, kind.rows, lead, kind.flags))
    return kinds


@type_rule("Tile")
def tile(op, types):
    """Repeat along each axis."""
    kind = only_first(types)
    if whole(kind):
        return kind
    size, length = op.shape_out()[kind.axis], op.shape()[kind.axis]
    if size is None or not length:
        raise Untyped("how often it repeats is not known while tracing")
    times = size // length
    return At(kind.axis, kind.rows, kind.lead * times, kind.flags)


@type_rule("BroadcastTo")
def broadcast(op, types):
    """Repeat axes of size one."""
    kind = only_first(types)
    if whole(kind):
        return kind
    return kind.on(kind.axis + op.rank_out() - op.rank())


@type_rule("OneHot")
def one_hot(op, types):
    """One more axis, for the classes."""
    kind = only_first(types)
    if whole(kind):
        as_divisor(op, 0, kind)
        return Divisor(kind.flags)
    axis = op.attribute("axis")
    axis = op.rank() if axis == -1 else axis
    return kind.on(kind.axis + (axis <= kind.axis))


@type_rule("Roll")
def roll(op, types):
    """Shift along axes."""
    kind = only_first(types)
    if whole(kind):
        return kind
    if kind.axis in op.axes(2, op.rank()):
        raise Mixes("shifts the samples")
    return kind


@type_rule("ReverseV2", "Reverse")
def reverse(op, types):
    """Turn axes round."""
    kind = only_first(types)
    if whole(kind):
        return kind
    if kind.axis in op.axes(1, op.rank()):
        raise Mixes("turns the order of the samples round")
    return kind


@type_rule("ReverseSequence")
def reverse_sequence(op, types):
    """Turn the first entries of each row round; lengths by row."""
    if any(not isinstance(t, (Free, At)) for t in types):
        raise Mixes("turns sums over the samples round")
    axis = op.attribute("batch_dim") % op.rank()
    along = op.attribute("seq_dim") % op.rank()
    kind, lengths = types
    if isinstance(kind, At) and kind.axis == along:
        raise Mixes("turns the order of the samples round")
    if isinstance(lengths, At):
        if isinstance(kind, At):
            if kind.axis != axis or kind.place[1:] != lengths.place[1:]:
                raise Mixes("takes lengths of other samples")
            return kind.flagged(lengths.flags)
        return lengths.on(axis)
    return kind


@type_rule("SpaceToBatchND")
def space_to_batch(op, types):
    """Blocks of pixels go before the samples."""
    kind = only_first(types)
    if whole(kind):
        return kind
    size, length = op.shape_out()[0], op.shape()[0]
    if kind.axis != 0 or size is None or not length:
        raise Mixes("takes the samples for pixels")
    return At(0, kind.rows, kind.lead * (size // length), kind.flags)


@type_rule("BatchToSpaceND")
def batch_to_space(op, types):
    """Blocks before the samples go back into their pixels."""
    kind = only_first(types)
    if whole(kind):
        return kind
    size, length = op.shape_out()[0], op.shape()[0]
    if kind.axis != 0 or not size or length is None:
        raise Mixes("takes the samples for pixels")
    times = length // size
    if kind.lead % times:
        raise Mixes("takes pixels of several samples")
    return At(0, kind.rows, kind.lead // times, kind.flags)
