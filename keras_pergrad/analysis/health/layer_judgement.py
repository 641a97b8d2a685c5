"""Layers that do not learn, or that should not."""

import math

from keras_pergrad.analysis.health.judgement import Advice, layers_of_variables

# Pre-activations change by about as much as the weights do.
CHANGED = 0.1


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


def not_learning(readings, fit):
    """Accuse layers that no gradient reaches, or next to none."""
    return [
        Advice(
            "layer_dead",
            f"No sample of the probe gives {name!r} a gradient: it does not "
            "learn, nor does what only it connects to the loss. A ReLU whose "
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
    if not fit.untrained or not fit.trained_before or not fit.weight_norms:
        return []
    ways = readings[-1].by_variable.get("distance", ())
    worst, part = None, CHANGED
    for layer, places in layers_of_variables(readings).items():
        if layer not in fit.trained_before or not ways:
            continue
        length = math.hypot(*(fit.weight_norms[k] for k in places))
        way = math.hypot(*(ways[k] for k in places))
        if length and way / length > part:
            worst, part = layer, way / length
    if worst is None:
        return []
    head = fit.untrained[-1]
    return [
        Advice(
            "trained_layer_changed",
            f"{worst!r} came with trained weights, and this fit has changed "
            f"them by {part:.0%}, with gradients that come through {head!r}, "
            "whose weights were new: what it knew is being lost. Freeze it "
            "(layer.trainable = False, then compile), train the new layers, "
            "and thaw it later at a hundredth of the rate.",
            {"changed": part},
            worst,
        )
    ]


def _frozen(fit):
    return [
        Advice(
            "untrained_layer_frozen",
            f"{name!r} is frozen with the weights that it was made with, so "
            "it never learns anything. Set layer.trainable = True, then "
            "compile.",
            {},
            name,
        )
        for name in fit.untrained_frozen
    ]
