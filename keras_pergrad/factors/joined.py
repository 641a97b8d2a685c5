"""Several uses of one variable: shared layers and tied weights."""

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients, sum_of_squares, weighted
from keras_pergrad.factors.full import held_bytes


class Joined(SampleGradients):
    """The sum of several factors of one variable.

    Norms do not add up over the uses, so the contributions are added before
    they are squared.

    Args:
        parts: the factors, at least two.
    """

    rows = ("_gradients",)

    def __init__(self, parts):
        self.parts = parts
        self._gradients = None

    def squared_norms(self):
        return sum_of_squares(self.materialize())

    def weighted_sum(self, weights):
        if self._gradients is not None:
            return weighted(self._gradients, weights)
        sums = [part.weighted_sum(weights) for part in self.parts]
        return tf.add_n([tf.convert_to_tensor(s) for s in sums])

    def materialize(self):
        if self._gradients is None:
            self._gradients = tf.add_n([p.materialize() for p in self.parts])
        return self._gradients

    def holders(self):
        return [self, *(h for part in self.parts for h in part.holders())]

    def chosen_method(self):
        return "joined"

    def norm_bytes(self, n):
        return held_bytes(self.parts[0].materialize(), n)
