"""The steps of a `fit` after which a callback measures."""

import math

from keras_pergrad.common.arguments import positive_integer

# Measurements of a `fit`, for a curve.
_FEWEST = 10


#: What `every` may be instead of a number.
NAMED = "auto", "epoch"


def checked_every(every):
    """Return `every`, if it is a number of steps or one of the names."""
    if every in NAMED:
        return every
    try:
        return positive_integer("every", every)
    except ValueError as error:
        raise ValueError(f"{error}. Or 'auto', or 'epoch'.") from None


def steps_between(every, params):
    """Return after how many updates to measure in an epoch, or None.

    `params` are those that Keras gives to callbacks.
    """
    if isinstance(every, int):
        return every
    epochs, steps = params.get("epochs"), params.get("steps")
    # The number of steps of some data sets is not known.
    if every == "epoch" or not epochs or not steps or steps < 1:
        return None
    measured = math.ceil(_FEWEST / epochs)  # in an epoch
    return math.ceil(steps / measured) if measured > 1 else None
