"""The types of elementwise ops and reductions."""

import bisect

from keras_pergrad.proof.op_facts import (
    DIVIDES,
    IS_CONSTANT,
    LINEAR,
    SCALES,
    SELECTS,
    SUMS,
)
from keras_pergrad.proof.static_numbers import is_zero
from keras_pergrad.proof.tensor_types import (
    ALL,
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
    type_rule,
)

_UNARY = (
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
    "_EagerConst DebugIdentityV2 DebugIdentityV3"
)
_ELEMENTWISE = (
    "Add AddN AddV2 ApproximateEqual Atan2 Betainc BitwiseAnd BitwiseOr "
    "BitwiseXor ClipByValue Complex Div DivNoNan EluGrad Equal FloorDiv "
    "FloorMod Greater GreaterEqual Igamma IgammaGradA Igammac InvGrad "
    "LeakyReluGrad LeftShift Less LessEqual LogicalAnd LogicalOr Maximum "
    "Minimum Mod Mul MulNoNan NextAfter NotEqual Polygamma Pow RealDiv "
    "ReciprocalGrad Relu6Grad ReluGrad RightShift RsqrtGrad Select SelectV2 "
    "SeluGrad SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad SquaredDifference "
    "Sub TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta StringJoin "
    "AccumulateNV2 FakeQuantWithMinMaxArgsGradient"
)
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


@type_rule(_UNARY, inputs=0)
def unary(op, types):
    """Each entry follows from the same entry."""
    (input_type,) = types
    traits = op.facts.traits
    if traits & IS_CONSTANT:
        return Free()
    if isinstance(input_type, Total) and not traits & LINEAR:
        return type_of_totals(op, types)
    if isinstance(input_type, At) and op.type == "Bitcast":
        ranks = op.rank(), op.rank_out()
        if ranks[0] != ranks[1] and input_type.axis >= min(ranks):
            raise Mixes("takes the last axis, that of the samples")
    return input_type


@type_rule(_ELEMENTWISE, inputs=ALL)
def elementwise(op, types):
    """Each entry follows from the same entries, with broadcasting."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        return type_of_totals(op, types)
    return _broadcast_type(op, types)


def _broadcast_type(op, types):
    """Return the type of an output to whose shape the inputs broadcast."""
    rank, places, flags = op.outputs[0].shape.rank, set(), 0
    for k, input_type in enumerate(types):
        flags |= input_type.flags
        if not isinstance(input_type, At):
            continue
        input_rank = op.inputs[k].shape.rank
        if input_rank is None or rank is None:
            raise Untyped(UNKNOWN_RANK)
        if op.type == "Select" and k == 0:
            # One flag for each entry of the first axis, not of the last.
            input_rank = rank
        # Broadcasting aligns the last axes, so places are counted from there.
        places.add(
            (input_type.axis - input_rank, input_type.rows, input_type.lead)
        )
    if len(places) > 1:
        raise Mixes("brings samples together that are on different axes")
    axis, rows, lead = places.pop()
    return At(rank + axis, rows, lead, flags=flags)


def type_of_totals(op, types):
    """Return the type of an elementwise op that takes sums over samples."""
    flags = flags_of(types)
    totals = [t for t in types if isinstance(t, Total)]
    sample_types = [t for t in types if isinstance(t, At)]
    if totals and not sample_types:
        is_linear = all(isinstance(t, (Free, Total)) for t in types)
        if op.facts.traits & SUMS and is_linear:
            return Total(flags)
        if _scales_one_total(op, types):
            return Total(flags | (DIVIDED if len(totals) > 1 else 0))
        if op.facts.traits & SELECTS and not isinstance(types[0], Total):
            return Total(flags)
        gradient_input = _GRADIENTS.get(op.type)
        if (
            is_linear
            and gradient_input is not None
            and totals == [types[gradient_input]]
        ):
            return Total(flags)
    if totals:
        types = [as_divisor(op, k, t) for k, t in enumerate(types)]
    if not sample_types:
        return Divisor(flags_of(types) | DIVIDED)
    return _scaled_samples(op, types)


def _scales_one_total(op, types):
    """Whether one total is multiplied, or divided, by numbers for all."""
    totals = [k for k, t in enumerate(types) if isinstance(t, Total)]
    data_totals = [k for k in totals if types[k].flags & (TRAINED | VALUES)]
    if op.facts.traits & DIVIDES:
        is_scaled = totals == [0] or (0 in data_totals)
    else:
        is_scaled = op.facts.traits & SCALES and (
            len(totals) == 1 or len(data_totals) == 1
        )
    if is_scaled:
        scaled_input = (
            0 if op.facts.traits & DIVIDES else (data_totals or totals)[0]
        )
        for k in totals:
            if k != scaled_input:
                as_divisor(op, k, types[k])
    return is_scaled


def as_divisor(op, k, input_type):
    """Return a sum over the samples as a divisor, if it may be one."""
    if not isinstance(input_type, Total):
        return input_type
    if input_type.flags & (TRAINED | VALUES):
        raise Mixes("uses a sum over the samples for each of them")
    if op.inputs[k].shape.num_elements() != 1:
        raise Mixes("uses sums over the samples for each of them")
    return Divisor(input_type.flags | DIVIDED)


def _scaled_samples(op, types):
    """Return samples times or over a number made of masks and weights."""
    sample_inputs = [k for k, t in enumerate(types) if isinstance(t, At)]
    is_scaled = (
        op.facts.traits & SCALES
        or (op.facts.traits & DIVIDES and sample_inputs == [0])
        or (op.facts.traits & SELECTS and selects_or_zeros(op, types))
    )
    if not is_scaled:
        raise Mixes("uses a sum over the samples for each of them")
    return _broadcast_type(op, types).flagged(DIVIDED)


def selects_or_zeros(op, types):
    """Whether a choice is between one thing and zeros.

    Between two things it would weigh samples unequally, by sums over others.
    """
    return any(
        isinstance(branch_type, Free) and is_zero(branch)
        for branch_type, branch in zip(types[1:], op.inputs[1:])
    )


@type_rule("BiasAdd", "BiasAddV1", inputs=ALL)
def bias_add(op, types):
    """Add the bias along the channels."""
    if isinstance(types[0], At) and isinstance(types[1], Free):
        return types[0].flagged(types[1].flags)
    raise Mixes("adds samples as a bias")


@type_rule("BiasAddGrad", inputs=0)
def bias_gradient(op, types):
    """Sum over all axes but the channels."""
    (input_type,) = types
    if not isinstance(input_type, At):
        return type_of_totals(op, types)
    rank = op.rank()
    is_channels_first = op.attribute("data_format") == b"NCHW"
    if input_type.axis == (1 if is_channels_first else rank - 1):
        raise Mixes("has the samples in place of the channels")
    return Total(input_type.flags)


@type_rule("IdentityN", "ShapeN", inputs=ALL)
def identity_n(op, types):
    """Each output is the input of the same place."""
    return list(types)


@type_rule("Sum Mean Max Min Prod All Any EuclideanNorm", inputs=0)
def reduce(op, types):
    """Reduce some axes."""
    input_type = types[0]
    if isinstance(input_type, Divisor):
        return input_type
    if isinstance(input_type, Total):
        if op.facts.traits & LINEAR:
            return input_type
        return as_divisor(op, 0, input_type)
    axes = op.axes(1, op.rank()) if op.rank() else []
    if input_type.axis in axes:
        if not op.facts.traits & LINEAR:
            raise Mixes(f"reduces the samples' axis ({op.type})")
        return Total(input_type.flags | (BY_SIZE if op.type == "Mean" else 0))
    if op.attribute("keep_dims"):
        return input_type
    axis = input_type.axis
    return input_type.on(axis - bisect.bisect_left(axes, axis))
