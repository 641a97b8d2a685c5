"""The evidence that readings of a training give to advice."""

import itertools
import math
import statistics

from keras_pergrad.gradient_health.layer_gradients import layer_of

# The advised batch takes at most this many times the fewest samples.
MAX_SAMPLE_RATIO = 1.25
MIN_RATIOS = 3
# The weights moved by this share of their norm in every update.
FAST_PACE = 0.01


def finite_figures(readings, name):
    """Return the finite values of a figure over the readings."""
    values = (r.figures.get(name, math.nan) for r in readings)
    return [v for v in values if math.isfinite(v)]


def median(values):
    """Return the median, or NaN of none."""
    return statistics.median(values) if values else math.nan


def moving(readings):
    """Return the readings whose update, where it is known, moved weights."""
    # A call that only accumulates makes no update, and its alpha is -1.
    return [r for r in readings if r.figures.get("gradient_update_ratio") != 0]


def at_high_rates(readings, fit):
    """Return the readings at no less than half of the largest rate."""
    if len(fit.learning_rates) != len(readings):
        return readings
    pairs = zip(readings, fit.learning_rates)
    return [r for r, rate in pairs if rate >= fit.rate / 2]


def rate_is_rising(fit):
    """Whether a schedule has not come to its largest rate yet."""
    rates = fit.learning_rates
    return bool(rates) and rates[-1] == max(rates) > max(rates[:-1], default=0)


def is_decreasing(losses):
    """Whether each loss is below the one before."""
    return all(a > b for a, b in itertools.pairwise(losses))


def trained_fraction(fit):
    """Return the norm of the trained weights over that of all weights."""
    trained = math.hypot(*fit.weight_norms)
    total = math.hypot(trained, fit.frozen_norm)
    return trained / total if total else 0.0


def longest_fast_move(readings, fit):
    """Return the longest distance that was gone at `FAST_PACE`, and its step.

    The distance is relative to the norm of the weights at first.
    """
    length = math.hypot(*fit.weight_norms)
    distances = [(0.0, 0)]
    for reading in readings:
        distance = reading.figures.get("gradient_distance", math.nan)
        if length and distance / length > FAST_PACE * reading.step:
            distances.append((distance / length, reading.step))
    return max(distances)


def dead_layers(readings):
    """Return the layers without any gradient, the last of each run of them.

    Layers before a dead one get no gradient through it, so only the last one
    of several in a row is to blame.
    """
    norms = readings[-1].by_variable.get("norm", ())
    if not any(norms):
        return []
    is_dead = {}
    for path, norm in zip(readings[-1].variable_names, norms):
        name = layer_of(path)
        is_dead[name] = is_dead.get(name, True) and norm == 0
    next_is_dead = [*is_dead.values(), False][1:]
    return [
        name
        for (name, dead), next_dead in zip(is_dead.items(), next_is_dead)
        if dead and not next_dead
    ]


def noise_scale(readings):
    """Return 𝔅 of a training, or None where no signal stands out."""
    ratios = finite_figures(readings, "gradient_snr")
    if len(ratios) < MIN_RATIOS or sum(ratios) <= 0:
        return None
    return readings[-1].samples * len(ratios) / sum(ratios)


def largest_batch_within(scale):
    """Return the largest power of two that takes few enough samples.

    At most `MAX_SAMPLE_RATIO` times the fewest: 1 + B / 𝔅 for a batch size B.
    `scale` is the noise scale 𝔅, in samples.
    """
    return 1 << max(int((MAX_SAMPLE_RATIO - 1) * scale), 1).bit_length() - 1
