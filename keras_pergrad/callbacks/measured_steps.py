"""The steps of a `fit` after which a callback measures."""

import math

# Measurements of a `fit`, for a curve.
_FEWEST = 10


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
