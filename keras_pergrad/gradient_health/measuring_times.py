"""The times at which `GradientVariance` measures, and on which batch."""

import math
from typing import Any

from keras_pergrad.common.arguments import positive_integer, require_one_of

# Measurements of a `fit`, for a curve.
_MIN_MEASUREMENTS = 10


#: What `every` may be instead of a number.
INTERVAL_NAMES = "auto", "epoch"
_OR_A_NUMBER = " Or give a number of steps, a positive integer."


def parse_every(every) -> Any:
    """Return `every`, if it is a number of steps or one of the names."""
    if isinstance(every, str):
        require_one_of("every", every, INTERVAL_NAMES, advice=_OR_A_NUMBER)
        return every
    return positive_integer("every", every, " or one of 'auto', 'epoch'")


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
    per_epoch = math.ceil(_MIN_MEASUREMENTS / epochs)  # in an epoch
    return math.ceil(steps / per_epoch) if per_epoch > 1 else None


def is_training_source(source):
    """Return whether `source` is the training batch."""
    advice = " 'probe' is a fixed batch, 'training' those that are trained on."
    require_one_of("source", source, ("probe", "training"), advice=advice)
    return source == "training"


def training_instruments(names, requested, *, probe, repeats, log_dir, by_task):
    """Return the instruments that the training batch can give.

    `names`: those that the argument `requested` selects.
    """
    received = None
    if probe is not None:
        received = "a probe, which would not be measured"
    elif repeats != 1:
        received = f"repeats={repeats}, but a step runs once"
    elif by_task:
        received = (
            "by_task=True, which measures the losses of a probe separately"
        )
    elif log_dir is not None:
        received = (
            f"log_dir={log_dir!r}, whose runs are compared on one probe; "
            "one of the kpg.trackers shows this one"
        )
    elif requested != "all" and "alpha" in names:
        received = (
            "'alpha', which needs the same batch once more after the update"
        )
    if received is not None:
        raise ValueError(
            "With source='training' measurements are expected of the step "
            f"that trains, and nothing else. Received: {received}. Leave it "
            "out, or measure with source='probe'."
        )
    return tuple(name for name in names if name != "alpha")


def reading_context(model, reader):
    """Return the context in which a reader reads the steps of a model."""
    read = getattr(model, "read_steps", None)
    if read is None:
        raise ValueError(
            "GradientVariance(source='training') expected a PerGradModel with "
            "gradient_mode='vectorized', as PerGradModel.from_model(model) "
            f"makes one. Received: a {type(model).__name__}. Or measure with "
            "source='probe'."
        )
    steps = int(model.steps_per_execution)
    if steps > 1:
        raise ValueError(
            "GradientVariance(source='training') expected "
            "steps_per_execution=1, or the weights around an update cannot be "
            f"seen. Received: steps_per_execution={steps}. Or measure with "
            "source='probe'."
        )
    return read(reader)
