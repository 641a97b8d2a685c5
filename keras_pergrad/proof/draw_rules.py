"""The types of random draws, sequences and fills."""

from keras_pergrad.proof.tensor_types import (
    ALL,
    At,
    Free,
    Mixes,
    Untyped,
    flags_of,
    type_rule,
)


@type_rule("LinSpace", "Range", inputs=ALL)
def number_sequence(op, types):
    """Numbers between limits."""
    del op, types
    raise Untyped("its limits follow the samples")


@type_rule("Fill", inputs=1)
def fill(op, types):
    """One number for each entry."""
    return types[1]


#: The places of parameters among the inputs of a draw. One by numbers that are
#: the same for all is `Free`, as any op on them.
_PARAMETERS = {
    "RandomGamma": 1,
    "RandomGammaGrad": (0, 1),
    "RandomPoissonV2": 1,
    "StatelessRandomGammaV2": 2,
    "StatelessRandomGammaV3": 4,
    "StatelessRandomPoisson": 2,
    "StatelessRandomBinomial": (2, 3),
    "StatefulRandomBinomial": (3, 4),
}


@type_rule(*_PARAMETERS, inputs=_PARAMETERS)
def random_draw(op, types):
    """Draw a number for each entry; parameters go along the last axes."""
    rank, places = op.rank_out(), set()
    for k, input_type in enumerate(types):
        if isinstance(input_type, Free):
            continue
        if not isinstance(input_type, At):
            raise Mixes("draws by sums over the samples")
        # `shape` comes before the axes of the parameters of a gamma.
        places.add(
            (input_type.axis - op.rank(k), input_type.rows, input_type.lead)
        )
    if len(places) != 1:
        raise Mixes("brings samples together that are on different axes")
    ((axis, rows, lead),) = places
    return At(rank + axis, rows, lead, flags=flags_of(types))


@type_rule(
    "ParameterizedTruncatedNormal StatelessParameterizedTruncatedNormal",
    inputs=ALL,
)
def truncated_normal(op, types):
    """Draw numbers until they fit, one after the other."""
    raise Mixes("draws again for a sample, which moves the draws of the next")


@type_rule("StatelessMultinomial", inputs=0)
def multinomial(op, types):
    """Classes for each row of logits."""
    input_type = types[0]
    if not isinstance(input_type, At) or input_type.axis != 0:
        raise Mixes("takes the samples for classes")
    return input_type


@type_rule("RandomShuffle", inputs=0)
def shuffle(op, types):
    """Another order along the first axis."""
    input_type = types[0]
    if isinstance(input_type, At) and input_type.axis == 0:
        raise Mixes("shuffles the samples")
    return input_type
