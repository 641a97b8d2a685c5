"""A layer that no rule knows, and a model around it."""

import keras
from keras import layers

from tests.uses.rules.exact import randomized


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
    inputs = keras.Input((6, 5))
    x = layers.Dense(5, activation="tanh")(inputs)
    x = Own(function, *shapes)(x)
    x = layers.Flatten()(x)
    return randomized(keras.Model(inputs, layers.Dense(3)(x)))
