"""The judgements of a training."""

import itertools
import math
from collections.abc import Sequence

from keras_pergrad.gradient_health.evidence import (
    dead_layers,
    finite_figures,
    input_scales,
    is_decreasing,
    largest_batch_within,
    layers_of_variables,
    median,
    noise_scale,
    relative_distances,
)
from keras_pergrad.gradient_health.fit_record import FitRecord
from keras_pergrad.gradient_health.health_advice import HealthAdvice
from keras_pergrad.gradient_health.premises import (
    follows_the_mean,
    given_where,
    has_no_noise,
)
from keras_pergrad.gradient_health.rate_judgements import wrong_rate
from keras_pergrad.runs.reading import Reading

# The curvature that a layer sees grows with the square of its inputs: above
# this scale, its largest stable rate is less than a hundredth of that for
# inputs of variance 1 (LeCun et al., "Efficient BackProp", 1998, 4.3).
LARGE_SCALE = 10.0
# Training can be judged once the weights have moved by this share of their
# norm, and there are this many readings.
MOVED_SHARE, MIN_READINGS = 0.05, 3
# By chance, a loss with the own labels is the lowest of 100 in 1 % of cases.
MAX_CHANCE = 0.01


def summed_loss(fit):
    """Accuse a loss that adds up over the batch."""
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
            f"The loss of the probe, {loss:.3g}, is the sum of those of its "
            f"halves, {halves[0]:.3g} and {halves[1]:.3g}: gradients grow "
            "with the batch, and so do steps of SGD. Use the mean "
            '(reduction="sum_over_batch_size"); in a loss of your own, '
            "ops.mean for ops.sum over the samples.",
            {"loss": loss, "sum_of_halves": total},
        )
    ]


def unnormalised_inputs(readings, fit):
    """Accuse inputs of a large scale that reach a layer unscaled.

    The gradient of a kernel is the layer's input times that of its bias, so
    their ratio shows the scale of what the layer is given.
    """
    if fit.input_scale is None or not fit.input_scale > LARGE_SCALE:
        return []
    for layer, indices in layers_of_variables(readings).items():
        layer_scale = median(input_scales(readings, fit, indices))
        if layer_scale > LARGE_SCALE:
            return [
                HealthAdvice(
                    "inputs_not_normalised",
                    f"The inputs have the scale {fit.input_scale:.3g} (root "
                    f"mean square), and {layer!r} gets values of the scale "
                    f"{layer_scale:.3g}: its gradients are as many times "
                    "larger than for inputs near 1, its curvature the square "
                    "of that. Scale the inputs to a variance near 1, as with "
                    f"keras.layers.Normalization.{_private_numbers(fit)}",
                    {
                        "input_scale": fit.input_scale,
                        "layer_scale": layer_scale,
                    },
                    layer,
                )
            ]
    return []


def unscaled_targets(fit, is_fault=True):
    """Name targets of a large scale, which the loss and its gradients have."""
    if not math.hypot(*fit.target_moments) > LARGE_SCALE:
        return []
    mean, deviation = fit.target_moments
    return [
        HealthAdvice(
            "targets_not_scaled",
            f"The targets have the mean {mean:.3g} and the standard deviation "
            f"{deviation:.3g}, while a new model's outputs are near 1 or less: "
            "the gradients grow with the targets, and so does the way that "
            "the weights have to go. Train on (y - mean) / deviation and "
            "scale predictions back, or begin with the mean as the last "
            f"layer's bias.{_private_numbers(fit)}",
            {"target_mean": mean, "target_deviation": deviation},
            is_fault=is_fault,
        )
    ]


def _private_numbers(fit):
    if not fit.is_private:
        return ""
    return (
        " Take the numbers from what is known without the protected data: a "
        "mean of these, or adapt() on them, is not private."
    )


@given_where(follows_the_mean)
def unrelated_labels(readings, fit):
    """Accuse labels that training has not tied to the inputs."""
    if len(fit.label_losses) < 2 or fit.learned or _is_early(readings, fit):
        return []
    own_loss, *other_losses = fit.label_losses
    if own_loss == min(other_losses) == max(other_losses):
        return []  # All samples of the probe have the same labels.
    lower_count = sum(other_loss <= own_loss for other_loss in other_losses)
    chance = (1 + lower_count) / (1 + len(other_losses))
    if not chance > MAX_CHANCE:
        return []
    return [
        HealthAdvice(
            "labels_unrelated",
            f"With labels of other samples the probe's loss is as low: "
            f"{own_loss:.3g} with its own, {median(other_losses):.3g} with "
            f"others' (own or lower in {lower_count} of {len(other_losses)} "
            f"draws). As far as the probe's {readings[-1].samples} samples "
            "show, the model has learned nothing that ties labels to inputs: "
            "check that x and y are shuffled alike, and how labels are made.",
            {
                "loss": own_loss,
                "with_other_labels": median(other_losses),
                "p": chance,
            },
        )
    ]


def _is_early(readings, fit):
    """Whether it is too early to say that nothing is learned."""
    distance = readings[-1].figures.get("gradient_distance", math.nan)
    if not distance > MOVED_SHARE * math.hypot(*fit.weight_norms):
        return True
    return len(readings) < MIN_READINGS or is_decreasing(fit.losses)


# Pre-activations change by about as much as the weights do.
CHANGED_SHARE = 0.1


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
        for name in dead_layers(readings)
    ]


def wrongly_trained(readings, fit):
    """Accuse layers that are trained, or frozen, against their weights."""
    return [*_changed_layers(readings, fit), *_frozen_layers(fit)]


@given_where(has_no_noise)
def _changed_layers(readings, fit):
    distances = relative_distances(readings, fit)
    # A new layer that stands still sends no gradients into others.
    new_layers = [name for name in fit.untrained if distances.get(name, 0) > 0]
    layer, change = None, CHANGED_SHARE
    for name in fit.trained_before if new_layers else ():
        if distances.get(name, 0) > change:
            layer, change = name, distances[name]
    if layer is None:
        return []
    return [
        HealthAdvice(
            "trained_layer_changed",
            f"{layer!r} came with trained weights, and this fit has changed "
            f"them by {change:.0%}, by gradients that come through "
            f"{new_layers[-1]!r}, whose weights were new: what it knew is "
            "being lost. Freeze it (layer.trainable = False, then compile), "
            "train the new layers, "
            "and thaw it later at a hundredth of the rate.",
            {"changed": change},
            layer,
        )
    ]


def _frozen_layers(fit):
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
MAX_COST_RATIO = 3.0


@given_where(follows_the_mean)
def batch_size(readings, fit):
    """Advise another batch size where it is far from what the noise asks."""
    scale, size = noise_scale(readings), fit.batch_size
    if scale is None or not size:
        return []
    if scale < 1:
        return _samples_agree(scale) if fit.target_moments else []
    samples, updates = 1 + size / scale, 1 + scale / size
    advised = largest_batch_within(scale)
    if samples <= MAX_COST_RATIO and updates <= MAX_COST_RATIO**2:
        return []
    is_too_large = samples > MAX_COST_RATIO
    text = (
        f"The gradient noise scale is {scale:.0f}: batches of {size} take "
        f"about {samples:.3g} times the fewest samples and {updates:.3g} "
        f"times the fewest updates that reach a loss. Batches of {advised} "
        f"take {1 + advised / scale:.3g} and {1 + scale / advised:.3g} times"
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


def _samples_agree(scale):
    # Fewer samples than one cannot be advised, and the size is not the cause.
    return [
        HealthAdvice(
            "samples_agree",
            "The gradients of all samples are nearly the same (a noise scale "
            f"of {scale:.2g} samples): the updates learn one constant, such as "
            "the mean of targets that are far from 0. Scale the targets to "
            "mean 0 and variance 1, or begin with their mean as the last "
            "layer's bias.",
            {"noise_scale": scale},
            is_fault=False,
        )
    ]


#: With which power of the batch size the rate goes: linear for SGD; a root
#: where the gradient is divided by its own size (Malladi et al., arXiv
#: 2205.10287). Of other optimizers it is not known.
_RATE_POWERS = {
    "SGD": 1.0,
    **dict.fromkeys(("Adam", "AdamW", "Nadam", "RMSprop"), 0.5),
}


def _rate_change(fit, size_ratio):
    """Say how the rate goes with a batch of so many times the size."""
    power = _RATE_POWERS.get(fit.optimizer)
    if power is None:
        return ""
    return f"; change the rate by {size_ratio**power:.2g}"


# As many readings in a row must agree.
LAST_READINGS = 3
# The probe's loss has risen as often in a row, to that much above its least:
# UP 3 and GL 5 of Prechelt, "Early stopping - but when?", 1998.
LOSS_RISE = 1.05


@given_where(follows_the_mean)
def stop(readings, fit):
    """Advise to stop where the gradient is noise, or the loss rises."""
    if not fit.learned:
        return []
    evidence = finite_figures(readings, "gradient_early_stopping")[
        -LAST_READINGS:
    ]
    if len(evidence) == LAST_READINGS and min(evidence) > 0:
        return [
            HealthAdvice(
                "stop",
                f"In the last {LAST_READINGS} readings the probe's gradient "
                "does not stand out of the noise between samples (evidence "
                f"{min(evidence):.2g} to {max(evidence):.2g}, above 0): the "
                "rest of training fits noise.",
                {"evidence": evidence[-1]},
                is_fault=False,
            )
        ]
    if fit.probe_is_trained:
        return []  # What is learned by heart has a loss that falls.
    losses = fit.losses
    last_pairs = list(itertools.pairwise(losses[-LAST_READINGS - 1 :]))
    is_rising = len(last_pairs) == LAST_READINGS and all(
        a < b for a, b in last_pairs
    )
    if is_rising and losses[-1] > LOSS_RISE * min(losses):
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


def advise(readings: Sequence[Reading], fit: FitRecord) -> list[HealthAdvice]:
    """Return the advice on a training, faults first.

    A cause is named instead of what follows from it: where the loss sums over
    the batch, nothing is said of the rate, which it multiplies; where the
    targets are not scaled, nothing of the rate and the batch. A judgement
    whose premises do not hold says nothing (`premises`).
    """
    if not readings or not fit.losses or fit.first_loss is None:
        return []
    causes = [*summed_loss(fit), *unnormalised_inputs(readings, fit)]
    rate = [] if causes else wrong_rate(readings, fit)
    if rate or not fit.learned:
        causes += unscaled_targets(fit)
    rate = [] if causes else rate
    layers = [] if causes or rate else not_learning(readings, fit)
    wrong_layers = wrongly_trained(readings, fit)
    faults = [*causes, *rate, *layers, *wrong_layers]
    if not faults:
        faults = unrelated_labels(readings, fit)
    if faults:
        return faults
    size = batch_size(readings, fit)
    return [
        *((size and unscaled_targets(fit, is_fault=False)) or size),
        *stop(readings, fit),
    ]
