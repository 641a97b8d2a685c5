"""Branches that follow the data, of each sample or of all together."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Chooses(Own):
    """Each sample, or something that is no sample, chooses a branch."""

    FORMS = (
        "where",
        "where_of_sums",
        "masked",
        "vectorized",
        "vectorized_where",
        "cond_of_positions",
        "cond_of_weight",
        "case_of_counter",
        "cond_in_cond",
        "gathered",
        "cond_that_assigns",
    )

    def build(self, shape):
        d = shape[-1]
        self.k, self.b = self.weight(d, d), self.weight(d)
        self.count = self.weight(scale=0.0, trainable=False)

    def call(self, x, training=None):
        k, b = tf.convert_to_tensor(self.k), tf.convert_to_tensor(self.b)

        def left():
            return tf.tanh(x @ k)

        def right():
            return x * b

        def one(row):
            large = tf.reduce_sum(row) > 0.0
            if self.form == "vectorized_where":
                return tf.where(large, tf.tanh(row @ k), row * b)
            return tf.cast(large, row.dtype) * row + tf.sin(row)

        def counted():
            if training:
                self.count.assign_add(1.0)
            return left()

        sums = tf.reduce_sum(x, -1, True)
        is_first = tf.cast(self.count, tf.int32)
        of_weight = tf.reduce_sum(b) > 0.0
        rows = x if x.shape.rank > 2 else x[:, None]
        return {
            "where": lambda: tf.where(x > 0.0, left(), right()),
            "where_of_sums": lambda: tf.where(sums > 0.0, left(), right()),
            "masked": lambda: (
                right() + tf.cast(sums > tf.reduce_sum(b), x.dtype) * left()
            ),
            "vectorized": lambda: (
                tf.reshape(tf.vectorized_map(one, rows), tf.shape(x)) @ k
            ),
            "vectorized_where": lambda: tf.reshape(
                tf.vectorized_map(one, rows), tf.shape(x)
            ),
            "cond_of_positions": lambda: tf.cond(
                tf.shape(x)[-1] > 3, left, right
            ),
            "cond_of_weight": lambda: tf.cond(of_weight, left, right),
            "case_of_counter": lambda: tf.switch_case(is_first, [left, right]),
            "cond_in_cond": lambda: tf.cond(
                of_weight,
                lambda: tf.cond(is_first > 0, left, right) + x,
                right,
            ),
            "gathered": lambda: tf.gather(
                tf.stack([left(), right()], -1),
                tf.cast(sums[..., 0] > 0.0, tf.int32),
                axis=-1,
                batch_dims=x.shape.rank - 1,
            ),
            "cond_that_assigns": lambda: tf.cond(of_weight, counted, right),
        }[self.form]()


class ChoosesTogether(Own):
    """All samples choose a branch; `form` says by what."""

    FORMS = (
        "mean",
        "any",
        "largest",
        "switch",
        "nested",
        "same_shape",
        "where",
        "first_row",
        "in_function",
        "inside_branch",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])

    def call(self, x):
        k = self.k
        mean = tf.reduce_mean(x)

        def left():
            return tf.sin(x) * k

        def right():
            return 2 * x * x + k

        def centred():
            return x - tf.reduce_mean(x, 0)

        return {
            "mean": lambda: tf.cond(mean > 0.0, left, right),
            "any": lambda: tf.cond(tf.reduce_any(x > 0.6), left, right),
            "largest": lambda: tf.cond(
                tf.reduce_max(tf.abs(x)) > 0.7, left, right
            ),
            "switch": lambda: tf.switch_case(
                tf.cast(tf.clip_by_value(4 * mean + 1, 0.0, 2.0), tf.int32),
                [left, right, lambda: x * k],
            ),
            "nested": lambda: tf.cond(
                tf.shape(x)[-1] > 0,
                lambda: tf.cond(tf.reduce_sum(x) > 0.0, left, right),
                right,
            ),
            "same_shape": lambda: (
                x * tf.cond(mean > 0.0, lambda: k * 2, lambda: k)
            ),
            "where": lambda: tf.where(mean > 0.0, left(), right()),
            "first_row": lambda: tf.cond(
                tf.reduce_sum(x[0]) > 0.0, left, right
            ),
            "in_function": lambda: tf.function(
                lambda: tf.cond(mean > 0.0, left, right)
            )(),
            "inside_branch": lambda: tf.cond(
                tf.reduce_sum(k) > 9.0, right, centred
            ),
        }[self.form]()
