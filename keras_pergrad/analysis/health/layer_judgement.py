"""Layers that do not learn, or that should not."""

import math

from keras_pergrad.analysis.health.judgement import (
    HealthAdvice,
    layers_of_variables,
)

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
    ways = _ways(readings, fit)
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


def _ways(readings, fit):
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
