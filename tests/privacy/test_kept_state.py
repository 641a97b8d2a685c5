"""What a layer or a loss keeps of the samples is refused, wherever it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.privacy.model_check import find_problems
from tests.privacy import tiny
from tests.privacy.tiny import InWeight, Keeps, X, Y, average, fit, model

layers, ops = keras.layers, keras.ops


class InModule(Keeps):
    def build(self, shape):
        self.module = tf.Module()
        self.module.kept = [tf.Variable(tf.zeros(3), trainable=False)]

    @property
    def centre(self):
        return self.module.kept[0]


class InKernel(InWeight):
    is_trained = True


in_function = tf.function(average, autograph=False)


def in_condition(centre, x):
    tf.cond(
        tf.reduce_sum(x) > 0,
        lambda: centre.assign(tf.ones_like(centre)),
        lambda: tf.identity(centre),
    )


def in_loop(centre, x):
    def body(k):
        centre.assign_add(x[0] * 0.1)
        return k + 1

    tf.while_loop(lambda k: k < 2, body, [0])


def size(centre, x):
    """How large the batches are, which are drawn in secret."""
    centre.assign_add(tf.ones(3) * tf.cast(tf.shape(x)[0], tf.float32))


class InTable(layers.Layer):
    def build(self, shape):
        self.table = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.float32, 0.0
        )

    def call(self, x):
        key = tf.zeros([1], tf.int64)
        out = x + tf.reshape(self.table.lookup(key), [])
        self.table.insert(key, tf.reduce_mean(x)[None])
        return out


class Balanced(keras.losses.Loss):
    """Is divided by a moving average of itself."""

    def __init__(self):
        super().__init__()
        self.scale = keras.Variable(1.0, trainable=False, name="scale")

    def call(self, y_true, y_pred):
        value = ops.mean(ops.square(y_true - y_pred), -1)
        out = value / self.scale
        self.scale.assign(0.9 * self.scale + 0.1 * ops.mean(value))
        return out


def with_layer_or_loss(training, given):
    if isinstance(given, layers.Layer):
        return model(training, parts=[given], loss="mse")
    return model(training, loss=given)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Keeps(average), r"assigns '.*Variable:0' of 'keeps'"),
        (lambda: Keeps(in_function), r"assigns '.*Variable:0' of 'keeps'"),
        (lambda: Keeps(in_condition), r"assigns '.*Variable:0' of 'keeps'"),
        (lambda: Keeps(in_loop), r"assigns '.*Variable:0' of 'keeps'"),
        (lambda: Keeps(size), "of 'keeps' a value that depends on the batch"),
        (lambda: InModule(average), r"assigns '.*Variable:0' of 'in_module'"),
        (lambda: InWeight(average), "assigns 'in_weight/variable'"),
        (lambda: InKernel(average), "assigns 'in_kernel/variable' a value"),
        (InTable, "assigns a table a value"),
        (Balanced, "assigns 'scale' of 'balanced' a value"),
    ],
)
def test_refused_by_name(training, make, match):
    kept = make()
    net = with_layer_or_loss(training, kept)
    with tiny.refused(net, match):
        fit(net, training)
    if isinstance(kept, Balanced):
        assert float(kept.scale.numpy()) == 1
    elif isinstance(kept, Keeps):
        assert not np.asarray(kept.centre).any()


class Looks(InTable):
    def call(self, x):
        found = self.table.lookup(tf.cast(x, tf.int64))
        found.set_shape(x.shape)
        return x + found


class Draws(layers.Layer):
    def build(self, shape):
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
        return x + self.generator.normal(tf.shape(x))


class Annealed(keras.losses.Loss):
    """Grows with the number of steps, and draws."""

    def __init__(self):
        super().__init__()
        self.steps = keras.Variable(0.0, trainable=False)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, y_true, y_pred):
        self.steps.assign(self.steps + 1)
        drawn = keras.random.uniform(ops.shape(y_pred), seed=self.seed)
        value = ops.mean(ops.square(y_true - y_pred) + drawn, -1)
        return value * self.steps


@pytest.mark.parametrize(
    "make",
    [
        lambda: Keeps(tiny.count),
        lambda: InWeight(tiny.count),
        tiny.AddsMean,
        Looks,
        Draws,
        Annealed,
        lambda: layers.GaussianNoise(0.1),
        lambda: layers.Dropout(0.5),
        lambda: layers.BatchNormalization(trainable=False),
        lambda: layers.SpectralNormalization(layers.Dense(3)),
    ],
)
def test_what_keeps_no_data_is_not_accused(training, make):
    net = with_layer_or_loss(training, make())
    assert find_problems(net, training.batches(X, Y)) == []
