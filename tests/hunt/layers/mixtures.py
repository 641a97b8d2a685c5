"""Gates, experts, kernels made of data, weights of single samples."""

import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Gate(Own):
    """One part of the features opens another."""

    FORMS = (
        "glu",
        "swiglu",
        "highway",
        "sigmoid",
        "softmax",
        "masked",
        "stopped",
        "sorted",
    )

    def build(self, shape):
        d = shape[-1]
        self.k, self.b = self.weight(d, 2 * d), self.weight(d)

    def call(self, x):
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
        }[self.form]()


class Mixture(Own):
    """Weights chosen or made by each sample, for (n, d)."""

    FORMS = ("experts", "top", "gathered", "hyper", "low_rank", "switched")

    def build(self, shape):
        d = shape[-1]
        self.d = d
        self.route, self.k = self.weight(d, 3), self.weight(3, d, d)
        self.hyper = self.weight(d, d * d, scale=0.3)
        self.left = self.weight(d, d)

    def call(self, x):
        k = tf.convert_to_tensor(self.k)
        scores = tf.nn.softmax(x @ self.route)
        best = tf.argmax(scores, -1)
        one = tf.one_hot(best, 3, dtype=x.dtype)
        made = tf.reshape(x @ self.hyper, [-1, self.d, self.d])
        return {
            "experts": lambda: tf.einsum("ne,nd,edf->nf", scores, x, k),
            "top": lambda: tf.einsum("ne,nd,edf->nf", one * scores, x, k),
            "gathered": lambda: tf.linalg.matvec(tf.gather(k, best), x),
            "hyper": lambda: tf.linalg.matvec(made, x),
            "low_rank": lambda: tf.linalg.matvec(tf.tanh(made) @ self.left, x),
            "switched": lambda: tf.add_n(
                [one[:, e, None] * (x @ k[e]) for e in range(3)]
            ),
        }[self.form]()


class Squeeze(Own):
    """Squeeze and excite: features scaled by what all positions say."""

    FORMS = ("mean", "max_free", "standardised")

    def build(self, shape):
        d = shape[-1]
        self.k, self.back = self.weight(d, 2), self.weight(2, d)
        self.axes = list(range(1, len(shape) - 1))

    def call(self, x):
        means = ops.mean(x, self.axes, keepdims=True)
        if self.form == "max_free":
            means = ops.logsumexp(x, self.axes, keepdims=True)
        if self.form == "standardised":
            x = x - means
        excited = ops.matmul(ops.tanh(ops.matmul(means, self.k)), self.back)
        return x * ops.sigmoid(excited)
