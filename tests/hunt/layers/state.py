"""Layers that keep something from step to step."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Keeps(Own):
    """Updates a variable that is not trained, in training."""

    FORMS = (
        "counter",
        "plain",
        "annealed",
        "moving",
        "assigned",
        "counter_of_samples",
        "after",
        "part",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])
        self.count = self.weight(scale=0.0, trainable=False)
        self.plain = tf.Variable(0.0, trainable=False)
        self.row = tf.Variable([0.0, 0.0], trainable=False)
        self.mean = self.weight(shape[-1], scale=0.0, trainable=False)
        # Their values depend on how the batch is cut into microbatches.
        self.of_batch = self.form in ("moving", "counter_of_samples")

    def call(self, x, training=None):
        if self.form == "after":
            x = ops.tanh(x) * (1 + self.count / 10)
        if training:
            if self.form == "plain":
                self.plain.assign_add(1.0)
            elif self.form == "part":
                self.row[:1].assign([1.0])
            elif self.form == "moving":
                axes = list(range(len(x.shape) - 1))
                now = ops.cast(ops.mean(x, axes), self.mean.dtype)
                self.mean.assign(0.9 * self.mean + 0.1 * now)
            elif self.form == "assigned":
                self.k.assign(ops.sign(self.k) * 0.5)
            elif self.form == "counter_of_samples":
                n = ops.cast(ops.shape(x)[0], self.count.dtype)
                self.count.assign_add(n)
            else:
                self.count.assign_add(1.0)
        if self.form == "annealed":
            x = x * ops.cast(self.count / 10, x.dtype)
        return x * self.k


class Unused(Own):
    """One weight does not reach the output, one does so times zero."""

    FORMS = ("unused", "zero", "frozen", "stopped")

    def build(self, shape):
        self.k, self.other = self.weight(shape[-1]), self.weight(2, 2)
        self.fixed = self.weight(shape[-1], trainable=False)

    def call(self, x):
        return {
            "unused": lambda: x * self.k,
            "zero": lambda: x * self.k + 0 * self.other[0, 0],
            "frozen": lambda: x * self.fixed + self.k,
            "stopped": lambda: (
                x * self.k + ops.stop_gradient(ops.sum(self.other))
            ),
        }[self.form]()


class Penalised(Own):
    """Weights with a regulariser, also one that reads another variable."""

    FORMS = ("own", "other", "both")

    def build(self, shape):
        d = shape[-1]
        self.a = self.weight(d, d)

        def near(k):
            return 0.5 * ops.sum((k - self.a) ** 2)

        penalty = keras.regularizers.L2(0.1) if self.form == "own" else near
        self.k = self.add_weight(shape=(d, d), regularizer=penalty)

    def call(self, x):
        h = ops.matmul(x, self.k)
        return h if self.form == "other" else h + ops.matmul(x, self.a)
