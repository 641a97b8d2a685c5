"""Samples that meet, or whose number counts."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own, derived, repeated


class Couples(Own, k="d"):
    """Not to be served by a per-sample mode; `form` says why."""

    added = "mean"

    def call(self, x, training=None):
        return self.k * super().call(x)

    def forms(self, x, training):
        flat = tf.reshape(x, [tf.shape(x)[0], -1])
        n = tf.cast(tf.shape(x)[0], x.dtype)
        gram = tf.matmul(flat, flat, transpose_b=True)

        def mean(x):
            return x - tf.reduce_mean(x, 0)

        def with_loss(loss):
            self.add_loss(loss)
            return x

        return {
            "mean": lambda: mean(x),
            "sort": lambda: tf.sort(x, 0),
            "roll": lambda: tf.roll(x, 1, 0),
            "softmax": lambda: tf.nn.softmax(x, 0),
            "normalised": lambda: mean(x) / (1 + tf.math.reduce_std(x, 0)),
            "cumsum": lambda: tf.cumsum(x, 0) / n,
            "flip": lambda: x + tf.reverse(x, [0]),
            "max": lambda: x - tf.reduce_max(x, 0),
            "gram": lambda: tf.tensordot(tf.nn.softmax(gram), x, 1),
            "weighted_mean": lambda: x + tf.reduce_mean(self.k * x, 0),
            "gradient_norm": lambda: derived(
                tf.identity, lambda dy, x: tf.clip_by_norm(dy, 1e-3)
            )(x),
            "gradient_mean": lambda: derived(
                tf.identity, lambda dy, x: mean(dy)
            )(x),
            "loss_gram": lambda: with_loss(0.1 * ops.sum(gram)),
            "loss_variance": lambda: with_loss(ops.mean(ops.var(flat, 0))),
            "loss_pairs": lambda: with_loss(
                ops.mean(ops.tanh(flat * ops.roll(flat, 1, 0)))
            ),
            "merged_mean": lambda: x / (1 + tf.reduce_mean(flat**2)),
            "state": lambda: x * tf.norm(flat),
            "function": lambda: tf.function(mean)(x),
            "loop": lambda: repeated(x, lambda h: mean(h) + x),
        }


class Stops(keras.layers.Layer):
    """No gradient goes back: what meets does so on the way forward alone."""

    def call(self, x):
        return ops.stop_gradient(x)


class Sized(Own, k="d"):
    """Served where all samples are at hand, and nowhere else."""

    def forms(self, x, training):
        (k,) = self.read()
        count = tf.shape(x)[0]
        n = tf.cast(count, x.dtype)
        first = tf.zeros_like(x[..., :1])
        ones = [count] + [1] * (len(x.shape) - 1)

        def column(values):
            return tf.reshape(tf.cast(values, x.dtype), ones)

        def over(size):
            return x * k / size

        def plus(term):
            return x * k + term

        return {
            "over_n": lambda: x * k / n,
            "times_n": lambda: tf.sin(x * k) * n,
            "plus_n": lambda: tf.tanh(x * k + 0.1 * n),
            "over_ones": lambda: over(tf.reduce_sum(tf.ones([count], x.dtype))),
            "over_ones_like": lambda: over(tf.reduce_sum(tf.ones_like(first))),
            "over_range": lambda: over(
                1 + tf.reduce_max(column(tf.range(count)))
            ),
            "place": lambda: plus(0.1 * column(tf.range(count))),
            "cumulated_ones": lambda: plus(tf.cumsum(first + 0.3 + 0 * n, 0)),
            "cond": lambda: tf.cond(count > 2, lambda: x * k, lambda: x + k),
            "loop": lambda: repeated(x, lambda h: h * k + x, count),
            "power": lambda: x * tf.pow(tf.cast(0.8, x.dtype), n) * k,
            "mean_of_ones": lambda: plus(tf.reduce_sum(tf.ones_like(x)) / 20),
            "filled": lambda: plus(tf.reduce_sum(tf.fill([count, 2], k[0]))),
            "one_hot_of_n": lambda: plus(
                tf.reduce_sum(tf.eye(count, dtype=x.dtype)) / 9
            ),
            "size_of_all": lambda: over(tf.cast(tf.size(x), x.dtype)),
            "weight_over_n": lambda: x * (k / tf.sqrt(n)),
            "static": lambda: over(x.shape[0] or n),
        }
