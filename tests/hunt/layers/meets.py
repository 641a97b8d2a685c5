"""One weight that meets the data through one op."""

import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Meets(Own):
    """A weight of the size of the last axis; `form` names the op."""

    FORMS = (
        "add",
        "sub",
        "rsub",
        "mul",
        "div",
        "rdiv",
        "pow",
        "rpow",
        "square",
        "atan2",
        "no_nan",
        "twice",
        "bell",
        "lerp",
        "softplus",
        "add_n",
        "scalar_product",
        "where",
        "maximum",
        "minimum",
        "prelu",
    )
    SMOOTH = FORMS[:-4]

    def build(self, shape):
        self.k = self.weight(shape[-1])

    def call(self, x):
        k = tf.convert_to_tensor(self.k)
        return {
            "add": lambda: x + k,
            "sub": lambda: x - k,
            "rsub": lambda: k - x,
            "mul": lambda: x * k,
            "div": lambda: x / (1.5 + k * k),
            "rdiv": lambda: k / (1.5 + x * x),
            "pow": lambda: (1.2 + tf.tanh(x) ** 2) ** k,
            "rpow": lambda: (1.2 + k * k) ** tf.tanh(x),
            "square": lambda: tf.math.squared_difference(x, k),
            "atan2": lambda: tf.atan2(tf.tanh(x), 1.5 + k * k),
            "no_nan": lambda: tf.math.divide_no_nan(x, 1.5 + k * k),
            "twice": lambda: (x + k) * k,
            "bell": lambda: tf.exp(-tf.square(x * k)),
            "lerp": lambda: x + tf.sigmoid(k) * (tf.tanh(x) - x),
            "softplus": lambda: tf.nn.softplus(x * k + k),
            "add_n": lambda: tf.add_n([x, tf.zeros_like(x) + k, x * k]),
            "scalar_product": lambda: x * tf.reduce_sum(x * k, -1, True),
            "where": lambda: tf.where(x > 0.1, x, k * x),
            "maximum": lambda: tf.maximum(x, k),
            "minimum": lambda: tf.minimum(x, k),
            "prelu": lambda: tf.nn.relu(x) - k * tf.nn.relu(-x),
        }[self.form]()


class Scalar(Own):
    """A single number as temperature, scale or shift."""

    FORMS = ("scale", "shift", "temperature", "power")

    def build(self, shape):
        self.k = self.weight()

    def call(self, x):
        return {
            "scale": lambda: x * self.k,
            "shift": lambda: ops.tanh(x + self.k),
            "temperature": lambda: ops.softmax(x * ops.exp(self.k)),
            "power": lambda: (1.2 + ops.tanh(x) ** 2) ** self.k,
        }[self.form]()


class Broadcast(Own):
    """A weight spread over the samples before it meets them."""

    FORMS = (
        "broadcast_to",
        "tile",
        "repeat",
        "zeros_like",
        "concat",
        "stack",
        "ones",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])

    def call(self, x):
        shape, k = tf.shape(x), tf.convert_to_tensor(self.k)
        rows = tf.reduce_prod(shape[:-1])
        return {
            "broadcast_to": lambda: x * tf.broadcast_to(k, shape),
            "tile": lambda: x + tf.reshape(tf.tile(k[None], [rows, 1]), shape),
            "repeat": lambda: (
                x * tf.reshape(tf.repeat(k[None], rows, 0), shape)
            ),
            "zeros_like": lambda: tf.tanh(x) + (tf.zeros_like(x) + k),
            "concat": lambda: tf.concat([x, tf.zeros_like(x) + k], -1),
            "stack": lambda: tf.reduce_sum(
                tf.square(tf.stack([x, tf.broadcast_to(k, shape)], -1)), -1
            ),
            "ones": lambda: x - tf.einsum("...,d->...d", 1 + 0 * x[..., 0], k),
        }[self.form]()


class Looked(Own):
    """Rows of a table chosen by the data."""

    FORMS = ("gather", "lookup", "one_hot", "gather_nd", "batched")

    def build(self, shape):
        self.k = self.weight(4, shape[-1])

    def call(self, x):
        k = tf.convert_to_tensor(self.k)
        ids = tf.cast(x > 0, tf.int32) + 2 * tf.cast(x > 1, tf.int32)
        ids = tf.minimum(tf.reduce_sum(ids, -1), 3)
        rows = {
            "gather": lambda: tf.gather(k, ids),
            "lookup": lambda: tf.nn.embedding_lookup(k, ids),
            "one_hot": lambda: tf.one_hot(ids, 4, dtype=k.dtype) @ k,
            "gather_nd": lambda: tf.gather_nd(k, ids[..., None]),
            "batched": lambda: tf.linalg.matmul(
                tf.one_hot(ids, 4, dtype=k.dtype)[..., None, :], k
            )[..., 0, :],
        }[self.form]()
        return tf.tanh(x) + rows


class Added(Own):
    """Learned positions, for (n, positions, features)."""

    FORMS = ("positions", "scaled", "features_first", "sinus")

    def build(self, shape):
        self.k = self.weight(*shape[1:])

    def call(self, x):
        return {
            "positions": lambda: x + self.k,
            "scaled": lambda: x * (1 + self.k[None]),
            "features_first": lambda: ops.transpose(
                ops.transpose(x, (0, 2, 1)) + ops.transpose(self.k), (0, 2, 1)
            ),
            "sinus": lambda: ops.sin(x + ops.take(self.k, [0], 0)),
        }[self.form]()
