"""What a model's step computes with, as far as it decides its rounding."""

import math

import numpy as np


def precision(model):
    """The least precise format that a layer with weights computes in."""
    policies = {
        layer.compute_dtype
        for layer in model._flatten_layers(include_self=False)
        if layer.weights
    }
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        if dtype in policies:
            return dtype
    return "float32"


def terms(model, x):
    """How many products go into one number of a step, at most.

    Args:
        model: a built model.
        x: its input for one batch; of several, the first.
    """
    fan_in = [math.prod(v.shape[:-1]) for v in model.trainable_weights]
    positions = math.prod(np.shape(x)[:-1]) if np.ndim(x) > 1 else np.size(x)
    return max([1, int(positions), *fan_in])
