"""Loops whose count is fixed, and loops that follow the samples."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Turns(Own):
    """A loop that goes round as often for any batch, for (n, d)."""

    FORMS = (
        "fixed",
        "of_width",
        "of_weight",
        "masked_count",
        "nested",
        "swapped",
        "array",
        "array_of_features",
        "cond_inside",
        "break_by_counter",
    )

    def build(self, shape):
        d = shape[-1]
        self.k, self.b = self.weight(d, d), self.weight(d)

    def call(self, x):
        k, b = tf.convert_to_tensor(self.k), tf.convert_to_tensor(self.b)

        def step(h):
            return tf.tanh(h @ k + x)

        def turns(most, body, *start):
            return tf.while_loop(
                lambda i, *h: i < most,
                lambda i, *h: (i + 1, *body(i, *h)),
                (0, *start),
            )[1:]

        def array():
            kept = tf.TensorArray(x.dtype, 3, element_shape=x.shape)
            for t in range(3):
                kept = kept.write(t, tf.sin(x * (t + 1)) @ k)
            return tf.reduce_sum(kept.stack() * tf.reshape(b, [1, 1, -1]), 0)

        def of_features():
            columns = tf.TensorArray(
                x.dtype, x.shape[1], clear_after_read=False
            )
            columns = columns.unstack(tf.transpose(x))
            return (
                turns(
                    x.shape[1],
                    lambda i, h: (h * tf.cos(columns.read(i)[:, None]) + b,),
                    x,
                )[0]
                @ k
            )

        own = tf.cast(
            tf.clip_by_value(3 * tf.abs(x[:, :1]), 0.0, 3.0), tf.int32
        )
        return {
            "fixed": lambda: turns(3, lambda i, h: (step(h),), x)[0],
            "of_width": lambda: turns(
                tf.shape(x)[1], lambda i, h: (step(h),), x
            )[0],
            "of_weight": lambda: turns(
                1 + tf.cast(tf.reduce_sum(b) > 0.0, tf.int32),
                lambda i, h: (step(h),),
                x,
            )[0],
            "masked_count": lambda: turns(
                3, lambda i, h: (tf.where(i < own, step(h), h),), x
            )[0],
            "nested": lambda: turns(
                2,
                lambda i, h: (turns(2, lambda j, g: (step(g),), h)[0] * b,),
                x,
            )[0],
            "swapped": lambda: turns(
                3, lambda i, h, g: (g, step(h)), x, tf.zeros_like(x)
            )[0],
            "array": array,
            "array_of_features": of_features,
            "cond_inside": lambda: turns(
                3,
                lambda i, h: (tf.cond(i > 1, lambda: step(h), lambda: h * b),),
                x,
            )[0],
            "break_by_counter": lambda: turns(
                9, lambda i, h: (tf.where(i < 2, step(h), h),), x
            )[0],
        }[self.form]()


class TurnsTogether(Own):
    """A loop in which samples meet, or that they end together."""

    FORMS = (
        "until_small",
        "sum_of_counts",
        "largest_count",
        "swapped_mean",
        "later_mean",
        "array_of_samples",
        "scan",
        "nested_until",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])

    def call(self, x):
        k = self.k
        zeros, rank = tf.zeros_like(x), len(x.shape)
        count = tf.cast(2 * tf.reduce_sum(tf.abs(x)), tf.int32)
        longest = tf.reduce_max(tf.cast(6 * tf.abs(x), tf.int32))

        def turns(goes_on, body, *start):
            return tf.while_loop(
                goes_on,
                lambda i, *h: (i + 1, *body(*h)),
                (0, *start),
                maximum_iterations=20,
            )[1]

        def until():
            return turns(
                lambda i, h: tf.reduce_sum(h * h) > 0.4,
                lambda h: (0.7 * h + 0.01 * k,),
                x,
            )

        def of_samples():
            rows = tf.TensorArray(x.dtype, 0, True, clear_after_read=False)
            rows = rows.unstack(x)
            last = rows.read(tf.shape(x)[0] - 1)
            return x + last * k

        return {
            "until_small": until,
            "sum_of_counts": lambda: turns(
                lambda i, h: i < count % 7, lambda h: (tf.sin(h) + k,), x
            ),
            "largest_count": lambda: turns(
                lambda i, h: i < longest, lambda h: (tf.sin(h) + k,), x
            ),
            "swapped_mean": lambda: turns(
                lambda i, *h: i < 3,
                lambda a, b, c: (b + x, c, tf.reduce_mean(b, 0) + zeros),
                *(x, x, zeros),
            ),
            "later_mean": lambda: turns(
                lambda i, *h: i < 4,
                lambda a, b, c: (a + tf.reduce_mean(b, 0) * k, c, x),
                *(x, zeros, zeros),
            ),
            "array_of_samples": of_samples,
            "scan": lambda: tf.scan(lambda a, e: 0.5 * a + e * k, x),
            "nested_until": lambda: turns(
                lambda i, h: i < 2, lambda h: (until() + h * k,), x
            ),
        }[self.form]() + x * (rank - 1)
