"""Checks of the arguments of private training."""

import dataclasses
import math
import operator
import warnings

import numpy as np

from keras_pergrad.aggregations.clipping import ClippedMean, is_schedule
from keras_pergrad.common.names import require_one_of
from keras_pergrad.common.numbers import positive_integer, positive_number
from keras_pergrad.common.registry import serialize
from keras_pergrad.privacy.clipping_variants import (
    AdaptiveClippedMean,
    AutomaticClippedMean,
)
from keras_pergrad.privacy.correlated_noise import Kind, make_strategy
from keras_pergrad.privacy.ledger import Ledger
from keras_pergrad.privacy.mechanism import BOUNDING
from keras_pergrad.privacy.selections import SAMPLINGS

#: The clippings that are known to keep gradients within `clip_norm`.
_KNOWN = ClippedMean, AutomaticClippedMean, AdaptiveClippedMean
NOISES = INDEPENDENT, CORRELATED = ("independent", "correlated")
#: What is done with the noise of earlier steps → the kind of the strategy.
EARLIER_NOISE: dict[str, Kind] = {"kept": "banded", "redrawn": "banded_inverse"}
#: The numbers of bands that are tried where none is given.
_BANDS = (1, 2, 4, 8, 16, 32)


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


def check_sampling(value, noise):
    """Return one of `SAMPLINGS`, by default what goes with a noise."""
    require_one_of("noise", noise, NOISES)
    if value is None:
        return "poisson" if noise == INDEPENDENT else "cyclic"
    require_one_of("sampling", value, SAMPLINGS)
    return value


def choose_strategy(mechanism, noise, bands, earlier_noise, steps, calibrate):
    """Return the `Strategy` of correlated noise; None if it is independent.

    Args:
        mechanism: the `Mechanism` without it.
        noise, bands, earlier_noise: the arguments of `PrivateTraining`.
        steps: how many are planned, or None.
        calibrate: calibrate(mechanism, is_rough) returns its noise
            multiplier; None if one is given.
    """
    kind = _strategy_kind(mechanism, noise, bands, earlier_noise)
    if kind is None:
        return None
    if steps is None:
        raise ValueError(
            "Correlated noise is planned for a number of steps. Expected "
            "`epochs` or `steps`. Received: neither"
        )
    most = mechanism.examples // mechanism.batch_size
    if kind != "banded":
        most = steps
    elif mechanism.sampling == "ordered":
        most = mechanism.steps_per_epoch
    if bands is not None:
        if positive_integer("bands", bands) > most:
            raise ValueError(
                "An example must be in one batch at most among as many as "
                f"there are bands. Expected `bands` up to {most} with "
                f"sampling={mechanism.sampling!r}, {mechanism.examples} "
                f"examples and batch_size={mechanism.batch_size}. Received: "
                f"bands={bands}"
            )
        return make_strategy(kind, bands, steps)
    if calibrate is None:
        raise ValueError(
            "The number of bands is chosen for a budget. Expected `bands`, or "
            "`target_epsilon` without `noise_multiplier`. Received: bands=None"
        )
    counts = [b for b in _BANDS if b <= min(most, steps)]
    strategies = [make_strategy(kind, count, steps) for count in counts]

    def error(strategy):
        candidate = dataclasses.replace(mechanism, strategy=strategy)
        return calibrate(candidate, is_rough=True) * strategy.mean_error(steps)

    return min(strategies, key=error)


def _strategy_kind(mechanism, noise, bands, earlier_noise):
    """Return the kind of a strategy, or None; refuse what does not fit."""
    require_one_of("earlier_noise", earlier_noise, EARLIER_NOISE)
    kind, sampling = EARLIER_NOISE[earlier_noise], mechanism.sampling
    if noise == INDEPENDENT:
        if bands is not None or kind != "banded":
            raise ValueError(
                "`bands` and `earlier_noise` are those of correlated noise. "
                "Expected noise='correlated' with them. Received: "
                f"noise={noise!r}, bands={bands!r}, "
                f"earlier_noise={earlier_noise!r}"
            )
        if sampling == "cyclic":
            raise ValueError(
                "With independent noise no groups take turns. Expected "
                "sampling='poisson', or noise='correlated'. Received: "
                "sampling='cyclic'"
            )
        return None
    if not mechanism.selection.supports_correlated_noise:
        raise ValueError(
            "The batches of an example must be far enough apart for correlated "
            "noise. Expected sampling='cyclic' or 'ordered', or "
            f"noise='independent'. Received: sampling={sampling!r}"
        )
    if kind != "banded" and sampling != "ordered":
        raise ValueError(
            "Noise that is drawn again in place of kept is accounted for "
            "without amplification by sampling. Expected sampling='ordered', "
            f"or earlier_noise='kept'. Received: sampling={sampling!r}, "
            f"earlier_noise={earlier_noise!r}"
        )
    return kind


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


def configure_clipping(
    clipping, clip_norm, noise, seed, size, is_correlated=False, vouched=()
):
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
    kind = type(clipping).__name__
    if type(clipping) not in _KNOWN and (
        kind not in vouched or kind in BOUNDING
    ):
        raise ValueError(
            f"Nothing proves that {kind} keeps each sample's gradient within "
            f"`clip_norm`. Expected one of {', '.join(BOUNDING)}, or, where "
            f"you know it, vouched=[{kind!r}] beside it (with a name of its "
            "own), which the statement then says. Received: clipping="
            f"{clipping!r}, vouched={list(vouched)}"
        )
    if is_correlated and (
        is_schedule(noise) or isinstance(clipping, AdaptiveClippedMean)
    ):
        received = f"noise_multiplier={noise!r}, clipping={clipping!r}"
        raise ValueError(
            "Correlated noise has one multiplier for all steps, and no other "
            "query beside it. Expected a number for `noise_multiplier` and a "
            f"ClippedMean or an AutomaticClippedMean. Received: {received}"
        )
    if clipping.clip_norm == math.inf:
        raise ValueError(
            "`clip_norm` must be finite: what is not clipped is not hidden by "
            "any noise. Received: clip_norm=inf"
        )
    config = {
        **clipping.get_config(),
        # What is added is made of what is accounted for.
        "noise_multiplier": serialize(noise) if is_schedule(noise) else noise,
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
