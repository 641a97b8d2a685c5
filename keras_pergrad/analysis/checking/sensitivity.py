"""The factor by which a model amplifies rounding in what it starts from."""

import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.numerics import unit


def rounding_sensitivity(compute, plain, arguments, base, dtype):
    """Return how much a few roundings at the start change the gradients.

    This shows two things that the number of terms does not: how much the model
    amplifies the rounding of its weights and inputs (and whether a ReLU sits
    at its kink); and the noise of a gradient that is zero by cancellation, as
    for a bias before a normalisation. The wide format shows that noise in
    small.
    """
    changes = [np.zeros(len(plain.trainable)) for _ in base]
    tries = [(unit(dtype), True, 1.0)]
    *_, reference = arguments
    wide = reference.dtype
    if wide != dtype:
        tries.append((unit(wide), False, unit(dtype) / unit(wide)))
    for size, inputs, factor in tries:
        values, x, *rest = arguments
        perturbed = Perturbation(size)
        values = [perturbed(v) for v in values]
        x = tf.nest.map_structure(perturbed, x) if inputs else x
        moved = compute(plain, values, x, *rest)
        for change, (old, _), (new, _) in zip(changes, base, moved):
            for k, (a, b) in enumerate(zip(old, new)):
                if a is not None and b is not None:
                    gap = np.max(np.abs(a - b), initial=0.0) * factor
                    change[k] = max(change[k], gap)
    return changes


class Perturbation:
    """Moves tensors by a few units in the last place."""

    def __init__(self, size):
        self._steps = [-4.0 * size, 4.0 * size]
        self._random = np.random.default_rng(0)

    def __call__(self, tensor):
        if not tensor.dtype.is_floating:
            return tensor
        steps = self._random.choice(self._steps, tensor.shape)
        return tensor * tf.constant(1.0 + steps, tensor.dtype)
