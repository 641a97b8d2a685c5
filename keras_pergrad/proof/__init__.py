"""A type for every tensor of a step: where its samples are, and none mixed.

A type says how each entry of a tensor depends on the samples of the batch:
`Free`, `At`, `Total` or `Divisor`. `kpg.extending` has them for type rules of
one's own.
"""

from keras_pergrad.proof import (  # noqa: F401
    axis_rules,
    contraction_rules,
    draw_rules,
    elementwise_rules,
    list_rules,
    lookup_rules,
    shape_rules,
    slice_rules,
    window_rules,
)
from keras_pergrad.proof.tensor_types import (
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
)

__all__ = ["At", "Divisor", "Free", "Mixes", "Total", "Untyped"]
