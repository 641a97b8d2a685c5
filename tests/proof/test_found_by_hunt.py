"""Models that mix samples where no type saw it, each beside a sound twin."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle

layers = keras.layers
_rng = np.random.default_rng(0)
X = _rng.normal(size=(4, 5)).astype("float32")
Y = _rng.normal(size=(4, 3)).astype("float32")


class Own(layers.Layer):
    """A function of (layer, x), with a weight and a variable that is kept."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.k = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.kept = tf.Variable(tf.zeros([shape[-1]]), trainable=False)

    def call(self, x):
        return self.function(self, x)


def _model(function):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    hidden = layers.Dense(4, "tanh")(inputs)
    return kpg.PerGradModel(inputs, layers.Dense(3)(Own(function)(hidden)))


def _step(function, mode="vectorized"):
    model = _model(function)
    model.compile("sgd", "mse", gradient_mode=mode, jit_compile=False)
    model.train_on_batch(X, Y)


def _assert_as_oracle(function):
    model = _model(function)
    model.compile("sgd", "mse", gradient_mode="vectorized")
    oracle.check(kpg.per_sample_gradients(model, X, Y), model, X, Y)


# What is assigned beside a call, and read behind it.
def _in_function(layer, value):
    tf.function(lambda: layer.kept.assign(value) is None)()


def _in_branch(layer, value):
    def assign():
        layer.kept.assign(value)
        return True

    tf.cond(tf.reduce_sum(layer.k) > 0, assign, lambda: False)


def _in_loop(layer, value):
    def turn(i, total):
        layer.kept.assign_add(value)
        return i + 1, total

    tf.while_loop(lambda i, total: i < 2, turn, (0, 0.0))


def _from_call(layer, value):
    layer.kept.assign(
        tf.cond(
            tf.reduce_sum(layer.k) > 0,
            lambda: value,
            tf.zeros_like(value).__neg__,
        )
    )


@pytest.mark.parametrize(
    "assign", [_in_function, _in_branch, _in_loop, _from_call]
)
def test_what_is_assigned_beside_calls_is_seen_behind_them(assign):
    def mixes(layer, x):
        assign(layer, tf.reduce_mean(x, 0))
        return (x + layer.kept) * layer.k

    def sound(layer, x):
        assign(layer, tf.square(layer.k))
        return x * layer.k + layer.kept

    with pytest.raises(ValueError, match="mixes the samples"):
        _step(mixes)
    _step(sound)


# Own gradients of weights.
def _product(gradient):
    @tf.custom_gradient
    def product(x, k):
        return x * k, lambda dy: (dy * k, gradient(x, dy))

    return lambda layer, x: product(x, tf.convert_to_tensor(layer.k))


def _of_weight(change):
    @tf.custom_gradient
    def same(k):
        return tf.identity(k), change

    return lambda layer, x: x * same(tf.convert_to_tensor(layer.k))


@pytest.mark.parametrize(
    "function",
    [
        _product(lambda x, dy: tf.reduce_sum(dy * tf.reduce_mean(x, 0), 0)),
        _product(lambda x, dy: tf.reduce_sum(x * tf.nn.softmax(dy, 0), 0)),
        _of_weight(lambda dk: tf.clip_by_norm(dk, 1e-3)),
    ],
    ids=["mean", "softmax", "clipped"],
)
def test_own_gradients_of_weights_that_mix_are_refused(function):
    with pytest.raises(ValueError, match="mixes the samples"):
        _step(function)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda x, dy: tf.reduce_sum(tf.sign(dy) * x, 0),
        lambda x, dy: tf.reduce_sum(x * x, 0),
        lambda x, dy: tf.reduce_sum(dy * x, 0) + 0.1,
    ],
    ids=["sign", "without", "added"],
)
def test_own_gradients_of_weights_that_are_not_linear_are_refused(gradient):
    function = _product(gradient)
    with pytest.raises(ValueError, match="not linear"):
        _step(function)


@pytest.mark.parametrize(
    "function",
    [
        _product(lambda x, dy: tf.reduce_sum(dy * tf.nn.relu(x), 0)),
        _product(lambda x, dy: tf.zeros_like(x[0])),
        _of_weight(lambda dk: -0.5 * dk),
    ],
    ids=["of_two", "zeros", "reversed"],
)
def test_linear_own_gradients_of_weights_are_served(function):
    _assert_as_oracle(function)


@pytest.mark.parametrize(
    "recompute",
    [tf.recompute_grad] + ([keras.remat] if hasattr(keras, "remat") else []),
)
def test_recomputed_layers_behind_others_are_served(recompute):
    _assert_as_oracle(
        lambda layer, x: recompute(lambda h: tf.tanh(h * layer.k))(x)
    )


# What follows the number of samples.
_SIZES = {
    "ones": lambda n: tf.reduce_sum(tf.ones([n])),
    "identity": lambda n: tf.reduce_sum(tf.eye(n)),
    "filled": lambda n: tf.reduce_prod(tf.fill([n], 1.5)),
    "product": lambda n: tf.tensordot(tf.ones([n]), tf.ones([n]), 1),
    "loop": lambda n: tf.while_loop(
        lambda i, h: i < n, lambda i, h: (i + 1, 0.9 * h), (0, 1.0)
    )[1],
}


@pytest.mark.parametrize("name", _SIZES)
def test_numbers_that_follow_the_number_of_samples(name):
    def sized(layer, x):
        return x * layer.k * _SIZES[name](tf.shape(x)[0])

    def of_positions(layer, x):
        return x * layer.k * _SIZES[name](tf.shape(x)[1])

    accumulated = kpg.Accumulated(microbatch_size=2)
    with pytest.raises(ValueError, match="number of samples"):
        _step(sized, accumulated)
    _step(sized)
    _step(of_positions, accumulated)
