"""Weights inside loops."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Steps(Own):
    """h ← tanh(x_t + h @ k) over the positions of (n, t, d)."""

    FORMS = (
        "python",
        "scan",
        "while_loop",
        "ops_while",
        "fori",
        "tf_scan",
        "cell",
    )

    def build(self, shape):
        _, self.t, self.d = shape
        self.k = self.weight(self.d, self.d)

    def call(self, x):
        first = ops.zeros_like(x[:, 0])

        def step(h, now):
            return ops.tanh(now + ops.matmul(h, self.k))

        turned = ops.transpose(x, (1, 0, 2))
        if self.form == "scan":
            return ops.scan(lambda h, t: (step(h, t),) * 2, first, turned)[0]
        if self.form == "tf_scan":
            return tf.scan(step, turned, first)[-1]
        if self.form == "while_loop":
            return tf.while_loop(
                lambda i, h: i < self.t,
                lambda i, h: (i + 1, step(h, turned[i])),
                (0, first),
            )[1]
        if self.form == "ops_while":
            return ops.while_loop(
                lambda i, h: i < self.t,
                lambda i, h: (i + 1, step(h, turned[i])),
                (0, first),
            )[1]
        if self.form == "fori":
            return ops.fori_loop(
                0, self.t, lambda i, h: step(h, turned[i]), first
            )
        h = first
        for t in range(self.t):
            h = step(h, x[:, t])
        return h


class Loop(Own):
    """h ← tanh(x + h @ k) three times, for (n, d)."""

    FORMS = ("python", "while_loop", "fori", "function", "unrolled_scan")

    def build(self, shape):
        self.k = self.weight(shape[-1], shape[-1])

    def call(self, x):
        def step(h):
            return tf.tanh(x + tf.matmul(h, self.k))

        if self.form == "while_loop":
            return tf.while_loop(
                lambda i, h: i < 3, lambda i, h: (i + 1, step(h)), (0, x)
            )[1]
        if self.form == "fori":
            return ops.fori_loop(0, 3, lambda i, h: step(h), x)
        if self.form == "function":
            step = tf.function(step)
        if self.form == "unrolled_scan":
            inputs = ops.stack([x, x])
            return ops.scan(lambda h, x: (step(h), None), x, inputs)[0]
        return step(step(step(x)))


class OverSamples(Own):
    """A function of one sample applied to each, for (n, d)."""

    FORMS = ("map_fn", "vectorized_map", "ops_map", "ops_vectorized_map")

    def build(self, shape):
        self.k = self.weight(shape[-1], shape[-1])
        self.inner = keras.layers.Dense(shape[-1])
        self.inner.build((None, shape[-1]))

    def call(self, x):
        k = self.k

        def one(row):
            return tf.tanh(tf.linalg.matvec(k, row))

        applied = {
            "map_fn": lambda: tf.map_fn(one, x),
            "vectorized_map": lambda: tf.vectorized_map(one, x),
            "ops_map": lambda: ops.map(one, x),
            "ops_vectorized_map": lambda: ops.vectorized_map(one, x),
        }[self.form]()
        return self.inner(applied)
