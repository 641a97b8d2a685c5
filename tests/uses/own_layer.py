"""Layers that no rule knows, and a model around one."""

import tensorflow as tf
from keras import layers

from tests.uses.rules.exact import stack


class Own(layers.Layer):
    """A function of its input and of weights of these shapes."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function, self.shapes = function, shapes

    def build(self, shape):
        self.own = [
            self.add_weight(shape=s, name=f"w{k}")
            for k, s in enumerate(self.shapes)
        ]

    def call(self, x):
        return self.function(x, *self.own)


def between(function, *shapes):
    """A model with the layer between two with weights; takes (n, 6, 5)."""
    before, own = layers.Dense(5, activation="tanh"), Own(function, *shapes)
    return stack((6, 5), before, own, layers.Flatten(), layers.Dense(3))


class Folded(layers.Layer):
    """Folds nodes or frames, behind the samples or before, into their axis."""

    def __init__(self, inner, before):
        super().__init__()
        self.inner, self.before = inner, before

    def build(self, shape):
        self.inner.build((None, *shape[2:]))

    def call(self, x):
        known = x.shape[2:]
        x = self._turned(x)
        sizes = tf.shape(x)
        x = tf.reshape(x, tf.concat([[-1], sizes[2:]], 0))
        x = self.inner(tf.ensure_shape(x, [None, *known]))
        x = tf.reshape(x, tf.concat([sizes[:2], tf.shape(x)[1:]], 0))
        return self._turned(x)

    def _turned(self, x):
        axes = [1, 0, *range(2, x.shape.rank)]
        return tf.transpose(x, axes) if self.before else x

    def compute_output_shape(self, shape):
        inner = self.inner.compute_output_shape((None, *shape[2:]))
        return *shape[:2], *inner[1:]
