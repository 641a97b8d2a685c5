"""Units of layers that no sample moves."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.health.observation import Answer

_KINDS = (
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


def units_of(layers, trainable):
    """Return the `Units` of all layers that have some and train them."""
    places = {id(v): k for k, v in enumerate(trainable)}
    units = []
    for layer in layers:
        if not isinstance(layer, _KINDS) or not layer.built:
            continue
        own = [v for v in layer.trainable_variables if id(v) in places]
        size = getattr(layer, "units", None) or getattr(layer, "filters", None)
        own = [v for v in own if v.shape[-1:] == (size,)]
        if size and own:
            path = own[0].path.rpartition("/")[0]
            units.append(
                Units(path, tuple(places[id(v)] for v in own), int(size))
            )
    return units


def count_dead(units, squares):
    """Return how many units of a layer no sample's gradient moves.

    `squares`: by variable Σ_i g_i², in its shape.
    """
    totals = [
        tf.reduce_sum(squares[k], list(range(squares[k].shape.rank - 1)))
        for k in units.variables
    ]
    return tf.reduce_sum(tf.cast(tf.equal(tf.add_n(totals), 0), tf.int32))


def dead_units(seen):
    """Return the fraction of dead units, of all and of each layer's.

    A layer is named where all its units are dead.
    """
    of_variables = np.full(len(seen.names), np.nan)
    dead = ()
    for units, count in zip(seen.units, seen.dead):
        of_variables[list(units.variables)] = count / units.count
        if count == units.count:
            dead = (*dead, units.path)
    total = sum(units.count for units in seen.units)
    whole = float(np.sum(seen.dead)) / total if total else float("nan")
    return Answer(
        {"gradient_dead_units": whole},
        {"dead_units": of_variables},
        {"dead": dead},
    )
