"""The types of ops along an axis: order, scores and counts."""

from keras_pergrad.proof.elementwise_rules import as_divisor
from keras_pergrad.proof.tensor_types import (
    ALL,
    At,
    Free,
    Mixed,
    Mixes,
    Total,
    flags_of,
    type_rule,
)


@type_rule("ArgMax", "ArgMin", inputs=0)
def arg_extreme(op, types):
    """Find the place of the largest entry along an axis."""
    input_type = types[0]
    if not isinstance(input_type, At):
        return as_divisor(op, 0, input_type)
    (axis,) = op.axes(1, op.rank())
    if axis == input_type.axis:
        raise Mixes("compares the samples")
    return input_type.on(input_type.axis - (axis < input_type.axis))


@type_rule("Cumsum", "Cumprod", "CumulativeLogsumexp", inputs=0)
def cumulate(op, types):
    """Accumulate along an axis."""
    input_type = types[0]
    if not isinstance(input_type, At):
        return (
            input_type if op.type == "Cumsum" else as_divisor(op, 0, input_type)
        )
    if input_type.axis in op.axes(1, op.rank()):
        raise Mixes("accumulates over the samples")
    return input_type


@type_rule("Softmax LogSoftmax TopKV2 Multinomial NthElement", inputs=0)
def along_last_axis(op, types):
    """Something over the last axis; the axes before it stay."""
    input_type = types[0]
    if not isinstance(input_type, At):
        return as_divisor(op, 0, input_type)
    if input_type.axis == op.rank() - 1:
        raise Mixes("compares the samples")
    return input_type


@type_rule("CTCGreedyDecoder", inputs=(0, 1))
def greedy_decoder(op, types):
    """Find a path through the steps of each sample, and its score."""
    places = set()
    # The steps come first: (T, n, classes), lengths (n,), scores (n, 1).
    for input_type, axis in zip(types, (1, 0)):
        if isinstance(input_type, Free):
            continue
        if not isinstance(input_type, At) or input_type.axis != axis:
            raise Mixes("compares the samples")
        places.add((0, input_type.rows, input_type.lead))
    if len(places) != 1:
        raise Mixes("takes lengths of other samples")
    score_type = At.placed(places.pop(), flags_of(types))
    return [*[Mixed(op.type, op.op.name, _VALUE_SIZES)] * 3, score_type]


@type_rule("InTopK", "InTopKV2", inputs=(0, 1))
def in_top(op, types):
    """Whether the entry that is named is among the largest of each row."""
    return _row_by_row(op, types)


def _row_by_row(op, types):
    sample_types = [t for t in types if isinstance(t, At)]
    if any(not isinstance(t, (At, Free)) for t in types):
        raise Mixes("compares sums over the samples")
    if (
        any(t.axis != 0 for t in sample_types)
        or len({t.place for t in sample_types}) > 1
    ):
        raise Mixes("compares the samples")
    return sample_types[0].flagged(flags_of(types))


@type_rule("LowerBound", "UpperBound", inputs=ALL)
def search_sorted(op, types):
    """Where numbers are among sorted ones: row by row, each by itself."""
    row_type, value_type = types
    if isinstance(row_type, Free) and isinstance(value_type, At):
        return value_type.flagged(row_type.flags)
    return _row_by_row(op, types)


@type_rule(
    "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
    inputs=ALL,
)
def cross_entropy(op, types):
    """Give a loss for each row, and its gradient."""
    return _row_by_row(op, types)


@type_rule("L2Loss", inputs=0)
def l2_loss(op, types):
    """Halve the sum of the squares of all entries."""
    (input_type,) = types
    if isinstance(input_type, At):
        return Total(input_type.flags)
    return as_divisor(op, 0, input_type)


_VALUE_SIZES = "gives as many entries as all samples together have"


@type_rule("UniqueV2 Unique UniqueWithCounts Where ListDiff", inputs=ALL)
def value_dependent_size(op, types):
    """How many entries there are follows their values."""
    raise Mixes(_VALUE_SIZES)


@type_rule("DynamicPartition", "DynamicStitch", inputs=ALL)
def dynamic_scatter(op, types):
    """Entries go to places that are given by values."""
    raise Mixes("puts entries of all samples together, by their values")


@type_rule("Bincount", "DenseBincount", inputs=(0, 2))
def bincount(op, types):
    """Count over an axis; over the last one, if there are two."""
    if op.type != "DenseBincount" or not isinstance(types[0], At):
        raise Mixes("counts over the samples")
    input_type = types[0]
    if any(not isinstance(t, (Free, At)) for t in types):
        raise Mixes("counts by sums over the samples")
    if op.rank() == 1:
        if op.attribute("binary_output"):
            raise Mixes("tells whether any sample has a number")
        mixes_weights = (
            isinstance(types[2], At) and types[2].place != input_type.place
        )
        if mixes_weights:
            raise Mixes("weighs samples by others")
        return Total(flags_of(types))
    if input_type.axis != 0:
        raise Mixes("counts over the samples")
    if isinstance(types[2], At) and types[2].place != input_type.place:
        raise Mixes("weighs samples by others")
    return input_type.flagged(flags_of(types))
