"""The models, modes and optimizers whose samples can be valued."""

import keras

from keras_pergrad.aggregation import Mean
from keras_pergrad.clipping import ClippedMean
from keras_pergrad.keras_internals.callback_list import listed
from keras_pergrad.keras_internals.optimizers import accumulating, all_of
from keras_pergrad.modes.step_readings import require_readable


def require_valued(model, callback, callbacks):
    """Refuse what has no values, before a `fit` begins."""
    others = [c for c in listed(callbacks) if type(c) is type(callback)]
    if len(others) > 1:
        raise ValueError(
            "The values are saved with the model, one a sample. Expected one "
            f"SampleValues in a `fit`. Received: {len(others)}"
        )
    require_readable(model)
    aggregation = model.gradient_mode.aggregation
    if not isinstance(aggregation, (Mean, ClippedMean)):
        raise ValueError(
            "A sample's value is that of its own part of the update. Expected "
            "the aggregation 'mean' or a ClippedMean. Received: "
            f"{aggregation!r}"
        )
    optimizer = accumulating(model.optimizer)
    if optimizer is not None:
        raise ValueError(
            "A sample's value is that of its own step. Expected an optimizer "
            "that updates in each step. Received: gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} in "
            f"{type(optimizer).__name__}"
        )
    inner = [
        o
        for o in all_of(model.optimizer)
        if getattr(o, "inner_optimizer", None) is None
    ]
    if len(inner) != 1:
        raise ValueError(
            "A sample's value needs the learning rate of the step. Expected "
            f"one optimizer. Received: a {type(model.optimizer).__name__} of "
            "several"
        )


def type_of_values(model):
    """Return the type in which values are added up."""
    types = [v.dtype for v in model.trainable_variables]
    is_wide = "float64" in (*types, keras.config.floatx())
    return "float64" if is_wide else "float32"
