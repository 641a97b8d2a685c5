"""Contributions whose columns come from different factors."""

import tensorflow as tf

from keras_pergrad.factors.base import SampleGradients


class Columns(SampleGradients):
    """Factors of a variable's columns, side by side on the last axis.

    Args:
        parts: the factors of each range of columns, in order.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> left, right = (factors.Full(tf.ones((2, 3, k))) for k in (1, 4))
    >>> factors.Columns([left, right]).materialize().shape.as_list()
    [2, 3, 5]
    """

    sampled = ("parts",)

    def __init__(self, parts):
        self.parts = parts

    def held(self, pairs=False):
        return Columns([part.held(pairs) for part in self.parts])

    def squared_norms(self):
        return tf.add_n([part.squared_norms() for part in self.parts])

    def weighted_sum(self, weights):
        return tf.concat([p.weighted_sum(weights) for p in self.parts], -1)

    def materialize(self):
        return tf.concat([part.materialize() for part in self.parts], -1)

    def dot(self, direction):
        direction = tf.convert_to_tensor(direction)
        columns = tf.split(direction, self.widths(), -1)
        return tf.add_n([p.dot(c) for p, c in zip(self.parts, columns)])

    def sum_of_squares(self):
        return tf.concat([part.sum_of_squares() for part in self.parts], -1)

    def gram(self, other=None):
        if other is None:
            return tf.add_n([part.gram() for part in self.parts])
        if not isinstance(other, Columns) or self.widths() != other.widths():
            return super().gram(other)
        pairs = zip(self.parts, other.parts)
        return tf.add_n([part.gram(other_part) for part, other_part in pairs])

    def widths(self):
        """Return how many columns each part has."""
        return [_width(part) for part in self.parts]

    def chosen_method(self):
        return self.parts[0].chosen_method()

    def norm_bytes(self, n):
        part_bytes = [part.norm_bytes(n) for part in self.parts]
        return None if None in part_bytes else sum(part_bytes)


def _width(part):
    """Return the number of columns of a factor."""
    shape = getattr(part, "shape", None)
    return (shape or part.weighted_sum(None).shape)[-1]
