"""The types of elementwise ops, reductions and random draws."""

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.op_facts import op_types
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    DIVIDED,
    TRAINED,
    UNKNOWN_RANK,
    VALUES,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
    only_first,
    type_rule,
)

_UNARY = op_types(
    "Abs Acos Acosh Angle AsString Asin Asinh Atan Atanh BesselI0 BesselI0e "
    "BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 "
    "BesselK1e BesselY0 BesselY1 Bitcast Bucketize Cast Ceil CheckNumerics "
    "CheckNumericsV2 ComplexAbs Conj Cos Cosh Dawsn Digamma Elu EnsureShape "
    "Erf Erfc Erfinv Exp Expint Expm1 FakeQuantWithMinMaxArgs Floor FresnelCos "
    "FresnelSin Identity Imag Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma "
    "Log Log1p LogicalNot Ndtri Neg OnesLike PlaceholderWithDefault "
    "PopulationCount PreventGradient Real Reciprocal Relu Relu6 Rint Round "
    "Rsqrt Selu Sigmoid Sign Sin Sinh Snapshot Softplus Softsign Spence Sqrt "
    "Square StopGradient Tan Tanh ZerosLike StringLower StringUpper "
    "StringStrip StringLength StringToHashBucket StringToHashBucketFast "
    "StringToHashBucketStrong StringToNumber StaticRegexReplace "
    "StaticRegexFullMatch DecodeBase64 EncodeBase64 UnicodeTranscode "
    "_EagerConst DebugIdentityV2 DebugIdentityV3 "
    "FakeQuantWithMinMaxArgsGradient"
)
_SEVERAL = op_types(
    "Add AddN AddV2 ApproximateEqual Atan2 Betainc BitwiseAnd BitwiseOr "
    "BitwiseXor ClipByValue Complex Div DivNoNan EluGrad Equal FloorDiv "
    "FloorMod Greater GreaterEqual Igamma IgammaGradA Igammac InvGrad "
    "LeakyReluGrad LeftShift Less LessEqual LogicalAnd LogicalOr Maximum "
    "Minimum Mod Mul MulNoNan NextAfter NotEqual Polygamma Pow RealDiv "
    "ReciprocalGrad Relu6Grad ReluGrad RightShift RsqrtGrad Select SelectV2 "
    "SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference "
    "Sub TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta StringJoin "
    "AccumulateNV2"
)
#: Linear in each input, and so in a total.
_SUMS = {"Add", "AddN", "AddV2", "Sub", "AccumulateNV2"}
_SAME = op_types(
    "Identity Cast Neg StopGradient PreventGradient CheckNumerics "
    "CheckNumericsV2 EnsureShape Snapshot PlaceholderWithDefault "
    "DebugIdentityV2 DebugIdentityV3 Real Imag Conj"
)
_CONSTANT = {"ZerosLike", "OnesLike"}
_QUOTIENTS = {"RealDiv", "Div", "DivNoNan"}
_PRODUCTS = {"Mul", "MulNoNan"}
_SELECTS = {"Select", "SelectV2"}
#: Linear in one input, the gradient: its place.
_GRADIENTS = {
    "BiasAddGrad": 0,
    "EluGrad": 0,
    "InvGrad": 1,
    "LeakyReluGrad": 0,
    "ReciprocalGrad": 1,
    "Relu6Grad": 0,
    "ReluGrad": 0,
    "RsqrtGrad": 1,
    "SeluGrad": 0,
    "SigmoidGrad": 1,
    "SoftplusGrad": 0,
    "SoftsignGrad": 0,
    "SqrtGrad": 1,
    "TanhGrad": 1,
}


@type_rule(*_UNARY)
def one_tensor(op, types):
    """Each entry follows from the same entry."""
    (kind,) = types[:1]
    if op.type in _CONSTANT:
        return Free()
    if isinstance(kind, Total) and op.type not in _SAME:
        return of_totals(op, types)
    if isinstance(kind, At) and op.type == "Bitcast":
        ranks = op.rank(), op.rank_out()
        if ranks[0] != ranks[1] and kind.axis >= min(ranks):
            raise Mixes("takes the last axis, that of the samples")
    return kind


@type_rule(*_SEVERAL)
def several_tensors(op, types):
    """Each entry follows from the same entries, with broadcasting."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        return of_totals(op, types)
    return _broadcast(op, types)


def _broadcast(op, types):
    """Return the type of entries side by side, the last axes together."""
    rank, places, flags = op.outputs[0].shape.rank, set(), 0
    for k, kind in enumerate(types):
        flags |= kind.flags
        if not isinstance(kind, At):
            continue
        own = op.inputs[k].shape.rank
        if own is None or rank is None:
            raise Untyped(UNKNOWN_RANK)
        if op.type == "Select" and k == 0:
            # One flag for each entry of the first axis, not of the last.
            own = rank
        places.add((kind.axis - own, kind.rows, kind.lead))
    if len(places) > 1:
        raise Mixes("brings samples together that are on different axes")
    axis, rows, lead = places.pop()
    return At(rank + axis, rows, lead, flags)


def of_totals(op, types):
    """Return the type of an elementwise op that takes sums over samples."""
    flags = flags_of(types)
    totals = [t for t in types if isinstance(t, Total)]
    samples = [t for t in types if isinstance(t, At)]
    if totals and not samples:
        plain = all(isinstance(t, (Free, Total)) for t in types)
        if op.type in _SUMS and plain:
            return Total(flags)
        if _scales(op, types):
            return Total(flags | (DIVIDED if len(totals) > 1 else 0))
        if op.type in _SELECTS and not isinstance(types[0], Total):
            return Total(flags)
        at = _GRADIENTS.get(op.type)
        if plain and at is not None and totals == [types[at]]:
            return Total(flags)
    if totals:
        types = [as_divisor(op, k, t) for k, t in enumerate(types)]
    if not samples:
        return Divisor(flags_of(types) | DIVIDED)
    return _divided(op, types)


def _scales(op, types):
    """Whether one total is multiplied, or divided, by numbers for all."""
    totals = [k for k, t in enumerate(types) if isinstance(t, Total)]
    parts = [k for k in totals if types[k].flags & (TRAINED | VALUES)]
    if op.type in _QUOTIENTS:
        fits = totals == [0] or (0 in parts)
    else:
        fits = op.type in _PRODUCTS and (len(totals) == 1 or len(parts) == 1)
    if fits:
        main = 0 if op.type in _QUOTIENTS else (parts or totals)[0]
        for k in totals:
            if k != main:
                as_divisor(op, k, types[k])
    return fits


def as_divisor(op, k, kind):
    """Return a sum over the samples as a divisor, if it may be one."""
    if not isinstance(kind, Total):
        return kind
    if kind.flags & (TRAINED | VALUES):
        raise Mixes("uses a sum over the samples for each of them")
    if op.inputs[k].shape.num_elements() != 1:
        raise Mixes("uses sums over the samples for each of them")
    return Divisor(kind.flags | DIVIDED)


def _divided(op, types):
    """Return samples times or over a number made of masks and weights."""
    at = [k for k, t in enumerate(types) if isinstance(t, At)]
    fits = (
        op.type in _PRODUCTS
        or (op.type in _QUOTIENTS and at == [0])
        or (op.type in _SELECTS and _is_or_zero(op, types))
    )
    if not fits:
        raise Mixes("uses a sum over the samples for each of them")
    return _broadcast(op, types).flagged(DIVIDED)


def _is_or_zero(op, types):
    """Whether a choice is between one thing and zeros.

    Between two things it would weigh samples unequally, by sums over others.
    """
    kinds = types[1:]
    if not any(isinstance(t, Free) for t in kinds):
        return False
    zeros = [
        tf.get_static_value(op.inputs[k + 1])
        for k, t in enumerate(kinds)
        if isinstance(t, Free)
    ]
    return any(z is not None and not np.any(z) for z in zeros)


@type_rule("BiasAdd", "BiasAddV1")
def bias(op, types):
    """Add the bias along the channels."""
    if isinstance(types[0], At) and isinstance(types[1], Free):
        return types[0].flagged(types[1].flags)
    raise Mixes("adds samples as a bias")


@type_rule("BiasAddGrad")
def bias_gradient(op, types):
    """Sum over all axes but the channels."""
    (kind,) = types
    if not isinstance(kind, At):
        return of_totals(op, types)
    rank = op.rank()
    first = op.attribute("data_format") == b"NCHW"
    if kind.axis == (1 if first else rank - 1):
        raise Mixes("has the samples in place of the channels")
    return Total(kind.flags)


@type_rule("IdentityN", "ShapeN")
def side_by_side(op, types):
    """Each output is the input of the same place."""
    return list(types)


def is_true(op):
    """Whether an op compares what can be no NaN with itself.

    `tf.recompute_grad` and `keras.remat` do, to wait for a gradient.
    """
    if op.inputs[0] is not op.inputs[1]:
        return False
    return not (op.inputs[0].dtype.is_floating or op.inputs[0].dtype.is_complex)


# Type rules of ops that reduce, sort or accumulate along axes.


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


# Type rules of random draws whose parameters are of the samples.
#
# A draw by numbers that are the same for all is `Free`, as any op on them.


#: The place of the parameters among the inputs.
_PARAMETERS = {
    "RandomGamma": 1,
    "RandomGammaGrad": 0,
    "RandomPoissonV2": 1,
    "StatelessRandomGammaV2": 2,
    "StatelessRandomGammaV3": 4,
    "StatelessRandomPoisson": 2,
    "StatelessRandomBinomial": 2,
    "StatefulRandomBinomial": 3,
    "ParameterizedTruncatedNormal": 1,
    "StatelessParameterizedTruncatedNormal": 2,
}


@type_rule(*_PARAMETERS)
def draw(op, types):
    """Draw a number for each entry; parameters go along the last axes."""
    first, rank, places = _PARAMETERS[op.type], op.rank_out(), set()
    for k, kind in enumerate(types):
        if isinstance(kind, Free):
            continue
        if k < first or not isinstance(kind, At):
            raise Mixes("takes sizes or seeds from the samples")
        # `shape` comes before the axes of the parameters of a gamma.
        places.add((kind.axis - op.rank(k), kind.rows, kind.lead))
    if len(places) != 1:
        raise Mixes("brings samples together that are on different axes")
    ((axis, rows, lead),) = places
    return At(rank + axis, rows, lead, flags_of(types))


@type_rule("StatelessMultinomial")
def classes(op, types):
    """Classes for each row of logits."""
    kind = types[0]
    if any(not isinstance(t, Free) for t in types[1:]):
        raise Mixes("takes sizes or seeds from the samples")
    if not isinstance(kind, At) or kind.axis != 0:
        raise Mixes("takes the samples for classes")
    return kind


@type_rule("RandomShuffle", "RandomIndexShuffle")
def shuffle(op, types):
    """Another order along the first axis."""
    kind = types[0]
    if isinstance(kind, At) and kind.axis == 0:
        raise Mixes("shuffles the samples")
    return kind
