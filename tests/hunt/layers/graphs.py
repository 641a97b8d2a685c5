"""Functions, conditions and inner layers around the use of a weight."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Inside(Own):
    """x @ k + b inside of something."""

    FORMS = (
        "function",
        "nested_function",
        "cond",
        "tf_cond",
        "switch",
        "cond_of_weight",
        "cond_of_training",
        "recompute",
        "remat",
        "autograph",
    )

    def build(self, shape):
        d = shape[-1]
        self.k, self.b = self.weight(d, d), self.weight(d)

    def call(self, x, training=None):
        def apply(x):
            return tf.tanh(tf.matmul(x, self.k) + self.b)

        def other(x):
            return tf.matmul(x, self.k) * self.b

        return {
            "function": lambda: tf.function(apply)(x),
            "nested_function": lambda: tf.function(
                lambda x: tf.function(apply)(x) + tf.function(other)(x)
            )(x),
            "cond": lambda: ops.cond(
                ops.convert_to_tensor(True), lambda: apply(x), lambda: x
            ),
            "tf_cond": lambda: tf.cond(
                tf.shape(x)[1] > 9, lambda: apply(x), lambda: other(x)
            ),
            "switch": lambda: tf.switch_case(
                tf.rank(x) - 2, [lambda: apply(x), lambda: other(x)]
            ),
            "cond_of_weight": lambda: tf.cond(
                tf.reduce_sum(self.b) > 0, lambda: apply(x), lambda: other(x)
            ),
            "cond_of_training": lambda: ops.cond(
                ops.convert_to_tensor(bool(training)),
                lambda: apply(x),
                lambda: other(x),
            ),
            "recompute": lambda: tf.recompute_grad(apply)(x),
            "remat": lambda: keras.remat(apply)(x),
            "autograph": lambda: tf.function(
                lambda x: apply(x) if self.form else x, autograph=True
            )(x),
        }[self.form]()


class Nested(Own):
    """Layers of Keras inside, in front of or behind an own weight."""

    FORMS = (
        "before",
        "after",
        "twice",
        "regularized",
        "normed",
        "list",
        "embedding",
        "functional",
    )

    def build(self, shape):
        self.k = self.weight(shape[-1])
        self.dense = self.inner(keras.layers.Dense, shape, activation="tanh")
        if self.form == "regularized":
            self.dense.activity_regularizer = keras.regularizers.L2(0.3)
        if self.form == "normed":
            self.norm = keras.layers.LayerNormalization()
            self.norm.build(shape)
        if self.form == "list":
            dense = keras.layers.Dense
            self.parts = [self.inner(dense, shape) for _ in range(2)]
        if self.form == "embedding":
            self.table = keras.layers.Embedding(3, shape[-1])
            self.table.build()
        if self.form == "functional":
            inputs = keras.Input(shape[1:])
            outputs = keras.layers.Dense(shape[-1])(inputs)
            self.net = keras.Model(inputs, outputs)

    def inner(self, cls, shape, **arguments):
        layer = cls(shape[-1], **arguments)
        layer.build(shape)
        return layer

    def call(self, x):
        k = self.k
        return {
            "before": lambda: self.dense(x * k),
            "after": lambda: self.dense(x) * k,
            "twice": lambda: self.dense(self.dense(x) * k),
            "regularized": lambda: self.dense(x * k),
            "normed": lambda: self.norm(x + k) * k,
            "list": lambda: self.parts[1](ops.tanh(self.parts[0](x)) * k),
            "embedding": lambda: x * k + self.table(ops.arange(3))[1],
            "functional": lambda: self.net(ops.tanh(x * k)),
        }[self.form]()
