"""What the layers share."""

import keras
import tensorflow as tf


class Own(keras.layers.Layer):
    """A layer with weights of its own; `form` says which of its kinds.

    A subclass names its weights with their shapes, in which d is the width of
    the inputs and t the number of their positions: `k="d d", b="d"`, or a dict
    of shapes by the form. The last thing that its `forms` does is to return a
    table of its kinds. Those of `WIDE` have kinks or numbers that half
    precision cannot stand.
    """

    WIDE = ""

    def __init_subclass__(cls, **shapes):
        super().__init_subclass__()
        cls.weight_shapes = shapes

    def __init__(self, form=None):
        super().__init__()
        self.form = form

    def weight(self, *shape, scale=0.5, trainable=True):
        """A weight of this shape, normally distributed."""
        values = keras.initializers.RandomNormal(0.0, scale)
        return self.add_weight(
            shape=shape, initializer=values, trainable=trainable
        )

    def build(self, shape):
        t, d = shape[1], shape[-1]
        known = {"d": d, "2d": 2 * d, "3d": 3 * d, "dd": d * d}
        known |= {"t": t, "2t": 2 * t, "td": t * d}
        for name, text in self.weight_shapes.items():
            if isinstance(text, dict):
                text = text.get(self.form, text["others"])
            sizes = [known.get(word) or int(word) for word in text.split()]
            setattr(self, name, self.weight(*sizes))

    def read(self):
        """The values of the weights that are named."""
        return [
            tf.convert_to_tensor(getattr(self, name))
            for name in self.weight_shapes
        ]

    def call(self, x, training=None):
        return self.forms(x, training)[self.form]()


class Wraps(keras.Model):
    """A model with a `call` of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x, training=None):
        return self.inner(x, training=training)


def repeated(h, step, turns=2):
    """A loop that makes h a step of itself again and again."""
    return tf.while_loop(
        lambda i, h: i < turns, lambda i, h: (i + 1, step(h)), (0, h)
    )[1]


def turned(x):
    """x with samples and positions in each other's place."""
    return tf.transpose(x, (1, 0, 2))


def derived(function, back):
    """The function with a gradient of one's own: back(dy, *inputs)."""

    @tf.custom_gradient
    def called(*inputs):
        return function(*inputs), lambda dy: back(dy, *inputs)

    return called


def of_features(values):
    """The sum over all axes but the last."""
    return tf.reduce_sum(values, list(range(len(values.shape) - 1)))


def derived_by_variable(x, b):
    """x times a variable, with the gradient of that product by hand."""
    value = tf.convert_to_tensor(b)

    @tf.custom_gradient
    def product(x):
        def back(dy, variables=None):
            return dy * value, [of_features(dy * x)]

        return x * b.value, back

    return product(x)
