"""Branches, functions and inner layers around the use of a weight."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Chooses(Own, k="d d", b="d"):
    """Each sample, or something that is no sample, chooses a branch."""

    def build(self, shape):
        super().build(shape)
        self.count = self.weight(scale=0.0, trainable=False)

    def forms(self, x, training):
        k, b = self.read()

        def left():
            return tf.tanh(x @ k)

        def right():
            return x * b

        def shifted(row):
            large = tf.reduce_sum(row) > 0.0
            return tf.cast(large, row.dtype) * row + tf.sin(row)

        def chosen(row):
            large = tf.reduce_sum(row) > 0.0
            return tf.where(large, tf.tanh(row @ k), row * b)

        def mapped(one):
            rows = x if x.shape.rank > 2 else x[:, None]
            return tf.reshape(tf.vectorized_map(one, rows), tf.shape(x))

        def counted():
            if training:
                self.count.assign_add(1.0)
            return left()

        sums = tf.reduce_sum(x, -1, True)
        is_first = tf.cast(self.count, tf.int32)
        of_weight = tf.reduce_sum(b) > 0.0
        return {
            "where": lambda: tf.where(x > 0.0, left(), right()),
            "where_of_sums": lambda: tf.where(sums > 0.0, left(), right()),
            "masked": lambda: (
                right() + tf.cast(sums > tf.reduce_sum(b), x.dtype) * left()
            ),
            "vectorized": lambda: mapped(shifted) @ k,
            "vectorized_where": lambda: mapped(chosen),
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
        }


class ChoosesTogether(Own, k="d"):
    """All samples choose a branch; `form` says by what."""

    def forms(self, x, training):
        k = self.k
        mean = tf.reduce_mean(x)

        def left():
            return tf.sin(x) * k

        def right():
            return 2 * x * x + k

        def choice(condition):
            return tf.cond(condition, left, right)

        return {
            "mean": lambda: choice(mean > 0.0),
            "any": lambda: choice(tf.reduce_any(x > 0.6)),
            "largest": lambda: choice(tf.reduce_max(tf.abs(x)) > 0.7),
            "switch": lambda: tf.switch_case(
                tf.cast(tf.clip_by_value(4 * mean + 1, 0.0, 2.0), tf.int32),
                [left, right, lambda: x * k],
            ),
            "nested": lambda: tf.cond(
                tf.shape(x)[-1] > 0,
                lambda: choice(tf.reduce_sum(x) > 0.0),
                right,
            ),
            "same_shape": lambda: (
                x * tf.cond(mean > 0.0, lambda: k * 2, lambda: k)
            ),
            "where": lambda: tf.where(mean > 0.0, left(), right()),
            "first_row": lambda: choice(tf.reduce_sum(x[0]) > 0.0),
            "in_function": lambda: tf.function(choice)(mean > 0.0),
            "inside_branch": lambda: tf.cond(
                tf.reduce_sum(k) > 9.0, right, lambda: x - tf.reduce_mean(x, 0)
            ),
        }


class Inside(Own, k="d d", b="d"):
    """x @ k + b inside of something."""

    def forms(self, x, training):
        def apply(x):
            return tf.tanh(tf.matmul(x, self.k) + self.b)

        def other(x):
            return tf.matmul(x, self.k) * self.b

        def left():
            return apply(x)

        def right():
            return other(x)

        return {
            "function": lambda: tf.function(apply)(x),
            "nested_function": lambda: tf.function(
                lambda x: tf.function(apply)(x) + tf.function(other)(x)
            )(x),
            "cond": lambda: ops.cond(
                ops.convert_to_tensor(True), left, lambda: x
            ),
            "tf_cond": lambda: tf.cond(tf.shape(x)[1] > 9, left, right),
            "switch": lambda: tf.switch_case(tf.rank(x) - 2, [left, right]),
            "cond_of_weight": lambda: tf.cond(
                tf.reduce_sum(self.b) > 0, left, right
            ),
            "cond_of_training": lambda: ops.cond(
                ops.convert_to_tensor(bool(training)), left, right
            ),
            "recompute": lambda: tf.recompute_grad(apply)(x),
            "remat": lambda: keras.remat(apply)(x),
            "autograph": lambda: tf.function(
                lambda x: apply(x) if self.form else x, autograph=True
            )(x),
        }


class Nested(Own, k="d"):
    """Layers of Keras inside, in front of or behind an own weight."""

    def build(self, shape):
        super().build(shape)
        d, inputs = shape[-1], keras.Input(shape[1:])
        dense = keras.layers.Dense(d, activation="tanh")
        if self.form == "regularized":
            dense.activity_regularizer = keras.regularizers.L2(0.3)
        parts = {
            "normed": lambda: [keras.layers.LayerNormalization()],
            "list": lambda: [keras.layers.Dense(d) for _ in range(2)],
            "embedding": lambda: [keras.layers.Embedding(3, d)],
            "functional": lambda: [
                keras.Model(inputs, keras.layers.Dense(d)(inputs))
            ],
        }
        self.parts = parts.get(self.form, lambda: [dense])()
        for part in self.parts:
            part.build(shape)

    def forms(self, x, training):
        k, (inner, *others) = self.k, self.parts
        return {
            "before": lambda: inner(x * k),
            "after": lambda: inner(x) * k,
            "twice": lambda: inner(inner(x) * k),
            "regularized": lambda: inner(x * k),
            "normed": lambda: inner(x + k) * k,
            "list": lambda: others[0](ops.tanh(inner(x)) * k),
            "embedding": lambda: x * k + inner(ops.arange(3))[1],
            "functional": lambda: inner(ops.tanh(x * k)),
        }
