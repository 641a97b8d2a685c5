"""Checks of the arguments of private training."""

import math
import operator
import warnings

import numpy as np

from keras_pergrad.aggregations.clipping import ClippedMean
from keras_pergrad.common.numbers import positive_integer, positive_number
from keras_pergrad.privacy.ledger import Ledger
from keras_pergrad.privacy.mechanism import SAMPLINGS


def check_probability(name, value):
    """Return a number strictly between 0 and 1, or refuse it."""
    if isinstance(value, float) and 0 < value < 1:
        return value
    raise ValueError(
        f"`{name}` must be a number between 0 and 1. Received: {name}={value!r}"
    )


def check_budget(value):
    """Return a budget for epsilon as a float, or None; refuse others."""
    if value is None:
        return None
    return positive_number("target_epsilon", value, " or None")


def check_multiplier(value):
    """Return a noise multiplier as a float, or refuse it."""
    return positive_number(
        "noise_multiplier",
        value,
        " or a schedule: without noise nothing is private",
    )


def check_sampling(value):
    """Return one of `SAMPLINGS`, or refuse the value."""
    if value in SAMPLINGS:
        return value
    raise ValueError(
        f"`sampling` must be one of {SAMPLINGS}. Received: sampling={value!r}"
    )


def check_batch_size(value, examples):
    """Return a batch size, at most the number of examples, or refuse it."""
    size = positive_integer("batch_size", value)
    if size > examples:
        raise ValueError(
            "`batch_size` must be at most the number of examples. Received: "
            f"batch_size={size}, with {examples} examples"
        )
    return size


def planned_steps(epochs, steps, mechanism):
    """Return the number of steps that are planned, or None."""
    if epochs is not None and steps is not None:
        raise ValueError(
            "Expected `epochs` or `steps`. Received: both, "
            f"epochs={epochs!r}, steps={steps!r}"
        )
    if epochs is not None:
        return positive_integer("epochs", epochs) * mechanism.steps_per_epoch
    return None if steps is None else positive_integer("steps", steps)


def check_steps(value):
    """Return a number of steps as an int, or refuse it."""
    if value is None:
        raise ValueError(
            "The number of steps is not known. Expected epsilon(steps), "
            "or PrivateTraining(epochs=...)."
        )
    try:
        steps = operator.index(value)
    except TypeError:
        raise TypeError(
            "Expected epsilon(steps) with a number of steps, or epsilon() for "
            f"all planned ones. Received: {value!r} of type "
            f"{type(value).__name__}. What a model has spent is in "
            "statement(model)['epsilon']."
        ) from None
    if steps < 0:
        raise ValueError(
            "Expected a number of steps that is at least 0. Received: "
            f"epsilon({steps})"
        )
    return steps


def spent_phases(model):
    """Return the phases and the record of a private model; of None none."""
    if model is None:
        return (), None
    ledger = getattr(model, "aggregation_state", None)
    if not isinstance(ledger, Ledger):
        raise ValueError(
            "`continue_from` must be a model that was trained privately. "
            f"Received: continue_from={model!r}"
        )
    return ledger.spent, ledger.record()


def configure_clipping(clipping, clip_norm, noise, seed, size):
    """Return the clipping, with its noise, seed and batch size set."""
    if clipping is None:
        clip_norm = 1.0 if clip_norm is None else clip_norm
        clipping = ClippedMean(clip_norm)
    elif clip_norm is not None:
        raise ValueError(
            "Expected `clip_norm` or `clipping`. Received: both, "
            f"clip_norm={clip_norm!r}, clipping={clipping!r}"
        )
    reserved = ("noise_multiplier", "seed", "expected_batch_size")
    if not isinstance(clipping, ClippedMean) or any(
        getattr(clipping, name) for name in reserved
    ):
        raise ValueError(
            "`clipping` must be a ClippedMean, an AutomaticClippedMean or an "
            "AdaptiveClippedMean, without noise_multiplier, seed and "
            "expected_batch_size, which PrivateTraining gives it. "
            f"Received: clipping={clipping!r}"
        )
    if clipping.clip_norm == math.inf:
        raise ValueError(
            "`clip_norm` must be finite: what is not clipped is not hidden by "
            "any noise. Received: clip_norm=inf"
        )
    config = {
        **clipping.get_config(),
        "noise_multiplier": noise,
        "seed": seed,
        "expected_batch_size": size,
    }
    return type(clipping).from_config(config)


def warn_of_weights(weights):
    """Warn if weights seem to have been divided by their sum."""
    if weights is None or not hasattr(weights, "mean"):
        return
    # In float64, where the squares of large weights are finite.
    weights = np.asarray(weights, "float64")
    mean, spread = float(weights.mean()), float(weights.std())
    total = mean * len(weights)
    if spread > 0 and min(abs(mean - 1), abs(total - 1)) < 1e-6:
        warnings.warn(
            "The sample weights add up to 1, or to their number: if they were "
            "divided by their sum, each depends on other examples, which the "
            "guarantee does not cover. Use weights that follow from each "
            "example alone.",
            stacklevel=4,
        )
