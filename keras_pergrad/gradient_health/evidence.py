"""The evidence that readings of a training give to judgements."""

import itertools
import math

_MOMENTS = ("norm", "variance")
# The advised batch takes at most this many times the fewest samples.
SAMPLES = 1.25
FEWEST_RATIOS = 3
# The weights went this part of their length in every update.
PACE = 0.01


def series(readings, name):
    """Return the finite values of a figure over the readings."""
    values = (r.figures.get(name, math.nan) for r in readings)
    return [v for v in values if math.isfinite(v)]


def median(values):
    """Return the median, or NaN of none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def falls(losses):
    """Whether each is below the one before."""
    return all(a > b for a, b in itertools.pairwise(losses))


def layers_of_variables(readings):
    """Return layer path → the places of its variables, in their order."""
    layers = {}
    for k, name in enumerate(readings[-1].variable_names):
        layers.setdefault(name.rpartition("/")[0] or name, []).append(k)
    return layers


def input_scales(readings, fit, places):
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


def trained_part(fit):
    """Return which part of the model's weights is trained, by norm."""
    trained = math.hypot(*fit.weight_norms)
    whole = math.hypot(trained, fit.frozen_norm)
    return trained / whole if whole else 0.0


def fast_way(readings, fit):
    """Return the longest way at `PACE`, by the first norm, and its updates."""
    length = math.hypot(*fit.weight_norms)
    ways = [(0.0, 0)]
    for reading in readings:
        way = reading.figures.get("gradient_distance", math.nan)
        if length and way / length > PACE * reading.step:
            ways.append((way / length, reading.step))
    return max(ways)


def dead(readings):
    """Return the layers without any gradient that end their kind.

    Those before a dead layer get no gradient through it: the last one of
    several in a row is named.
    """
    norms = readings[-1].by_variable.get("norm", ())
    if not norms or not any(norms):
        return []
    layers = layers_of_variables(readings)
    still = [all(norms[k] == 0 for k in places) for places in layers.values()]
    return [
        name
        for name, now, following in zip(layers, still, [*still[1:], False])
        if now and not following
    ]


def layer_ways(readings, fit):
    """Return layer → ‖w − w₀‖ / ‖w₀‖, where both are known."""
    ways = readings[-1].by_variable.get("distance", ())
    if not ways or len(ways) != len(fit.weight_norms):
        return {}
    parts = {}
    for layer, places in layers_of_variables(readings).items():
        length = math.hypot(*(fit.weight_norms[k] for k in places))
        way = math.hypot(*(ways[k] for k in places))
        parts[layer] = way / length if length else 0.0
    return parts


def noise_scale(readings):
    """Return 𝔅 of a training, or None where no signal stands out."""
    ratios = series(readings, "gradient_snr")
    if len(ratios) < FEWEST_RATIOS or sum(ratios) <= 0:
        return None
    return readings[-1].samples * len(ratios) / sum(ratios)


def advised_batch(readings):
    """Return the largest power of 2 within `SAMPLES`, or None."""
    scale = noise_scale(readings)
    if scale is None:
        return None
    return largest_within(scale)


def largest_within(scale):
    """Return the largest power of two within `SAMPLES` of the fewest samples.

    `scale`: the noise scale, in samples.
    """
    return 1 << max(int((SAMPLES - 1) * scale), 1).bit_length() - 1
