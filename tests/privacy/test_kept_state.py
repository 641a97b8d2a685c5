"""What a layer or a loss keeps of the samples is refused, wherever it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.privacy.model_check import find_problems
from tests.privacy.tiny import X, Y, fit, model, private, refused

layers, ops = keras.layers, keras.ops


class Centres(layers.Layer):
    """Keeps a moving average of its inputs in a plain variable."""

    def build(self, shape):
        self.centre = tf.Variable(tf.zeros(shape[-1]), trainable=False)

    def keep(self, x):
        mean = tf.reduce_mean(x, 0)
        self.centre.assign(0.9 * self.centre + 0.1 * mean)

    def call(self, x):
        out = x - self.centre
        self.keep(x)
        return out


class InFunction(Centres):
    @tf.function(autograph=False)
    def keep(self, x):
        super().keep(x)


class InCondition(Centres):
    def keep(self, x):
        tf.cond(
            tf.reduce_sum(x) > 0,
            lambda: self.centre.assign(tf.ones_like(self.centre)),
            lambda: tf.identity(self.centre),
        )


class InLoop(Centres):
    def keep(self, x):
        def body(k):
            self.centre.assign_add(x[0] * 0.1)
            return k + 1

        tf.while_loop(lambda k: k < 2, body, [0])


class InModule(Centres):
    """As `Centres`, with the variable in a list of a module."""

    def build(self, shape):
        self.module = tf.Module()
        self.module.kept = [tf.Variable(tf.zeros(shape[-1]), trainable=False)]

    @property
    def centre(self):
        return self.module.kept[0]


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


class Sizes(Centres):
    """Keeps how large the batches are, which are drawn in secret."""

    def build(self, shape):
        self.centre = tf.Variable(0.0, trainable=False)

    def keep(self, x):
        self.centre.assign_add(tf.cast(tf.shape(x)[0], tf.float32))


class IntoKernel(layers.Layer):
    """Writes into what is trained."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1],))

    def call(self, x):
        self.kernel.assign(0.9 * self.kernel + 0.1 * ops.mean(x, 0))
        return x * self.kernel


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


class KeepsMean(layers.Layer):
    """A layer with a moving average in a weight of its own."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False)

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, 0))
        return x


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (Centres, r"assigns '.*Variable:0' of 'centres'"),
        (InFunction, r"assigns '.*Variable:0' of 'in_function'"),
        (InCondition, r"assigns '.*Variable:0' of 'in_condition'"),
        (InLoop, r"assigns '.*Variable:0' of 'in_loop'"),
        (InModule, r"assigns '.*Variable:0' of 'in_module'"),
        (InTable, "assigns a table what depends"),
        (Sizes, "of 'sizes' what depends on the batch"),
        (KeepsMean, "assigns 'keeps_mean/variable'"),
        (IntoKernel, "assigns 'into_kernel/variable' what depends"),
        (Balanced, "assigns 'scale' of 'balanced' what"),
    ],
)
def test_refused_by_name(make, match):
    training, kept = private(), make()
    net = with_layer_or_loss(training, kept)
    with refused(net, match):
        fit(net, training)
    if isinstance(kept, Balanced):
        assert float(kept.scale.numpy()) == 1
    elif isinstance(kept, Centres):
        assert not np.asarray(kept.centre).any()


def with_layer_or_loss(training, given):
    if isinstance(given, layers.Layer):
        return model(training, parts=[given], loss="mse")
    return model(training, loss=given)


class Counts(Centres):
    """Counts the calls, which tells nothing of the samples."""

    def build(self, shape):
        self.centre = tf.Variable(0.0, trainable=False)
        self.weight = self.add_weight(shape=(), trainable=False)

    def call(self, x):
        self.centre.assign_add(1.0)
        self.weight.assign(self.weight + 1.0)
        return x


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
        Counts,
        Looks,
        Draws,
        Annealed,
        lambda: layers.GaussianNoise(0.1),
        lambda: layers.Dropout(0.5),
        lambda: layers.BatchNormalization(trainable=False),
        lambda: layers.SpectralNormalization(layers.Dense(3)),
    ],
)
def test_what_keeps_no_data_is_not_accused(make):
    training = private()
    net = with_layer_or_loss(training, make())
    assert find_problems(net, training.batches(X, Y)) == []
