"""Units without a gradient, and layers whose gradient vanishes or explodes."""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.gradient_health.figures import InstrumentResult

VANISHING = 1e-4
EXPLODING = 1e3

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


def layers(observation):
    """Return how many layers vanish and explode, and which.

    A layer's gradient is measured by its weights: q = ‖ḡ‖ / ‖w‖ over all its
    variables. It vanishes where q is less than 1e-4 of the median of the
    layers, and explodes where q exceeds 1e3, so that a rate of 1e-3 would
    replace the weights, or is not finite.
    """
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
