"""Faults of the data and of the loss: sums, scales, labels."""

import math

from keras_pergrad.analysis.health.judgement import (
    HealthAdvice,
    falls,
    layers_of_variables,
    median,
)

# The curvature that a layer sees grows with the square of its inputs: above
# this scale, its largest stable rate is less than a hundredth of that for
# inputs of variance 1 (LeCun et al., "Efficient BackProp", 1998, 4.3).
LARGE_SCALE = 10.0
_MOMENTS = ("norm", "variance")
# Training has had its chance once the weights went this part of their norm, in
# this many readings.
MOVED, FEWEST = 0.05, 3
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
        seen = median(_scales(readings, fit, places))
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
    return len(readings) < FEWEST or falls(fit.losses)


def _scales(readings, fit, places):
    """Yield the root mean square of what a layer with a bias is given."""
    shapes = [fit.shapes[k] if k < len(fit.shapes) else () for k in places]
    if (
        len(shapes) != 2
        or len(shapes[0]) < 2
        or len(shapes[1]) >= len(shapes[0])
    ):
        return
    size = math.prod(shapes[0]) / math.prod(shapes[1])
    for reading in readings:
        kernel, bias = (_mean_square(reading, k) for k in places)
        if not (kernel > 0 and bias > 0):
            # Killed by the first update, whose parts are in that ratio.
            kernel, bias = (_squared_way(reading, k) for k in places)
        if kernel > 0 and bias > 0:
            yield math.sqrt(kernel / bias / size)


def _mean_square(reading, place):
    """Return the mean of the samples' ‖g_i‖² of a variable, or NaN."""
    n = reading.samples
    norm, variance = (_at(reading, name, place) for name in _MOMENTS)
    return norm**2 + variance * (n - 1) / n


def _squared_way(reading, place):
    return _at(reading, "distance", place) ** 2


def _at(reading, name, place):
    values = reading.by_variable.get(name, ())
    return values[place] if values else math.nan
