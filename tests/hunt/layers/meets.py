"""Weights that meet the data: through one op, by gates, as experts."""

import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Meets(Own, k="d"):
    """A weight of the size of the last axis; `form` names the op."""

    WIDE = "where maximum minimum prelu"

    def forms(self, x, training):
        (k,) = self.read()
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
        }


class Scalar(Own, k=""):
    """A single number as temperature, scale or shift."""

    def forms(self, x, training):
        return {
            "scale": lambda: x * self.k,
            "shift": lambda: ops.tanh(x + self.k),
            "temperature": lambda: ops.softmax(x * ops.exp(self.k)),
            "power": lambda: (1.2 + ops.tanh(x) ** 2) ** self.k,
        }


class Broadcast(Own, k="d"):
    """A weight spread over the samples before it meets them."""

    def forms(self, x, training):
        (k,), shape = self.read(), tf.shape(x)
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
        }


class Looked(Own, k="4 d"):
    """Rows of a table chosen by the data."""

    def call(self, x, training=None):
        return tf.tanh(x) + super().call(x)

    def forms(self, x, training):
        (k,) = self.read()
        ids = tf.cast(x > 0, tf.int32) + 2 * tf.cast(x > 1, tf.int32)
        ids = tf.minimum(tf.reduce_sum(ids, -1), 3)
        one_hot = tf.one_hot(ids, 4, dtype=k.dtype)
        return {
            "gather": lambda: tf.gather(k, ids),
            "lookup": lambda: tf.nn.embedding_lookup(k, ids),
            "one_hot": lambda: one_hot @ k,
            "gather_nd": lambda: tf.gather_nd(k, ids[..., None]),
            "batched": lambda: (one_hot[..., None, :] @ k)[..., 0, :],
        }


class Added(Own):
    """Learned positions, for (n, positions, features)."""

    def build(self, shape):
        self.k = self.weight(*shape[1:])

    def forms(self, x, training):
        return {
            "positions": lambda: x + self.k,
            "scaled": lambda: x * (1 + self.k[None]),
            "features_first": lambda: ops.transpose(
                ops.transpose(x, (0, 2, 1)) + ops.transpose(self.k), (0, 2, 1)
            ),
            "sinus": lambda: ops.sin(x + ops.take(self.k, [0], 0)),
        }


class Gate(Own, k="d 2d", b="d"):
    """One part of the features opens another."""

    def forms(self, x, training):
        a, b = ops.split(ops.matmul(x, self.k), 2, -1)
        return {
            "glu": lambda: a * ops.sigmoid(b),
            "swiglu": lambda: ops.silu(a) * b + self.b,
            "highway": lambda: ops.sigmoid(a) * b + (1 - ops.sigmoid(a)) * x,
            "sigmoid": lambda: ops.sigmoid(a + self.b),
            "softmax": lambda: ops.softmax(a + self.b),
            "masked": lambda: a * ops.cast(x > 0, a.dtype) + self.b,
            "stopped": lambda: ops.stop_gradient(a) * b + ops.tanh(a),
            "sorted": lambda: ops.cumsum(a, -1) + ops.roll(b, 1, -1),
        }


class Mixture(Own, route="d 3", k="3 d d", hyper="d dd", left="d d"):
    """Weights chosen or made by each sample, for (n, d)."""

    def forms(self, x, training):
        (route, k, hyper, left), d = self.read(), x.shape[-1]
        scores = tf.nn.softmax(x @ route)
        best = tf.argmax(scores, -1)
        one = tf.one_hot(best, 3, dtype=x.dtype)
        made = tf.reshape(x @ hyper, [-1, d, d])
        return {
            "experts": lambda: tf.einsum("ne,nd,edf->nf", scores, x, k),
            "top": lambda: tf.einsum("ne,nd,edf->nf", one * scores, x, k),
            "gathered": lambda: tf.linalg.matvec(tf.gather(k, best), x),
            "hyper": lambda: tf.linalg.matvec(made, x),
            "low_rank": lambda: tf.linalg.matvec(tf.tanh(made) @ left, x),
            "switched": lambda: tf.add_n(
                [one[:, e, None] * (x @ k[e]) for e in range(3)]
            ),
        }


class Squeeze(Own, k="d 2", back="2 d"):
    """Squeeze and excite: features scaled by what all positions say."""

    def forms(self, x, training):
        axes = list(range(1, len(x.shape) - 1))
        mean = ops.mean(x, axes, keepdims=True)

        def excited(of, x=x):
            hidden = ops.tanh(ops.matmul(of, self.k))
            return x * ops.sigmoid(ops.matmul(hidden, self.back))

        return {
            "mean": lambda: excited(mean),
            "max_free": lambda: excited(ops.logsumexp(x, axes, keepdims=True)),
            "standardised": lambda: excited(mean, x - mean),
        }
