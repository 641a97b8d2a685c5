"""The judgements of a training."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from keras_pergrad.gradient_health.evidence import (
    dead,
    falls,
    fast_way,
    input_scales,
    largest_within,
    layer_ways,
    layers_of_variables,
    median,
    noise_scale,
    series,
    trained_part,
)
from keras_pergrad.gradient_health.fit_record import Fit
from keras_pergrad.runs.store import HealthReading


@dataclasses.dataclass(frozen=True)
class HealthAdvice:
    """One piece of advice on a training.

    Attributes:
        name: which one, such as "rate_too_high"; it stays the same.
        text: what was measured, and what to do.
        figures: the numbers that it rests on.
        layer: the path of the layer that it is about, or None.
        is_fault: whether something is wrong; else training is sound, and
            could be cheaper.
    """

    name: str
    text: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    layer: str | None = None
    is_fault: bool = True


# The curvature that a layer sees grows with the square of its inputs: above
# this scale, its largest stable rate is less than a hundredth of that for
# inputs of variance 1 (LeCun et al., "Efficient BackProp", 1998, 4.3).
LARGE_SCALE = 10.0
# Training has had its chance once the weights went this part of their norm, in
# this many readings.
MOVED, FEWEST_READINGS = 0.05, 3
# By chance, a loss with the own labels is the lowest of 100 in 1 % of cases.
CHANCE = 0.01


def summed_loss(fit):
    """Accuse a loss that adds up over the batch."""
    if len(fit.half_losses) != 2 or fit.first_loss is None:
        return []
    whole, halves = fit.first_loss, fit.half_losses
    total = sum(halves)
    # A mean lies between its halves' means, with sample weights, too.
    if not whole > max(halves) or abs(whole - total) > 0.1 * abs(whole):
        return []
    return [
        HealthAdvice(
            "loss_is_a_sum",
            f"The loss of the probe, {whole:.3g}, is the sum of those of its "
            f"halves, {halves[0]:.3g} and {halves[1]:.3g}: gradients and "
            "steps grow with the batch. Use the mean "
            '(reduction="sum_over_batch_size"); in a loss of your own, '
            "ops.mean for ops.sum over the samples.",
            {"loss": whole, "sum_of_halves": total},
        )
    ]


def unnormalised_inputs(readings, fit):
    """Accuse inputs of a large scale that reach a layer unscaled.

    The gradient of a kernel is the layer's input times that of its bias, so
    their ratio shows the scale of what the layer is given.
    """
    if fit.input_scale is None or not fit.input_scale > LARGE_SCALE:
        return []
    for layer, places in layers_of_variables(readings).items():
        seen = median(input_scales(readings, fit, places))
        if seen > LARGE_SCALE:
            return [
                HealthAdvice(
                    "inputs_not_normalised",
                    f"The inputs have the scale {fit.input_scale:.3g} (root "
                    f"mean square), and {layer!r} gets values of the scale "
                    f"{seen:.3g}: its gradients are as many times larger "
                    "than for inputs near 1, its curvature the square of "
                    "that. Scale the inputs to a variance near 1, as with "
                    "keras.layers.Normalization.",
                    {"input_scale": fit.input_scale, "layer_scale": seen},
                    layer,
                )
            ]
    return []


def unrelated_labels(readings, fit):
    """Accuse labels that training has not tied to the inputs."""
    if len(fit.label_losses) < 2 or fit.learned or _is_early(readings, fit):
        return []
    own, *others = fit.label_losses
    better = sum(other <= own for other in others)
    chance = (1 + better) / (1 + len(others))
    if not chance > CHANCE:
        return []
    return [
        HealthAdvice(
            "labels_unrelated",
            f"With labels of other samples the probe's loss is as low: "
            f"{own:.3g} with its own, {median(others):.3g} with others' "
            f"(own or lower in {better} of {len(others)} draws). As far as "
            f"the probe's {readings[-1].samples} samples show, the model has "
            "learned nothing that ties labels to inputs: check that x and y "
            "are shuffled alike, and how labels are made.",
            {"loss": own, "with_other_labels": median(others), "p": chance},
        )
    ]


def _is_early(readings, fit):
    """Whether it is too early to say that nothing is learned."""
    way = readings[-1].figures.get("gradient_distance", math.nan)
    if not way > MOVED * math.hypot(*fit.weight_norms):
        return True
    return len(readings) < FEWEST_READINGS or falls(fit.losses)


# An update that changes weights by this part of themselves replaces them in
# ten updates; a thousandth is usual.
LARGE_UPDATE = 0.1
# The weights have gone as far as they are long, so that nothing is left of how
# they were made.
FAR = 1.0
# The loss would still fall along an update of this many times its length.
LONGER = 20
FEWEST_ALPHAS = 3


def wrong_rate(readings, fit):
    """Accuse the rate by what updates do to the weights and to the loss."""
    return (
        _broken(readings, fit)
        or _too_high(readings, fit)
        or _too_low(readings, fit)
    )


def _broken(readings, fit):
    for reading, loss in zip(readings, fit.losses):
        if not math.isfinite(loss):
            return [
                _high(
                    f"The loss is {loss:g} after {reading.step} updates.",
                    fit,
                    {"step": reading.step, "loss": loss},
                )
            ]
    return []


def _too_high(readings, fit):
    way, step = fast_way(readings, fit)
    # Weights that are made of zeros are replaced by any first update.
    updates = series(readings, "gradient_update_ratio")
    updates = updates if any(fit.weight_norms) else []
    alphas = series(readings, "gradient_alpha")
    loss = f"The loss went from {fit.first_loss:.3g} to {fit.losses[-1]:.3g}"
    largest = max(updates, default=0.0)
    if largest * trained_part(fit) > LARGE_UPDATE or (
        largest > LARGE_UPDATE and not fit.learned
    ):
        why = (
            f"{loss}, while an update changed the weights by "
            f"{largest:.0%} of themselves (usual: about 0.1%)."
        )
    elif fit.learned:
        return []
    elif len(alphas) >= FEWEST_ALPHAS and median(alphas) > 1:
        why = (
            f"{loss}: updates end on the far side of the valley, higher than "
            f"they began (alpha {median(alphas):.2g} in the median)."
        )
    elif way > FAR:
        why = (
            f"{loss}, while the weights went {way:.2g} times as far as they "
            f"were long in {step} updates."
        )
    else:
        return []
    figures = {
        "largest_update_ratio": largest,
        "alpha": median(alphas),
        "distance": way,
    }
    lost = dead(readings)
    if lost:
        why += f" Dead since: {', '.join(map(repr, lost))}."
    return [_high(why, fit, figures)]


def _too_low(readings, fit):
    alphas = series(readings, "gradient_alpha")
    if fit.learned or len(alphas) < FEWEST_ALPHAS:
        return []
    gone = [abs(alpha + 1) for alpha in alphas]
    if not median(gone) < 1 / LONGER:
        return []
    # Without a signal alpha is -1, too. With one, a rate that is too low lets
    # the loss fall all the time.
    if not falls(fit.losses):
        return []
    updates = series(readings, "gradient_update_ratio")
    times = 1 / max(median(gone), 1e-3)
    return [
        HealthAdvice(
            "rate_too_low",
            f"The loss went from {fit.first_loss:.3g} to "
            f"{fit.losses[-1]:.3g}, and would still fall along an update "
            f"of {times:.0f} times its length (alpha {median(alphas):.3f}); "
            f"an update changes the weights by {median(updates):.1e} of "
            f"themselves. Raise the learning rate{_now(fit)}, ten times at "
            "first.",
            {
                "alpha": median(alphas),
                "update_ratio": median(updates),
                "learning_rate": fit.rate or math.nan,
            },
        )
    ]


def _high(why, fit, figures):
    figures = {**figures, "learning_rate": fit.rate or math.nan}
    return HealthAdvice(
        "rate_too_high",
        f"{why} Lower the learning rate{_now(fit)}, ten times at first.",
        figures,
    )


def _now(fit):
    return "" if fit.rate is None else f" ({fit.rate:.2g})"


# Pre-activations change by about as much as the weights do.
CHANGED = 0.1


def not_learning(readings, fit):
    """Accuse layers that no gradient reaches, or next to none."""
    return [
        HealthAdvice(
            "layer_dead",
            f"None of the probe's {readings[-1].samples} samples gives "
            f"{name!r} a gradient: it does not learn, nor does what only it "
            "connects to the loss. A ReLU whose "
            "inputs are all negative does that: make the layer's weights "
            "anew, with zero biases, or use leaky_relu.",
            {"gradient_norm": 0.0},
            name,
        )
        for name in dead(readings)
    ]


def wrongly_trained(readings, fit):
    """Accuse layers that are trained, or frozen, against their weights."""
    return [*_changed(readings, fit), *_frozen(fit)]


def _changed(readings, fit):
    ways = layer_ways(readings, fit)
    # A new layer that stands still sends no gradients into others.
    new = [name for name in fit.untrained if ways.get(name, 0) > 0]
    worst, part = None, CHANGED
    for name in fit.trained_before if new else ():
        if ways.get(name, 0) > part:
            worst, part = name, ways[name]
    if worst is None:
        return []
    return [
        HealthAdvice(
            "trained_layer_changed",
            f"{worst!r} came with trained weights, and this fit has changed "
            f"them by {part:.0%}, by gradients that come through {new[-1]!r}, "
            "whose weights were new: what it knew is being lost. Freeze it "
            "(layer.trainable = False, then compile), train the new layers, "
            "and thaw it later at a hundredth of the rate.",
            {"changed": part},
            worst,
        )
    ]


def _frozen(fit):
    return [
        HealthAdvice(
            "untrained_layer_frozen",
            f"{name!r} is frozen with the weights that it was made with, so "
            "it never learns anything. Set layer.trainable = True, then "
            "compile.",
            {},
            name,
        )
        for name in fit.untrained_frozen
    ]


# The batch size, from the gradient noise scale.
#
# McCandlish et al., "An empirical model of large-batch training", arXiv
# 1812.06162: with the noise scale 𝔅 and the best rate for each batch size B, a
# training to a given loss takes about S (1 + 𝔅 / B) updates and E (1 + B / 𝔅)
# samples, S and E being the fewest. Over a training, 𝔅 is averaged over its
# updates by the way that each goes, 1 / (1 + 𝔅 / B); for B well below 𝔅 this is
# the harmonic mean, n over the mean of the probe's signal to noise ratios.

# A batch is too large where it takes this many times the fewest samples,
# and too small where it takes as many times the fewest updates as the square.
TIMES = 3.0


def batch_size(readings, fit):
    """Advise another batch size where it is far from what the noise asks."""
    scale, size = noise_scale(readings), fit.batch_size
    if scale is None or not size:
        return []
    samples, updates = 1 + size / scale, 1 + scale / size
    advised = largest_within(scale)
    if samples <= TIMES and updates <= TIMES**2:
        return []
    large = samples > TIMES
    text = (
        f"The gradient noise scale is {scale:.0f}: batches of {size} take "
        f"about {samples:.3g} times the fewest samples and {updates:.3g} "
        f"times the fewest updates that reach a loss. Batches of {advised} "
        f"take {1 + advised / scale:.3g} and {1 + scale / advised:.3g} times; "
        f"change the rate by {_rate_factor(fit, advised / size):.2g}."
    )
    return [
        HealthAdvice(
            "batch_too_large" if large else "batch_too_small",
            text,
            {
                "noise_scale": scale,
                "batch_size": size,
                "advised_batch_size": advised,
            },
            is_fault=False,
        )
    ]


def _rate_factor(fit, times):
    """Return the factor of the rate for a batch of so many times the size.

    Linear for SGD; a root where the gradient is divided by its own size
    (Malladi et al., arXiv 2205.10287).
    """
    return times if fit.optimizer == "SGD" else times**0.5


# As many readings in a row must agree.
LAST = 3
# The probe's loss has risen as often in a row, to that much above its least:
# UP 3 and GL 5 of Prechelt, "Early stopping - but when?", 1998.
ABOVE = 1.05


def stop(readings, fit):
    """Advise to stop where the gradient is noise, or the loss rises."""
    if not fit.learned:
        return []
    evidence = series(readings, "gradient_early_stopping")[-LAST:]
    if len(evidence) == LAST and min(evidence) > 0:
        return [
            HealthAdvice(
                "stop",
                f"In the last {LAST} readings the probe's gradient does not "
                "stand out of the noise between samples (evidence "
                f"{min(evidence):.2g} to {max(evidence):.2g}, above 0): the "
                "rest of training fits noise.",
                {"evidence": evidence[-1]},
                is_fault=False,
            )
        ]
    losses = fit.losses
    last = list(itertools.pairwise(losses[-LAST - 1 :]))
    rises = len(last) == LAST and all(a < b for a, b in last)
    if rises and losses[-1] > ABOVE * min(losses):
        best = losses.index(min(losses))
        return [
            HealthAdvice(
                "stop",
                f"The probe's loss was least, {min(losses):.3g}, after "
                f"{readings[best].step} updates, and is {losses[-1]:.3g} "
                "now: the model learns the training samples by heart. Keep "
                "the weights of that time "
                "(keras.callbacks.EarlyStopping(restore_best_weights=True)).",
                {"least_loss": min(losses), "loss": losses[-1]},
                is_fault=False,
            )
        ]
    return []


def advise(readings: Sequence[HealthReading], fit: Fit) -> list[HealthAdvice]:
    """Return the advice on a training, faults first.

    A cause is named instead of what follows from it: where the loss sums over
    the batch, nothing is said of the rate, which it multiplies.
    """
    if not readings or not fit.losses or fit.first_loss is None:
        return []
    causes = [
        *summed_loss(fit),
        *unnormalised_inputs(readings, fit),
    ]
    rate = [] if causes else wrong_rate(readings, fit)
    layers = [] if causes or rate else not_learning(readings, fit)
    origins = wrongly_trained(readings, fit)
    faults = [*causes, *rate, *layers, *origins]
    if not faults:
        faults = unrelated_labels(readings, fit)
    if faults:
        return faults
    return [
        *batch_size(readings, fit),
        *stop(readings, fit),
    ]
