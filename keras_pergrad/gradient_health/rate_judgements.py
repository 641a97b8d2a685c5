"""The judgements of the learning rate."""

import math

from keras_pergrad.gradient_health.evidence import (
    at_high_rates,
    dead_layers,
    finite_figures,
    is_decreasing,
    longest_fast_move,
    median,
    moving,
    rate_is_rising,
    trained_fraction,
)
from keras_pergrad.gradient_health.health_advice import HealthAdvice
from keras_pergrad.gradient_health.premises import (
    follows_the_mean,
    given_where,
    has_no_noise,
    measures_single_updates,
)

# An update that changes weights by this part of themselves replaces them in
# ten updates; a thousandth is usual.
LARGE_UPDATE = 0.1
# The weights have moved by their whole norm: nothing is left of how they were
# initialised.
FAR_DISTANCE = 1.0
# The loss would still fall along an update of this many times its length.
LONGER_UPDATE = 20
MIN_ALPHAS = 3


def wrong_rate(readings, fit):
    """Accuse the rate by what updates do to the weights and to the loss."""
    return next(filter(None, (j(readings, fit) for j in _OF_THE_RATE)), [])


def _diverged(readings, fit):
    if not math.isfinite(fit.first_loss):
        return []  # It is not the updates that have made it so.
    for reading, loss in zip(readings, fit.losses):
        if not math.isfinite(loss):
            return [
                _rate_too_high(
                    f"The loss is {loss:g} after {reading.step} updates. If "
                    "all inputs and targets are finite:",
                    fit,
                    {"step": reading.step, "loss": loss},
                )
            ]
    return []


@given_where(has_no_noise, measures_single_updates)
def _replaces_weights(readings, fit):
    # Weights that are made of zeros are replaced by any first update.
    updates = finite_figures(readings, "gradient_update_ratio")
    largest = max(updates if any(fit.weight_norms) else [], default=0.0)
    if not largest * trained_fraction(fit) > LARGE_UPDATE and not (
        largest > LARGE_UPDATE and fit.follows_mean and not fit.learned
    ):
        return []
    return _too_high(
        f"while an update changed the weights by {largest:.0%} of themselves "
        "(usual: about 0.1%).",
        readings,
        fit,
        {"largest_update_ratio": largest},
    )


@given_where(follows_the_mean, measures_single_updates)
def _overshoots(readings, fit):
    alphas = finite_figures(moving(readings), "gradient_alpha")
    if fit.learned or len(alphas) < MIN_ALPHAS or not median(alphas) > 1:
        return []
    return _too_high(
        "and updates end on the far side of the valley, higher than they "
        f"began (alpha {median(alphas):.2g} in the median).",
        readings,
        fit,
        {"alpha": median(alphas)},
    )


@given_where(follows_the_mean)
def _goes_far(readings, fit):
    distance, step = longest_fast_move(readings, fit)
    if fit.learned or not distance > FAR_DISTANCE:
        return []
    return _too_high(
        f"while the weights went {distance:.2g} times as far as they were "
        f"long in {step} updates.",
        readings,
        fit,
        {"distance": distance},
    )


def _too_high(observation, readings, fit, figures):
    observation = f"{_way_of_the_loss(fit)}, {observation}"
    dead_names = dead_layers(readings)
    if dead_names:
        observation += f" Dead since: {', '.join(map(repr, dead_names))}."
    return [_rate_too_high(observation, fit, figures)]


@given_where(has_no_noise)
def _too_low(readings, fit):
    if fit.learned or rate_is_rising(fit):
        return []
    readings = moving(at_high_rates(readings, fit))
    alphas = finite_figures(readings, "gradient_alpha")
    progress = [abs(alpha + 1) for alpha in alphas]
    if len(alphas) < MIN_ALPHAS or not median(progress) < 1 / LONGER_UPDATE:
        return []
    # Without a signal alpha is -1, too. With one, a rate that is too low lets
    # the loss fall all the time.
    if not is_decreasing(fit.losses):
        return []
    updates = finite_figures(readings, "gradient_update_ratio")
    multiple = 1 / max(median(progress), 1e-3)
    return [
        HealthAdvice(
            "rate_too_low",
            f"{_way_of_the_loss(fit)}, and would still fall along an update "
            f"of {multiple:.0f} times its length (alpha {median(alphas):.3f}); "
            f"an update changes the weights by {median(updates):.1e} of "
            f"themselves. Raise the learning rate{_rate_in_words(fit)}, ten "
            "times at first.",
            {
                "alpha": median(alphas),
                "update_ratio": median(updates),
                "learning_rate": fit.rate or math.nan,
            },
        )
    ]


_OF_THE_RATE = _diverged, _replaces_weights, _overshoots, _goes_far, _too_low


def _way_of_the_loss(fit):
    return f"The loss went from {fit.first_loss:.3g} to {fit.losses[-1]:.3g}"


def _rate_too_high(observation, fit, figures):
    figures = {**figures, "learning_rate": fit.rate or math.nan}
    lower = "lower" if observation.endswith(":") else "Lower"
    return HealthAdvice(
        "rate_too_high",
        f"{observation} {lower} the learning rate{_rate_in_words(fit)}, ten "
        "times at first.",
        figures,
    )


def _rate_in_words(fit):
    if fit.rate is None:
        return ""
    changes = len(set(fit.learning_rates)) > 1
    return f" ({'at most ' if changes else ''}{fit.rate:.2g})"
