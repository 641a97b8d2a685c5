"""Layers in which samples meet, to be drawn."""

import re

from tests.hunt import layers

#: Those that a planted fault of a rule needs: without more of them it takes
#: hundreds of draws until one shows.
_OFTEN = {
    layers.Couples: ("softmax",),
    layers.LiesTogether: (
        "shuffled",
        "halves",
        "softmax_second",
        "doubled_concat",
        "delayed",
        "places_before",
        "rows_of_few",
        "rows_of_few",
    ),
    layers.KeepsTogether: ("queued",),
    layers.TurnsTogether: (
        "until_small",
        "sum_of_counts",
        "largest_count",
        "nested_until",
    ),
    layers.ChoosesTogether: ("mean", "any", "largest", "first_row"),
}
#: Layers in which samples meet, for inputs of rank one and of others.
_COUPLED = [
    (cls, form)
    for cls in layers.TOGETHER
    if cls is not layers.IdsTogether
    for form in cls.FORMS + 4 * _OFTEN.get(cls, ())
]
#: Of Keras; the last for inputs of rank one alone.
_COUPLED_KERAS = [
    "L.BatchNormalization()(h)",
    "L.Dense(3, activity_regularizer=keras.regularizers."
    "OrthogonalRegularizer(0.5))(h)",
]


def coupled(draw, shape):
    """An expression in which samples meet, and the shape of its value."""
    if draw.chance(0.07):
        count = 2 if len(shape) == 1 else 1
        made = draw.one(_COUPLED_KERAS[:count])
        return made, (*shape[:-1], 3) if "Dense" in made else shape
    cls, form = draw.one(_COUPLED)
    made = f"{cls.__name__}({form!r})(h)"
    is_forward = cls is not layers.DerivesTogether
    if is_forward and draw.chance(0.6) and not re.match("gradient|loss", form):
        # The way back would show it as well.
        made = f"L.Add()([h, Stops()({made})])"
    return made, shape
