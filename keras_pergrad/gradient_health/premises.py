"""The premises of advice: what the updates of a training follow.

A rule of advice names its premises, and says nothing where one of them does
not hold. They are looked up once, before the first update.
"""

from typing import Any

import keras

from keras_pergrad.aggregations.aggregation import Mean
from keras_pergrad.keras_internals.models.optimizers import (
    accumulating_optimizer,
    nested_optimizers,
)
from keras_pergrad.model.model import PerGradModel

_STEPS = keras.Model.train_step, PerGradModel.train_step
_CLIPPING = "clipnorm", "clipvalue", "global_clipnorm"


def facts_of_updates(model) -> dict[str, Any]:
    """Return the fields of a `FitRecord` that say what updates follow."""
    mode = getattr(model, "gradient_mode", None)
    aggregation = getattr(mode, "aggregation", None)
    nested = list(nested_optimizers(model.optimizer))
    innermost = next(
        o for o in nested if getattr(o, "inner_optimizer", None) is None
    )
    is_clipped = any(
        getattr(o, name, None) for o in nested for name in _CLIPPING
    )
    by_sample = getattr(mode, "updates_by_sample", False)
    return {
        "optimizer": type(innermost).__name__,
        "follows_mean": (
            type(model).train_step in _STEPS
            and (aggregation is None or type(aggregation) is Mean)
            and not getattr(mode, "changes_gradients", False)
            and not by_sample
            and not is_clipped
        ),
        "adds_noise": bool(getattr(aggregation, "adds_noise", False)),
        "has_single_updates": (
            int(model.steps_per_execution) == 1 and not by_sample
        ),
    }


def calls_per_update(model):
    """Return how many batches make an update."""
    optimizer = accumulating_optimizer(model.optimizer)
    calls = getattr(optimizer, "gradient_accumulation_steps", None) or 1
    return calls * getattr(getattr(model, "gradient_mode", None), "steps", 1)
