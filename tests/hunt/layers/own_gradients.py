"""Backward passes of one's own, and some in which samples meet."""

import tensorflow as tf

from tests.hunt.layers.base import (
    Own,
    derived,
    derived_by_variable,
    of_features,
    repeated,
)


class Backward(Own, k="d d"):
    """A stopped, replaced or rescaled gradient; each sample's by itself."""

    def forms(self, x, training):
        (k,) = self.read()
        h = x @ k

        def of_h(back, function=tf.identity):
            return derived(function, back)(h)

        def row_clipped(dy, h):
            return tf.clip_by_norm(dy, 0.05, list(range(1, dy.shape.rank)))

        def of_product(dy, x, k):
            x, flat = (tf.reshape(value, [-1, k.shape[0]]) for value in (x, dy))
            dk = tf.matmul(x, flat, transpose_a=True)
            return tf.matmul(dy, k, transpose_b=True), dk

        return {
            "straight_through": lambda: of_h(
                lambda dy, h: dy, lambda h: tf.round(2 * h) / 2
            ),
            "reversal": lambda: of_h(lambda dy, h: -0.5 * dy) + x,
            "with_variables": lambda: derived(tf.matmul, of_product)(x, k),
            "clipped_values": lambda: of_h(
                lambda dy, h: tf.clip_by_value(dy, -0.05, 0.05)
            ),
            "stopped_part": lambda: tf.concat(
                [tf.stop_gradient(h[..., :1]), h[..., 1:]], -1
            ),
            "stopped_sum": lambda: h + tf.stop_gradient(tf.tanh(h) - h),
            "scaled_by_weight": lambda: x @ tf.stop_gradient(k) + x * k[0],
            "row_clipped": lambda: of_h(row_clipped),
            "sign": lambda: h * tf.sign(tf.stop_gradient(h)),
        }


class Derives(Own, k="d d", b="d"):
    """A gradient of one's own that looks at its own sample alone."""

    def forms(self, x, training):
        k, b = self.read()
        h, last = x @ k, len(x.shape) - 1
        by_value = derived(tf.sin, lambda dy, x: dy * tf.sigmoid(x))
        by_row = derived(
            tf.identity,
            lambda dy, x: dy / (1 + tf.norm(dy, axis=-1, keepdims=True)),
        )

        def scaled(change):
            return derived(
                lambda x, b: x * b,
                lambda dy, x, b: (dy * b, of_features(change(dy, x))),
            )(h, b)

        def by_cond(dy, x):
            return tf.cond(
                tf.shape(x)[-1] > 3,
                lambda: dy * x,
                lambda: tf.where(x > 0, dy, 0.5 * dy),
            )

        def transposed(dy, x):
            turned = tf.cumsum(tf.transpose(dy, [last, *range(last)]), 0)
            return tf.transpose(turned, [*range(1, last + 1), 0])

        return {
            "by_value": lambda: by_value(h),
            "by_row": lambda: by_row(h) + b,
            "in_function": lambda: tf.function(lambda x: by_value(x) * b)(x),
            "nested": lambda: derived(
                lambda x: by_row(tf.tanh(x)), lambda dy, x: by_value(dy) * x
            )(h),
            "of_two": lambda: scaled(lambda dy, x: dy * tf.tanh(x)),
            "straight_weight": lambda: (
                x @ derived(lambda k: tf.round(4 * k) / 4, lambda dk, k: dk)(k)
            ),
            # Not linear: what weights get cannot be told by samples.
            "signs": lambda: scaled(lambda dy, x: tf.sign(dy) * x),
            "sigmoids": lambda: scaled(lambda dy, x: tf.sigmoid(9 * dy) * x),
            "constant": lambda: scaled(lambda dy, x: x * x),
            "with_loop": lambda: derived(
                tf.square,
                lambda dy, x: repeated(dy, lambda h: 0.5 * h + dy * x, 3),
            )(h),
            "with_cond": lambda: derived(tf.tanh, by_cond)(h),
            "with_variable": lambda: derived_by_variable(h, self.b),
            "transposed": lambda: derived(tf.identity, transposed)(h),
        }


class DerivesTogether(Own, k="d"):
    """A gradient of one's own that takes those of all samples.

    Or one of a weight that is not the sum of those of single samples.
    """

    def forms(self, x, training):
        (k,) = self.read()

        def less_mean(dy, x):
            return dy - tf.reduce_mean(dy, 0)

        def by_cond(dy, x):
            return tf.cond(tf.reduce_mean(x) > 0, lambda: dy, lambda: 3 * dy)

        def by_loop(dy, x):
            return tf.while_loop(
                lambda h: tf.reduce_sum(h * h) > 1e-3,
                lambda h: (0.5 * h,),
                (dy,),
                maximum_iterations=20,
            )[0]

        def is_reversed(dy, x):
            return tf.where(tf.reduce_sum(dy) < 0.0, dy, dy[::-1])

        own = derived(tf.sin, less_mean)

        def behind(back, function=tf.sin):
            return derived(function, back)(x) * k

        def of_weight(back):
            return x * derived(tf.identity, back)(k)

        return {
            "roll": lambda: behind(lambda dy, x: tf.roll(dy, 1, 0)),
            "softmax": lambda: behind(lambda dy, x: dy * tf.nn.softmax(x, 0)),
            "norm_of_all": lambda: behind(
                lambda dy, x: dy / (0.1 + tf.norm(dy))
            ),
            "cumulated": lambda: behind(lambda dy, x: tf.cumsum(dy, 0)),
            "by_mean_value": lambda: behind(
                lambda dy, x: dy * tf.reduce_mean(x, 0)
            ),
            "weight_alone": lambda: derived(
                lambda x, k: x * k,
                lambda dy, x, k: (dy * k, of_features(less_mean(dy, x) * x)),
            )(x, k),
            "clipped_weight": lambda: of_weight(
                lambda dk, k: tf.clip_by_norm(dk, 1e-3)
            ),
            "rounded_weight": lambda: of_weight(lambda dk, k: tf.round(9 * dk)),
            "by_cond": lambda: behind(by_cond),
            "by_loop": lambda: behind(by_loop),
            "nested": lambda: behind(
                lambda dy, x: dy * own(x) + less_mean(dy, x), tf.tanh
            ),
            "reversed": lambda: behind(is_reversed),
        }


class AgainDerived(Own, k="d d", b="d"):
    """A gradient of one's own around a weight, behind itself."""

    def forms(self, x, training):
        k, b = self.read()
        scaled = derived(
            lambda x, b: x * b,
            lambda dy, x, b: (dy * b, of_features(dy * tf.tanh(x))),
        )
        axes = list(range(len(x.shape) - 1))
        product = derived(
            lambda x, k: tf.tensordot(x, k, 1),
            lambda dy, x, k: (
                tf.tensordot(dy, k, [[-1], [-1]]),
                tf.tensordot(tf.tanh(x), dy, [axes, axes]),
            ),
        )
        quantised = derived(lambda k: tf.round(4 * k) / 4, lambda dk, k: dk)(k)

        def loop(h, step, w):
            return repeated(h, lambda h: tf.tanh(step(h, w)) + x)

        @tf.recompute_grad
        def again(h):
            return tf.tanh(tf.tensordot(h, self.k, 1))

        def variable(x):
            return derived_by_variable(x, self.b)

        return {
            "vector": lambda: scaled(tf.sin(scaled(x, b)) + x, b),
            "kernel": lambda: product(tf.tanh(product(x, k)), k),
            "in_loop": lambda: loop(x, scaled, b),
            "loop_behind_loop": lambda: loop(loop(x, scaled, b), scaled, b),
            "variable": lambda: variable(tf.sin(variable(x))),
            "straight": lambda: tf.tensordot(
                tf.tanh(tf.tensordot(x, quantised, 1)), quantised, 1
            ),
            "recompute": lambda: again(again(x) + x),
            "inside_and_outside": lambda: scaled(x, b) * b + scaled(x * b, b),
            "kernel_in_loop": lambda: loop(loop(x, product, k), product, k),
        }
