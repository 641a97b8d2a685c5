"""Layers with several outputs, joined again by `Join`."""

import keras
from keras import ops

from tests.hunt.layers.base import Own


class Two(Own):
    """(h, f(h)), (h, h) and kin: outputs that depend on each other."""

    FORMS = (
        "squared",
        "same",
        "sigmoid",
        "sum",
        "variational",
        "dictionary",
        "split",
    )

    def build(self, shape):
        self.k, self.b = self.weight(shape[-1], shape[-1]), self.weight()

    def call(self, x):
        h = ops.matmul(x, self.k) + self.b
        return {
            "squared": lambda: (h, ops.sum(h**2, -1, keepdims=True)),
            "same": lambda: (h, h),
            "sigmoid": lambda: (h, ops.sigmoid(h)),
            "sum": lambda: (ops.tanh(h), ops.tanh(h) * self.b),
            "variational": lambda: (h, ops.exp(0.5 * h), h * self.b),
            "dictionary": lambda: {"a": h, "b": ops.softmax(h)},
            "split": lambda: tuple(ops.split(h, [1], -1)),
        }[self.form]()


class Join(keras.layers.Layer):
    """Side by side whatever a layer gave."""

    def call(self, parts):
        parts = list(parts.values()) if isinstance(parts, dict) else parts
        return ops.concatenate(list(parts), -1)
