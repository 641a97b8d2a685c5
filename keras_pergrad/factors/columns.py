"""Contributions whose columns come from different factors."""

import tensorflow as tf

from keras_pergrad.factors.sample_gradients import SampleGradients


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

    def __init__(self, parts):
        self.parts = parts

    def squared_norms(self):
        return tf.add_n([part.squared_norms() for part in self.parts])

    def weighted_sum(self, weights):
        return tf.concat([p.weighted_sum(weights) for p in self.parts], -1)

    def materialize(self):
        return tf.concat([part.materialize() for part in self.parts], -1)

    def dot(self, direction):
        direction = tf.convert_to_tensor(direction)
        columns = tf.split(direction, [_width(p) for p in self.parts], -1)
        return tf.add_n([p.dot(c) for p, c in zip(self.parts, columns)])

    def sum_of_squares(self):
        return tf.concat([part.sum_of_squares() for part in self.parts], -1)

    def gram(self, other=None):
        if other is None:
            return tf.add_n([part.gram() for part in self.parts])
        widths = [
            [_width(part) for part in parts]
            for parts in (self.parts, getattr(other, "parts", ()))
        ]
        if not isinstance(other, Columns) or widths[0] != widths[1]:
            return super().gram(other)
        pairs = zip(self.parts, other.parts)
        return tf.add_n([part.gram(another) for part, another in pairs])

    def project(self, projection):
        parts, start = [], 0
        for part in self.parts:
            columns = _width(part)
            parts.append(part.project(projection.of_last(start, columns)))
            start += columns
        return tf.add_n(parts)

    def dot_is_less(self, projection):
        return all(part.dot_is_less(projection) for part in self.parts)

    def holders(self):
        return [held for part in self.parts for held in part.holders()]

    def chosen_method(self):
        return self.parts[0].chosen_method()

    def norm_bytes(self, n):
        needed = [part.norm_bytes(n) for part in self.parts]
        return None if None in needed else sum(needed)


def _width(part):
    """Return the number of columns of a factor."""
    shape = getattr(part, "shape", None)
    return (shape or part.weighted_sum(None).shape)[-1]
