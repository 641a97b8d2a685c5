"""Advice on a training: rules, each with its premises and its text."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from keras_pergrad.gradient_health.evidence import (
    at_high_rates,
    dead_layers,
    finite_figures,
    is_decreasing,
    largest_batch_within,
    longest_fast_move,
    median,
    moving,
    noise_scale,
    rate_is_rising,
    trained_fraction,
)
from keras_pergrad.gradient_health.fit_record import FitRecord
from keras_pergrad.gradient_health.health_advice import HealthAdvice
from keras_pergrad.runs.figures import NORM
from keras_pergrad.runs.reading import Reading

# An update that changes weights by this share of themselves replaces them in
# ten updates; a thousandth is usual.
LARGE_UPDATE = 0.1
# The weights have moved by their whole norm: nothing is left of how they were
# initialised.
FAR_DISTANCE = 1.0
# The loss would still fall along an update of this many times its length.
LONGER_UPDATE = 20
MIN_ALPHAS = 3
# A batch is too large where it takes this many times the fewest samples,
# and too small where it takes as many times the fewest updates as the square.
MAX_COST_RATIO = 3.0
#: With which power of the batch size the rate goes: linear for SGD; a root
#: where the gradient is divided by its own size (Malladi et al., arXiv
#: 2205.10287). Of other optimizers it is not known.
_RATE_POWERS = {
    "SGD": 1.0,
    **dict.fromkeys(("Adam", "AdamW", "Nadam", "RMSprop"), 0.5),
}


def summed_loss(readings, fit):
    """Find a loss that adds up over the batch."""
    del readings
    if len(fit.half_losses) != 2 or fit.first_loss is None:
        return []
    loss, halves = fit.first_loss, fit.half_losses
    total = sum(halves)
    # A mean lies between its halves' means, with sample weights, too.
    if not loss > max(halves) or abs(loss - total) > 0.1 * abs(loss):
        return []
    return [
        HealthAdvice(
            "loss_is_a_sum",
            f"The loss of the probe, {loss:.3g}, is the sum of the losses of "
            f"its halves, {halves[0]:.3g} and {halves[1]:.3g}: gradients grow "
            "with the batch, and so do steps of SGD. Use the mean "
            '(reduction="sum_over_batch_size"); in a custom loss, '
            "use ops.mean instead of ops.sum over the samples.",
            {"loss": loss, "sum_of_halves": total},
        )
    ]


def diverged(readings, fit):
    """Find a loss that is not finite."""
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


def replaces_weights(readings, fit):
    """Find an update that replaces the weights."""
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
        figures={"largest_update_ratio": largest},
    )


def overshoots(readings, fit):
    """Find updates that end on the far side of the valley."""
    alphas = finite_figures(moving(readings), "gradient_alpha")
    if fit.learned or len(alphas) < MIN_ALPHAS or not median(alphas) > 1:
        return []
    return _too_high(
        "and updates overshoot the minimum so far that the loss ends higher "
        f"than it began (alpha {median(alphas):.2g} in the median).",
        readings,
        fit,
        figures={"alpha": median(alphas)},
    )


def goes_far(readings, fit):
    """Find weights that leave where they were made, for nothing."""
    distance, step = longest_fast_move(readings, fit)
    if fit.learned or not distance > FAR_DISTANCE:
        return []
    return _too_high(
        f"while the weights moved by {distance:.2g} times their own norm in "
        f"{step} updates.",
        readings,
        fit,
        figures={"distance": distance},
    )


def _too_high(observation, readings, fit, *, figures):
    observation = f"{_way_of_the_loss(fit)}, {observation}"
    dead_names = dead_layers(readings)
    if dead_names:
        observation += f" Dead since: {', '.join(map(repr, dead_names))}."
    return [_rate_too_high(observation, fit, figures)]


def too_low(readings, fit):
    """Find updates that are far too short."""
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


def dead_layer(readings, fit):
    """Find layers that no gradient reaches."""
    del fit
    return [
        HealthAdvice(
            "layer_dead",
            f"None of the probe's {readings[-1].samples} samples gives "
            f"{name!r} a gradient: it does not learn, and neither does any "
            "layer that reaches the loss through it alone. A ReLU does this if "
            "all its inputs are negative: initialise the layer again, with "
            "zero biases, or use leaky_relu.",
            {NORM.name: 0.0},
            layer=name,
        )
        for name in dead_layers(readings)
    ]


def batch_size(readings, fit):
    """Find a batch size that is far from the one for the noise scale.

    McCandlish et al., "An empirical model of large-batch training", arXiv
    1812.06162: with the noise scale 𝔅 and the best rate for each batch size B,
    a training to a given loss takes about S (1 + 𝔅 / B) updates and
    E (1 + B / 𝔅) samples, S and E being the fewest. Over a training, 𝔅 is
    averaged over its updates by the way that each goes, 1 / (1 + 𝔅 / B); for B
    well below 𝔅 this is the harmonic mean, n over the mean of the probe's
    signal to noise ratios.
    """
    scale, size = noise_scale(readings), fit.batch_size
    # Below 1 the gradients of all samples are nearly the same, and the size
    # is not the cause.
    if scale is None or not size or scale < 1:
        return []
    samples, updates = 1 + size / scale, 1 + scale / size
    advised = largest_batch_within(scale)
    if samples <= MAX_COST_RATIO and updates <= MAX_COST_RATIO**2:
        return []
    is_too_large = samples > MAX_COST_RATIO
    text = (
        f"The gradient noise scale is {scale:.0f} samples. To reach a loss, "
        f"batches of {size} take about {samples:.2g} times the fewest samples "
        f"and {updates:.2g} times the fewest updates; batches of {advised} "
        f"would take {1 + advised / scale:.2g} times the fewest samples and "
        f"{1 + scale / advised:.2g} times the fewest updates"
        f"{_rate_change(fit, advised / size)}."
    )
    return [
        HealthAdvice(
            "batch_too_large" if is_too_large else "batch_too_small",
            text,
            {
                "noise_scale": scale,
                "batch_size": size,
                "advised_batch_size": advised,
            },
            is_fault=False,
        )
    ]


def _rate_change(fit, size_ratio):
    """Say how the rate goes with a batch of so many times the size."""
    power = _RATE_POWERS.get(fit.optimizer)
    if power is None:
        return ""
    times = size_ratio**power
    return f". With them, multiply the learning rate by {times:.2g}"


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


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of advice.

    Attributes:
        find: a function of (readings, fit) that returns a list of
            `HealthAdvice`, empty where it finds nothing.
        needs: the figures that it reads; without one it is not asked.
        premises: attributes of the `FitRecord` that must all be true.
    """

    find: Callable[..., list[HealthAdvice]]
    needs: tuple[str, ...] = ()
    premises: tuple[str, ...] = ()


#: The rules, causes before what follows from them: where the loss is a sum,
#: nothing is said of the rate, which it multiplies.
RULES = (
    Rule(summed_loss),
    Rule(diverged),
    Rule(
        replaces_weights,
        needs=("gradient_update_ratio",),
        premises=("has_no_noise", "has_single_updates"),
    ),
    Rule(
        overshoots,
        needs=("gradient_alpha",),
        premises=("follows_mean", "has_single_updates"),
    ),
    Rule(
        goes_far,
        needs=("gradient_distance",),
        premises=("follows_mean",),
    ),
    Rule(too_low, needs=("gradient_alpha",), premises=("has_no_noise",)),
    Rule(dead_layer),
    Rule(
        batch_size,
        needs=("gradient_snr",),
        premises=("follows_mean", "learned"),
    ),
)


def advise(readings: Sequence[Reading], fit: FitRecord) -> list[HealthAdvice]:
    """Return what the first rule finds that finds something."""
    if not readings or not fit.losses or fit.first_loss is None:
        return []
    known = {name for reading in readings for name in reading.figures}
    for rule in RULES:
        holds = all(getattr(fit, name) for name in rule.premises)
        if holds and known.issuperset(rule.needs):
            found = rule.find(readings, fit)
            if found:
                return found
    return []
