"""The figures of the samples' gradients that instruments are made of."""

import tensorflow as tf

from keras_pergrad.analysis.health import dead_units, signal_by_weight
from keras_pergrad.keras_internals.model_parts import layers_of


class SampleQuantities:
    """What the chosen instruments measure in the graph of a step.

    Attributes:
        along: whether slopes along the last update are measured as well.
        units: the `Units` of the layers, where they are measured.
    """

    def __init__(self, needs, model):
        self._needs = needs
        self.along = "along" in needs
        self.units = []
        if "units" in needs:
            trainable = model.trainable_variables
            self.units = dead_units.units_of(layers_of(model), trainable)

    def __call__(self, n, factors, gradients, dtype):
        """Return by name what is measured.

        `factors`: of each variable the contributions, or None; `gradients`:
        their sums; `n`: how many samples. "dots": ⟨g_i, ḡ⟩, (n,); "ratios":
        those of `signal_by_weight`, (V, 2); "dead": how many units of each
        layer, (layers,).
        """
        measured = {}
        if "dots" in self._needs:
            measured["dots"] = self.dots(n, factors, gradients, dtype)
        if not self._needs & {"weights", "units"}:
            return measured
        squares = [
            _squares(factor, gradient, n, dtype)
            for factor, gradient in zip(factors, gradients)
        ]
        if "weights" in self._needs:
            measured["ratios"] = signal_by_weight.ratios(gradients, squares, n)
        if self.units:
            counts = [
                dead_units.count_dead(unit, squares) for unit in self.units
            ]
            measured["dead"] = tf.stack(counts)
        return measured

    @staticmethod
    def dots(n, factors, directions, dtype):
        """Return ⟨g_i, d⟩ over all variables, (n,)."""
        products = [
            tf.cast(factor.dot(direction), dtype)
            for factor, direction in zip(factors, directions)
            if factor is not None
        ]
        return tf.cast(n, dtype) * sum(products, tf.zeros([n], dtype))


def _squares(factor, gradient, n, dtype):
    """Return Σ g_i² of a variable, in its shape."""
    if factor is None:
        return tf.zeros(gradient.shape, dtype)
    squares = tf.convert_to_tensor(factor.sum_of_squares())
    return tf.cast(squares, dtype) * tf.cast(n, dtype) ** 2
