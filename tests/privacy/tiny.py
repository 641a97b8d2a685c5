"""A tiny model and its data, and what the tests of privacy share."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.privacy.accounting import compute_epsilon
from keras_pergrad.privacy.draws import make_key, noise_seed
from tests.models import making

N = 40
_rng = np.random.default_rng(5)
X = _rng.normal(size=(N, 3)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


def shifted(x):
    return x + keras.random.normal(keras.ops.shape(x), 0.0, 0.5)


#: Data of no weight, so that what a step changes is its noise.
NO_DATA = np.zeros((N, 3), "float32"), Y, np.zeros(N)


class AddsMean(keras.layers.Layer):
    """Adds the mean of its squared inputs to the loss."""

    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


def adding():
    return [keras.layers.Dense(4), AddsMean()]


class Keeps(keras.layers.Layer):
    """Subtracts a variable, which `keep` assigns what it sees of the inputs."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def build(self, shape):
        self.centre = tf.Variable(tf.zeros(3), trainable=False)

    def call(self, x):
        out = x - self.centre
        self.keep(self.centre, x)
        return out


class InWeight(Keeps):
    is_trained = False

    def build(self, shape):
        self.centre = self.add_weight(
            shape=(3,), initializer="zeros", trainable=self.is_trained
        )


def average(centre, x):
    centre.assign(0.9 * centre + 0.1 * keras.ops.mean(x, 0))


def count(centre, x):
    """The calls, which tell nothing of the samples."""
    centre.assign_add(tf.ones(3))


#: Arguments of `private`.
VIEWS = {"augmentations": 3, "augment": shifted}


def private(**arguments):
    """A `PrivateTraining` for X and Y, noise given."""
    defaults = {
        "noise_multiplier": 2.0,
        "delta": 1e-2,
        "samples": N,
        "batch_size": 10,
        "seed": 3,
        "user_ids": "unique",
    }
    return kpg.PrivateTraining(**{**defaults, **arguments})


def model(training, optimizer=None, parts=(), *, shape=(3,), **arguments):
    """A compiled logistic regression, the same each time.

    Args:
        parts: the layers before it, or a function that makes them.
    """
    keras.utils.set_random_seed(4)
    result = making.net(
        *(parts() if callable(parts) else parts),
        keras.layers.Dense(1, activation="sigmoid"),
        shape=shape,
        dtype=arguments.pop("dtype", None),
        units=None,
        cls=arguments.pop("cls", kpg.PerGradModel),
    )
    compile_privately(result, training, optimizer, **arguments)
    return result


def compile_privately(net, training, optimizer=None, **arguments):
    net.compile(
        optimizer or keras.optimizers.SGD(0.5),
        arguments.pop("loss", "binary_crossentropy"),
        gradient_mode=training.gradient_mode,
        **{"jit_compile": False, **arguments},
    )
    return net


def fit(net, training, epochs=1, callbacks=(), data=None, **arguments):
    data = training.batches(X, Y) if data is None else data
    history = net.fit(
        data,
        epochs=epochs,
        callbacks=[*callbacks, training.callback],
        verbose=0,
        **arguments,
    )
    return history.history


def fitted(training, *arguments, epochs=1, **settings):
    """`model(training, ...)`, fitted to X and Y."""
    net = model(training, *arguments, **settings)
    fit(net, training, epochs)
    return net


def sgd(training, rate=1.0, **arguments):
    """`model`, whose weights a step changes by `rate` times the gradients."""
    return model(training, keras.optimizers.SGD(rate), **arguments)


def noise_of(net, training, data=NO_DATA, *, epochs=1):
    """The noise that the steps of a `fit` add to sums, (steps, weights)."""
    seen = [flat(net)]
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(flat(net))
    )
    fit(net, training, epochs, [watch], training.batches(*data))
    # Weights before the bias, also where the bias is not trained.
    steps = -np.diff(seen, axis=0) / float(net.optimizer.learning_rate.numpy())
    return steps * training.mechanism.batch_size


def flat(net):
    """All weights of a model, as one array."""
    return np.concatenate([w.ravel() for w in net.get_weights()])


def drawn_sizes(data, net, steps):
    """The sizes of the first batches that are drawn for a model."""
    ledger = net.aggregation_state
    return [len(data.draw_rows(ledger, step)) for step in range(steps)]


def made_of(strategy, noise):
    """The draws that noise, (steps, weights), is made of: C times it."""
    if strategy is None:
        return noise
    columns = np.asarray(noise, "float64").T
    return np.stack([strategy.times(column) for column in columns], 1)


def spent(training, *steps):
    """The epsilon of phases of so many steps of a training."""
    phases = tuple((training.mechanism, count) for count in steps)
    return compute_epsilon(phases, training.delta)


def words(text):
    """Its text in one line."""
    return " ".join(str(text).split())


@contextlib.contextmanager
def refused(net, match, error=ValueError):
    """What is done in here is refused by name, and no weight changes."""
    with making.unchanged(net), pytest.raises(error, match=match):
        yield


def normal_draws(steps, phase=0, seed=3, *, key=None):
    """What the noise of `model` is made of, (steps, weights)."""
    words = noise_seed(key or make_key(seed), phase)

    def draw(index, step, size):
        seeds = np.add(words, [index, step])
        return tf.random.stateless_normal([size], seeds, alg="philox")

    pairs = [(draw(0, k, 3), draw(1, k, 1)) for k in range(steps)]
    return np.array([np.concatenate(pair) for pair in pairs])
