"""Type rules of ops that reduce, sort or accumulate along axes."""

from keras_pergrad.samples.types.elementwise_rules import as_divisor
from keras_pergrad.samples.types.tensor_types import (
    BY_SIZE,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
)
from keras_pergrad.samples.types.type_rules import type_rule
from keras_pergrad.samples.types.typed_op import only_first

_LINEAR = {"Sum", "Mean"}


@type_rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def reduce(op, types):
    """Reduce some axes."""
    kind = only_first(types)
    if isinstance(kind, Divisor):
        return kind
    if isinstance(kind, Total):
        if op.type in _LINEAR:
            return kind
        return as_divisor(op, 0, kind)
    axes = op.axes(1, op.rank()) if op.rank() else []
    if kind.axis in axes:
        if op.type not in _LINEAR:
            raise Mixes(f"reduces the samples' axis ({op.type})")
        return Total(kind.flags | (BY_SIZE if op.type == "Mean" else 0))
    if op.attribute("keep_dims"):
        return kind
    return kind.on(kind.axis - sum(a < kind.axis for a in axes))


@type_rule("ArgMax", "ArgMin")
def arg(op, types):
    """Find the place of the largest entry along an axis."""
    kind = only_first(types)
    if not isinstance(kind, At):
        return as_divisor(op, 0, kind)
    (axis,) = op.axes(1, op.rank())
    if axis == kind.axis:
        raise Mixes("compares the samples")
    return kind.on(kind.axis - (axis < kind.axis))


@type_rule("Cumsum", "Cumprod", "CumulativeLogsumexp")
def cumulate(op, types):
    """Accumulate along an axis."""
    kind = only_first(types)
    if not isinstance(kind, At):
        return kind if op.type == "Cumsum" else as_divisor(op, 0, kind)
    if kind.axis in op.axes(1, op.rank()):
        raise Mixes("accumulates over the samples")
    return kind


@type_rule(
    "Softmax LogSoftmax TopK TopKV2 InTopK InTopKV2 Multinomial NthElement "
    "CTCGreedyDecoder"
)
def along_the_last(op, types):
    """Something over the last axis."""
    kind = only_first(types) if not op.type.startswith("InTopK") else None
    if kind is None:
        return _in_top(op, types)
    if not isinstance(kind, At):
        return as_divisor(op, 0, kind)
    if kind.axis == op.rank() - 1:
        raise Mixes("compares the samples")
    return kind


def _in_top(op, types):
    with_samples = [t for t in types if isinstance(t, At)]
    if any(not isinstance(t, (At, Free)) for t in types):
        raise Mixes("compares sums over the samples")
    if (
        any(t.axis != 0 for t in with_samples)
        or len({t.place for t in with_samples}) > 1
    ):
        raise Mixes("compares the samples")
    return with_samples[0].flagged(flags_of(types))


@type_rule("LowerBound", "UpperBound")
def sought(op, types):
    """Where numbers are among sorted ones: row by row, each by itself."""
    rows, values = types
    if isinstance(rows, Free) and isinstance(values, At):
        return values.flagged(rows.flags)
    return _in_top(op, types)


@type_rule("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits")
def cross_entropy(op, types):
    """Give a loss for each row, and its gradient."""
    return _in_top(op, types)


@type_rule("L2Loss")
def half_square(op, types):
    """Half the sum of squares: of all entries."""
    (kind,) = types
    if isinstance(kind, At):
        return Total(kind.flags)
    return as_divisor(op, 0, kind)


@type_rule("UniqueV2", "Unique", "UniqueWithCounts", "Where", "ListDiff")
def by_values(op, types):
    """How many entries there are follows their values."""
    raise Mixes("gives as many entries as all samples together have")


@type_rule("DynamicPartition", "DynamicStitch")
def by_place(op, types):
    """Entries go to places that are given by values."""
    raise Mixes("puts entries of all samples together, by their values")


@type_rule("Bincount", "DenseBincount")
def counted(op, types):
    """Count over an axis; over the last one, if there are two."""
    if op.type != "DenseBincount" or not isinstance(types[0], At):
        raise Mixes("counts over the samples")
    kind = types[0]
    if any(not isinstance(t, (Free, At)) for t in types):
        raise Mixes("counts by sums over the samples")
    if not isinstance(types[1], Free):
        raise Mixes("takes sizes from the values of the samples")
    if op.rank() == 1:
        weighted = isinstance(types[2], At) and types[2].place != kind.place
        if weighted:
            raise Mixes("weighs samples by others")
        return Total(flags_of(types))
    if kind.axis != 0:
        raise Mixes("counts over the samples")
    if isinstance(types[2], At) and types[2].place != kind.place:
        raise Mixes("weighs samples by others")
    return kind.flagged(flags_of(types))


@type_rule("LinSpace", "Range")
def range_of(op, types):
    """Numbers between limits."""
    del op, types
    raise Untyped("its limits follow the samples")


@type_rule("Fill")
def fill(op, types):
    """One number for each entry."""
    if not isinstance(types[0], Free):
        raise Mixes("takes sizes from the values of the samples")
    return types[1]
