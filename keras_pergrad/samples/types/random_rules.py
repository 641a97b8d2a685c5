"""Type rules of random draws whose parameters are of the samples.

A draw by numbers that are the same for all is `Free`, as any op on them.
"""

from keras_pergrad.samples.types.tensor_types import (
    At,
    Free,
    Mixes,
    flags_of,
)
from keras_pergrad.samples.types.type_rules import type_rule

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
