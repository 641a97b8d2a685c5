"""The figures of gradient health, of one measurement."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.numbers import squared_norm
from keras_pergrad.runs.figures import EQUAL_VARIABLES, REPEAT_DEVIATION


@dataclasses.dataclass(frozen=True)
class InstrumentResult:
    """What an instrument reads of an `Observation`.

    Attributes:
        values: those of its figures, in the order of `FIGURES`.
        by_variable: numbers of each variable, (V,), by name.
        layers: the paths of layers that it names, by what they have.
    """

    values: tuple[float, ...]
    by_variable: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layers: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict
    )


#: The function of each instrument, by its name in `FIGURES`.
READ = {}


def _instrument(name):
    """Register a function from an `Observation` to an `InstrumentResult`."""

    def register(read):
        READ[name] = read
        return read

    return register


def read_basic(observation):
    """Return what every reading has: figures, and numbers by variable.

    With tr Σ and ‖G‖² = ‖ḡ‖² − tr Σ / n, which estimates the squared norm of
    the true gradient without bias and may be negative:

        noise scale: tr Σ / ‖G‖², where ‖G‖² is positive
        SNR:         ‖G‖² / (tr Σ / n), where tr Σ is positive
    """
    squares = np.append(observation.squared_means, observation.squared_mean)
    each = {"norm": np.sqrt(squares)}
    if observation.traces is not None:
        traces = np.append(observation.traces, observation.trace)
        with np.errstate(invalid="ignore", over="ignore"):
            noise = traces / observation.samples
            true = squares - noise
            each["variance"] = traces
            each["noise_scale"] = traces / np.where(true > 0, true, np.nan)
            each["snr"] = true / np.where(traces > 0, noise, np.nan)
    figures = {f"gradient_{name}": float(v[-1]) for name, v in each.items()}
    by_variable = {name: values[:-1] for name, values in each.items()}
    if observation.repeats is not None:
        by_variable["repeat_deviation"] = observation.repeats.deviations
        figures[REPEAT_DEVIATION.name] = observation.repeats.deviation
        equal = observation.repeats.equal_variables
        figures[EQUAL_VARIABLES.name] = equal
    return figures, by_variable


# The norm, inner-product and orthogonality test of a batch's size.
#
# Bollapragada, Byrd, Nocedal, "Adaptive sampling strategies for stochastic
# optimization", arXiv 1710.11258. Each is given as the smallest bound by which
# the batch passes. With n samples' gradients g_i and their mean ḡ:
#
#     norm:          √(Σ ‖g_i − ḡ‖² / (n (n − 1))) / ‖ḡ‖
#     inner product: √(Σ (⟨g_i, ḡ⟩ − ‖ḡ‖²)² / (n (n − 1))) / ‖ḡ‖²
#     orthogonality: √(Σ ‖g_i − ⟨g_i, ḡ⟩ ḡ / ‖ḡ‖²‖² / (n (n − 1))) / ‖ḡ‖
#
# The squares of the last two add up to that of the first. All are NaN where ḡ
# is zero.


@_instrument("norm_test")
def norm_test(observation):
    """Return the bound of the norm test, also of each variable."""
    pairs = zip(
        observation.traces / observation.samples, observation.squared_means
    )
    bound = _root_ratio(
        observation.trace / observation.samples, observation.squared_mean
    )
    return InstrumentResult(
        (bound,),
        {"norm_test": [_root_ratio(*pair) for pair in pairs]},
    )


@_instrument("inner_product_test")
def inner_product_test(observation):
    """Return the bound of the inner-product test."""
    squared_mean = observation.squared_mean
    variance = np.square(observation.dots - squared_mean).sum() / (
        observation.samples * (observation.samples - 1)
    )
    return InstrumentResult((_root_ratio(variance, squared_mean**2),))


@_instrument("orthogonality_test")
def orthogonality_test(observation):
    """Return the bound of the orthogonality test."""
    squared_mean = observation.squared_mean
    with np.errstate(divide="ignore", invalid="ignore"):
        orthogonal = (
            observation.squared_norms
            - np.square(observation.dots) / squared_mean
        )
    # Rounding can leave a tiny negative number.
    orthogonal = np.maximum(orthogonal, 0).sum() / (
        observation.samples * (observation.samples - 1)
    )
    return InstrumentResult((_root_ratio(orthogonal, squared_mean),))


def _root_ratio(numerator, denominator):
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bound = np.sqrt(np.float64(numerator) / np.float64(denominator))
    return float(bound) if denominator else float("nan")


# CABS: the batch size that goes with a learning rate.
#
# Balles, Romero, Hennig, "Coupling adaptive batch sizes with learning rates",
# arXiv 1612.05086: rate · tr Σ / loss, for plain SGD and a loss whose least
# value is about 0. Σ is the biased covariance, with 1 / n.


@_instrument("cabs")
def cabs(observation):
    """Return the number of samples that CABS advises."""
    biased_trace = (
        observation.trace * (observation.samples - 1) / observation.samples
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        size = (
            observation.learning_rate
            * biased_trace
            / np.float64(observation.data_loss)
        )
    return InstrumentResult((float(size),))


# The signal to noise ratio of single weights, and the evidence in it.
#
# Of weight k, with the mean ḡ_k and the variance σ_k² (with 1 / n) of its n
# samples' gradients:
#
#     r_k = ḡ_k² / σ_k²
#
# Its mean over the weights is the signal to noise ratio of Liu et al.,
# "Understanding why neural networks generalize well through GSNR of
# parameters", arXiv 2001.07384. Mahsereci et al., "Early stopping without a
# validation set", arXiv 1703.09580, stop once
#
#     1 − (1 / D) Σ_k n ḡ_k² / σ̂_k²  =  1 − (n − 1) · mean(r_k)
#
# exceeds 0, σ̂_k² with 1 / (n − 1). Weights without any gradient, such as
# embeddings of words that the samples do not have, are left out of both; so are
# those whose gradient is rounding, as that of an attention's key bias.

#: A variance below this share of the mean square is rounding.
ROUNDING_SHARE = 1e-6
#: A gradient below so many rounding units of the largest one is rounding, too.
ROUNDING_UNITS = 16


def snr_sums(means, squares, n):
    """Return Σ r_k of each variable, and of how many weights, (V, 2).

    `squares` are Σ_i g_ik², in the variables' shapes.
    """
    largest = tf.reduce_max(tf.stack([tf.reduce_max(s) for s in squares]))
    epsilon = 2**-52 if largest.dtype == tf.float64 else 2**-23
    threshold = largest * (ROUNDING_UNITS * epsilon) ** 2
    return tf.stack(
        [
            _variable_ratios(*moments, n, threshold)
            for moments in zip(means, squares)
        ]
    )


def _variable_ratios(mean, squares, n, threshold):
    second_moment = squares / tf.cast(n, squares.dtype)
    signal = tf.square(tf.cast(mean, squares.dtype))
    noise = tf.maximum(second_moment - signal, ROUNDING_SHARE * second_moment)
    # Not `squares > threshold`: NaN must count, and show in the figure.
    has_gradient = tf.logical_not(squares <= threshold)
    ratio = tf.where(has_gradient, signal / tf.where(has_gradient, noise, 1), 0)
    count = tf.reduce_sum(tf.cast(has_gradient, squares.dtype))
    return tf.stack([tf.reduce_sum(ratio), count])


@_instrument("snr_by_weight")
def signal_to_noise(observation):
    """Return the mean of r_k over all weights, and over each variable's."""
    return InstrumentResult(
        (float(_mean(observation.ratios.sum(0))),),
        {"snr_by_weight": _mean(observation.ratios)},
    )


@_instrument("early_stopping")
def stopping_evidence(observation):
    """Return the criterion of Mahsereci et al., also of each variable."""
    n = observation.samples
    return InstrumentResult(
        (float(1 - (n - 1) * _mean(observation.ratios.sum(0))),),
        {"early_stopping": 1 - (n - 1) * _mean(observation.ratios)},
    )


def _mean(sums):
    """Return the mean from `snr_sums`, (..., 2); NaN: of no weight."""
    total, count = np.moveaxis(sums, -1, 0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def squared_distances(weights, others):
    """Return ‖w − w'‖² and ‖w'‖² of each variable, (V, 2)."""
    return np.array(
        [
            [squared_norm(w, other), squared_norm(other)]
            for w, other in zip(weights, others)
        ]
    ).reshape(-1, 2)


@_instrument("update_ratio")
def update_ratio(observation):
    """Return ‖Δw‖ / ‖w‖ of the last update; NaN where ‖w‖ was 0."""
    total, each = _total_and_each(observation.update)
    return InstrumentResult(
        (float(_root_ratios(*total)),), {"update_ratio": _root_ratios(*each)}
    )


@_instrument("distance")
def distance(observation):
    """Return ‖w − w₀‖, the distance from where training began."""
    (total, _), (each, _) = _total_and_each(observation.distance)
    return InstrumentResult(
        (float(np.sqrt(total)),), {"distance": np.sqrt(each)}
    )


def _total_and_each(squares):
    return squares.sum(0), squares.T


def _root_ratios(numerator, denominator):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            denominator > 0, np.sqrt(numerator / denominator), np.nan
        )


# Alpha: where an update went on the local quadratic of the loss.
#
# Schneider et al., "Cockpit", arXiv 2102.06604: along the update d, between the
# weights before and after it, the parabola is fitted to loss and slope at both
# ends, each weighed by the inverse of its variance between samples. Then
#
#     alpha = 2 · (length of the update) / (twice the way to the minimum) − 1
#
# -1: the weights stand still, or the parabola bends down; 0: the update went to
# the minimum; 1: it went to the other side, as high as it began. Below -1: it
# went up from the start.

#: Stands for a variance of zero, in units of the largest: weights stay finite.
MIN_VARIANCE = 1e-10


@_instrument("alpha")
def alpha(observation):
    """Return alpha of the last update."""
    length = float(np.sqrt(observation.update[:, 0].sum()))
    if length == 0:
        return InstrumentResult((-1.0,))
    ends = observation.start, observation.end
    slopes = [end.slopes / length for end in ends]
    value = fit_alpha(
        length,
        losses=[end.loss for end in ends],
        slopes=[slope.mean() for slope in slopes],
        loss_variances=[end.losses.var(ddof=1) for end in ends],
        slope_variances=[slope.var(ddof=1) for slope in slopes],
    )
    return InstrumentResult((value,))


def fit_alpha(length, *, losses, slopes, loss_variances, slope_variances):
    """Return alpha, of pairs (before, after).

    `length` is ‖d‖; slopes are along d / ‖d‖; variances those of one sample.
    """
    # A parabola f(u) = a u² + b u + c in units of the update, fitted to f(0),
    # f(1), f'(0) and f'(1): one row each.
    design = np.array([[0, 0, 1], [1, 1, 1], [0, 1, 0], [2, 1, 0]], np.float64)
    values = np.array([*losses, *(length * s for s in slopes)], np.float64)
    noise = np.array([*loss_variances, *slope_variances], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        noise[2:] *= length**2
    if not np.isfinite([*values, *noise]).all():
        return float("nan")
    noise = np.where(noise > 0, noise, MIN_VARIANCE * noise.max() or 1.0)
    weights = 1 / np.sqrt(noise / noise.max())
    solution = np.linalg.lstsq(
        design * weights[:, None], values * weights, rcond=None
    )
    curvature, slope, _ = solution[0]
    if curvature < 0:
        return -1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(-2 * curvature / slope - 1)


_UNIT_LAYERS = (
    keras.layers.Dense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
)


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of a Dense or Conv layer: the last axis of its variables.

    Attributes:
        path: the layer's path.
        variables: the places of its kernel and bias in
            `model.trainable_variables`.
        count: how many it has.
    """

    path: str
    variables: tuple[int, ...]
    count: int


def find_units(layers, trainable):
    """Return the `Units` of all layers that have some and train them."""
    indices = {id(v): k for k, v in enumerate(trainable)}
    units = []
    for layer in layers:
        if not isinstance(layer, _UNIT_LAYERS) or not layer.built:
            continue
        variables = [v for v in layer.trainable_variables if id(v) in indices]
        size = getattr(layer, "units", None) or getattr(layer, "filters", None)
        variables = [v for v in variables if v.shape[-1:] == (size,)]
        if size and variables:
            path = variables[0].path.rpartition("/")[0]
            units.append(
                Units(path, tuple(indices[id(v)] for v in variables), int(size))
            )
    return units


def count_dead(units, squares):
    """Return how many units of a layer get no gradient from any sample.

    `squares`: by variable Σ_i g_i², in its shape.
    """
    totals = [
        tf.reduce_sum(squares[k], list(range(squares[k].shape.rank - 1)))
        for k in units.variables
    ]
    return tf.reduce_sum(tf.cast(tf.equal(tf.add_n(totals), 0), tf.int32))


@_instrument("dead_units")
def dead_units(observation):
    """Return the fraction of dead units, of all and of each layer's.

    A layer is named where all its units are dead.
    """
    of_variables = np.full(len(observation.names), np.nan)
    dead = ()
    for units, count in zip(observation.units, observation.dead):
        of_variables[list(units.variables)] = count / units.count
        if count == units.count:
            dead = (*dead, units.path)
    total = sum(units.count for units in observation.units)
    fraction = (
        float(np.sum(observation.dead)) / total if total else float("nan")
    )
    return InstrumentResult(
        (fraction,),
        {"dead_units": of_variables},
        {"dead": dead},
    )


# Layers whose gradient vanishes or explodes.
#
# A layer's gradient is measured by its weights: q = ‖ḡ‖ / ‖w‖ over all its
# variables. It vanishes where q is less than 1e-4 of the median of the layers,
# and explodes where q exceeds 1e3, so that a rate of 1e-3 would replace the
# weights, or is not finite.

VANISHING = 1e-4
EXPLODING = 1e3


@_instrument("layers")
def layers(observation):
    """Return how many layers vanish and explode, and which."""
    ratios = relative_gradients(observation)
    finite_ratios = [q for q in ratios.values() if math.isfinite(q)]
    limit = (
        VANISHING * float(np.median(finite_ratios)) if finite_ratios else 0.0
    )
    vanishing = tuple(name for name, q in ratios.items() if q < limit)
    exploding = tuple(name for name, q in ratios.items() if q > EXPLODING)
    return InstrumentResult(
        (float(len(vanishing)), float(len(exploding))),
        {"relative_gradient": [ratios[layer_of(p)] for p in observation.names]},
        {"vanishing": vanishing, "exploding": exploding},
    )


def relative_gradients(observation):
    """Return layer → q; infinite for a gradient that is not finite."""
    sums = {}
    for path, g, w in zip(
        observation.names,
        observation.squared_means,
        observation.squared_weights,
    ):
        squares = sums.setdefault(layer_of(path), [0.0, 0.0])
        squares[0] += float(g)
        squares[1] += float(w)
    return {name: _relative(*squares) for name, squares in sums.items()}


def layer_of(path):
    """Return the path of the layer that a variable of this path is of."""
    return path.rpartition("/")[0] or path


def _relative(gradient, weight):
    if not math.isfinite(gradient):
        return math.inf
    return math.sqrt(gradient / weight) if weight > 0 else math.nan
