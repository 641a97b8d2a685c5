"""Gradients that are not those of the forward pass."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Backward(Own):
    """A stopped, replaced or rescaled gradient; each sample's by itself."""

    FORMS = (
        "straight_through",
        "reversal",
        "with_variables",
        "clipped_values",
        "stopped_part",
        "stopped_sum",
        "scaled_by_weight",
        "row_clipped",
        "sign",
    )

    def build(self, shape):
        d = shape[-1]
        self.k = self.weight(d, d)

    def call(self, x):
        k = tf.convert_to_tensor(self.k)

        @tf.custom_gradient
        def rounded(x):
            return tf.round(2 * x) / 2, lambda dy: dy

        @tf.custom_gradient
        def reversal(x):
            return tf.identity(x), lambda dy: -0.5 * dy

        @tf.custom_gradient
        def limited(x):
            return tf.identity(x), lambda dy: tf.clip_by_value(dy, -0.05, 0.05)

        @tf.custom_gradient
        def row_clipped(x):
            def back(dy):
                axes = list(range(1, dy.shape.rank))
                return tf.clip_by_norm(dy, 0.05, axes)

            return tf.identity(x), back

        @tf.custom_gradient
        def product(x, k):
            def back(dy):
                flat = [-1, k.shape[0]]
                dk = tf.matmul(
                    tf.reshape(x, flat), tf.reshape(dy, flat), transpose_a=True
                )
                return tf.matmul(dy, k, transpose_b=True), dk

            return tf.matmul(x, k), back

        h = x @ k
        return {
            "straight_through": lambda: rounded(h),
            "reversal": lambda: reversal(h) + x,
            "with_variables": lambda: product(x, k),
            "clipped_values": lambda: limited(h),
            "stopped_part": lambda: tf.concat(
                [tf.stop_gradient(h[..., :1]), h[..., 1:]], -1
            ),
            "stopped_sum": lambda: h + tf.stop_gradient(tf.tanh(h) - h),
            "scaled_by_weight": lambda: x @ tf.stop_gradient(k) + x * k[0],
            "row_clipped": lambda: row_clipped(h),
            "sign": lambda: h * tf.sign(tf.stop_gradient(h)),
        }[self.form]()
