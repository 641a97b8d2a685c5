"""Backward passes of one's own, and some in which samples meet."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Derives(Own):
    """A gradient of one's own that looks at its own sample alone."""

    FORMS = (
        "by_value",
        "by_row",
        "in_function",
        "nested",
        "of_two",
        "straight_weight",
        "signs",
        "sigmoids",
        "constant",
        "with_loop",
        "with_cond",
        "with_variable",
        "transposed",
    )

    def build(self, shape):
        d = shape[-1]
        self.k, self.b = self.weight(d, d), self.weight(d)

    def call(self, x):
        k, b = tf.convert_to_tensor(self.k), tf.convert_to_tensor(self.b)

        @tf.custom_gradient
        def by_value(x):
            return tf.sin(x), lambda dy: dy * tf.sigmoid(x)

        @tf.custom_gradient
        def by_row(x):
            def back(dy):
                return dy / (1 + tf.norm(dy, axis=-1, keepdims=True))

            return tf.identity(x), back

        @tf.custom_gradient
        def nested(x):
            return by_row(tf.tanh(x)), lambda dy: by_value(dy) * x

        @tf.custom_gradient
        def of_two(x, b):
            def back(dy):
                axes = list(range(len(x.shape) - 1))
                return dy * b, tf.reduce_sum(dy * tf.tanh(x), axes)

            return x * b, back

        @tf.custom_gradient
        def changed(x, b):
            def back(dy):
                axes = list(range(len(x.shape) - 1))
                change = {
                    "signs": lambda: tf.sign(dy) * x,
                    "sigmoids": lambda: tf.sigmoid(9 * dy) * x,
                    "constant": lambda: x * x,
                }[self.form]
                return dy * b, tf.reduce_sum(change(), axes)

            return x * b, back

        @tf.custom_gradient
        def straight(k):
            return tf.round(4 * k) / 4, lambda dk: dk

        @tf.custom_gradient
        def with_loop(x):
            def back(dy):
                return tf.while_loop(
                    lambda i, h: i < 3,
                    lambda i, h: (i + 1, 0.5 * h + dy * x),
                    (0, dy),
                )[1]

            return x * x, back

        @tf.custom_gradient
        def with_cond(x):
            def back(dy):
                wide = tf.shape(x)[-1] > 3
                return tf.cond(
                    wide, lambda: dy * x, lambda: tf.where(x > 0, dy, 0.5 * dy)
                )

            return tf.tanh(x), back

        @tf.custom_gradient
        def transposed(x):
            last = len(x.shape) - 1
            order = [last, *range(last)]

            def back(dy):
                turned = tf.cumsum(tf.transpose(dy, order), 0)
                return tf.transpose(turned, [*range(1, last + 1), 0])

            return tf.identity(x), back

        def with_variable(x):
            @tf.custom_gradient
            def product(x):
                def back(dy, variables=None):
                    del variables
                    axes = list(range(len(x.shape) - 1))
                    return dy * b, [tf.reduce_sum(dy * x, axes)]

                return x * self.b.value, back

            return product(x)

        return {
            "by_value": lambda: by_value(x @ k),
            "by_row": lambda: by_row(x @ k) + b,
            "in_function": lambda: tf.function(lambda x: by_value(x) * b)(x),
            "nested": lambda: nested(x @ k),
            "of_two": lambda: of_two(x @ k, b),
            "straight_weight": lambda: x @ straight(k),
            # Not linear: what weights get cannot be told by samples.
            "signs": lambda: changed(x @ k, b),
            "sigmoids": lambda: changed(x @ k, b),
            "constant": lambda: changed(x @ k, b),
            "with_loop": lambda: with_loop(x @ k),
            "with_cond": lambda: with_cond(x @ k),
            "with_variable": lambda: with_variable(x @ k),
            "transposed": lambda: transposed(x @ k),
        }[self.form]()


class DerivesTogether(Own):
    """A gradient of one's own that takes those of all samples.

    Or one of a weight that is not the sum of those of single samples.
    """

    FORMS = (
        "roll",
        "softmax",
        "norm_of_all",
        "cumulated",
        "by_mean_value",
        "weight_alone",
        "clipped_weight",
        "rounded_weight",
        "by_cond",
        "by_loop",
        "nested",
        "reversed",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])

    def call(self, x):
        k = tf.convert_to_tensor(self.k)
        axes = list(range(len(x.shape) - 1))
        form = self.form

        def mixed(dy, x):
            small = tf.reduce_sum(dy) < 0.0
            return {
                "roll": lambda: tf.roll(dy, 1, 0),
                "softmax": lambda: dy * tf.nn.softmax(x, 0),
                "norm_of_all": lambda: dy / (0.1 + tf.norm(dy)),
                "cumulated": lambda: tf.cumsum(dy, 0),
                "by_mean_value": lambda: dy * tf.reduce_mean(x, 0),
                "by_cond": lambda: tf.cond(
                    tf.reduce_mean(x) > 0, lambda: dy, lambda: 3 * dy
                ),
                "by_loop": lambda: tf.while_loop(
                    lambda i, h: tf.reduce_sum(h * h) > 1e-3,
                    lambda i, h: (i + 1, 0.5 * h),
                    (0, dy),
                    maximum_iterations=20,
                )[1],
                "reversed": lambda: tf.where(small, dy, dy[::-1]),
            }.get(form, lambda: dy - tf.reduce_mean(dy, 0))()

        @tf.custom_gradient
        def own(x):
            return tf.sin(x), lambda dy: mixed(dy, x)

        @tf.custom_gradient
        def around(x):
            return tf.tanh(x), lambda dy: dy * own(x) + mixed(dy, x)

        @tf.custom_gradient
        def product(x, k):
            def back(dy):
                return dy * k, tf.reduce_sum(mixed(dy, x) * x, axes)

            return x * k, back

        @tf.custom_gradient
        def clipped(k):
            if form == "clipped_weight":
                return tf.identity(k), lambda dk: tf.clip_by_norm(dk, 1e-3)
            return tf.identity(k), lambda dk: tf.round(9 * dk)

        if form in ("clipped_weight", "rounded_weight"):
            return x * clipped(k)
        if form == "weight_alone":
            return product(x, k)
        return (around if form == "nested" else own)(x) * k
