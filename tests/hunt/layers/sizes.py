"""Terms that follow the number of samples, but no other sample."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Sized(Own):
    """Served where all samples are at hand, and nowhere else."""

    FORMS = (
        "over_n",
        "times_n",
        "plus_n",
        "over_ones",
        "over_ones_like",
        "over_range",
        "place",
        "cumulated_ones",
        "cond",
        "loop",
        "power",
        "mean_of_ones",
        "filled",
        "one_hot_of_n",
        "size_of_all",
        "weight_over_n",
        "static",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])

    def call(self, x):
        k = tf.convert_to_tensor(self.k)
        count = tf.shape(x)[0]
        n = tf.cast(count, x.dtype)
        first = tf.zeros_like(x[..., :1])
        ones = [count] + [1] * (len(x.shape) - 1)

        def column(values):
            return tf.reshape(tf.cast(values, x.dtype), ones)

        return {
            "over_n": lambda: x * k / n,
            "times_n": lambda: tf.sin(x * k) * n,
            "plus_n": lambda: tf.tanh(x * k + 0.1 * n),
            "over_ones": lambda: (
                x * k / tf.reduce_sum(tf.ones([count], x.dtype))
            ),
            "over_ones_like": lambda: (
                x * k / tf.reduce_sum(tf.ones_like(x[..., 0]))
            ),
            "over_range": lambda: (
                x * k / (1 + tf.reduce_max(column(tf.range(count))))
            ),
            "place": lambda: x * k + 0.1 * column(tf.range(count)),
            "cumulated_ones": lambda: x * k + tf.cumsum(first + 0.3 + 0 * n, 0),
            "cond": lambda: tf.cond(count > 2, lambda: x * k, lambda: x + k),
            "loop": lambda: tf.while_loop(
                lambda i, h: i < count, lambda i, h: (i + 1, h * k + x), (0, x)
            )[1],
            "power": lambda: x * tf.pow(tf.cast(0.8, x.dtype), n) * k,
            "mean_of_ones": lambda: x * k + tf.reduce_sum(tf.ones_like(x)) / 20,
            "filled": lambda: x * k + tf.reduce_sum(tf.fill([count, 2], k[0])),
            "one_hot_of_n": lambda: (
                x * k + tf.reduce_sum(tf.eye(count, dtype=x.dtype)) / 9
            ),
            "size_of_all": lambda: x * k / tf.cast(tf.size(x), x.dtype),
            "weight_over_n": lambda: x * (k / tf.sqrt(n)),
            "static": lambda: x * k / (x.shape[0] or n),
        }[self.form]()
