"""Layers in which the samples of a batch meet."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Couples(Own):
    """Not to be served by a per-sample mode; `form` says why."""

    FORMS = (
        "mean",
        "sort",
        "roll",
        "softmax",
        "normalised",
        "cumsum",
        "flip",
        "max",
        "gram",
        "weighted_mean",
        "gradient_norm",
        "gradient_mean",
        "loss_gram",
        "loss_variance",
        "loss_pairs",
        "merged_mean",
        "state",
        "function",
        "loop",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])
        self.added = "mean"

    def call(self, x):
        flat = tf.reshape(x, [tf.shape(x)[0], -1])
        n = tf.cast(tf.shape(x)[0], x.dtype)

        @tf.custom_gradient
        def norm_clipped(x):
            return tf.identity(x), lambda dy: tf.clip_by_norm(dy, 1e-3)

        @tf.custom_gradient
        def centred(x):
            return tf.identity(x), lambda dy: dy - tf.reduce_mean(dy, 0)

        def mean(x):
            return x - tf.reduce_mean(x, 0)

        if self.form == "loss_gram":
            self.add_loss(0.1 * ops.sum(ops.matmul(flat, ops.transpose(flat))))
        if self.form == "loss_variance":
            self.add_loss(ops.mean(ops.var(flat, 0)))
        if self.form == "loss_pairs":
            self.add_loss(ops.mean(ops.tanh(flat * ops.roll(flat, 1, 0))))
        gram = tf.nn.softmax(tf.matmul(flat, flat, transpose_b=True))
        mixed = tf.tensordot(gram, x, 1)
        return (
            self.k
            * {
                "mean": lambda: mean(x),
                "sort": lambda: tf.sort(x, 0),
                "roll": lambda: tf.roll(x, 1, 0),
                "softmax": lambda: tf.nn.softmax(x, 0),
                "normalised": lambda: mean(x) / (1 + tf.math.reduce_std(x, 0)),
                "cumsum": lambda: tf.cumsum(x, 0) / n,
                "flip": lambda: x + tf.reverse(x, [0]),
                "max": lambda: x - tf.reduce_max(x, 0),
                "gram": lambda: mixed,
                "weighted_mean": lambda: x + tf.reduce_mean(self.k * x, 0),
                "gradient_norm": lambda: norm_clipped(x),
                "gradient_mean": lambda: centred(x),
                "merged_mean": lambda: x / (1 + tf.reduce_mean(flat**2)),
                "state": lambda: x * tf.norm(flat),
                "function": lambda: tf.function(mean)(x),
                "loop": lambda: tf.while_loop(
                    lambda i, h: i < 2,
                    lambda i, h: (i + 1, mean(h) + x),
                    (0, x),
                )[1],
            }.get(self.form, lambda: x)()
        )


class Stops(keras.layers.Layer):
    """No gradient goes back: what meets does so on the way forward alone."""

    def call(self, x):
        return ops.stop_gradient(x)
