"""A sample that is not finite counts as zero also where ops have no rule."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests import oracle
from tests.models.making import assert_equal, compiled, net, trained

pytestmark = pytest.mark.usefixtures("float64")
layers, ops = keras.layers, keras.ops
_rng = np.random.default_rng(5)
X, Y = _rng.normal(size=(4, 4)), _rng.normal(size=(4, 1))


class Uses(layers.Layer):
    """A function of samples and one weight."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.weight = self.add_weight(shape=(4,), initializer="ones")

    def call(self, x):
        return self.function(x, tf.convert_to_tensor(self.weight))


class Recomputed(Uses):
    """The same, twice, with what it needs made anew on the way back."""

    def call(self, x):
        again = tf.recompute_grad(lambda h: self.function(h, self.weight))
        return again(again(x) + x)


class Cell(layers.Layer):
    state_size = output_size = 2

    def build(self, shape):
        self.kernel = self.add_weight(shape=(2, 2), initializer="ones")

    def call(self, x, states):
        hidden = ops.tanh(x @ self.kernel + states[0] @ self.kernel)
        return hidden, [hidden]


def _loop(step):
    def call(x, weight):
        def body(k, h):
            return k + 1, step(h * weight)

        given = 0, x
        return tf.while_loop(
            lambda k, _: k < 3, body, given, maximum_iterations=3
        )[1]

    return lambda: Uses(call)


def _scanned(x, weight):
    steps = tf.transpose(tf.reshape(x, (-1, 2, 2)), (1, 0, 2))
    found = tf.scan(
        lambda h, step: tf.tanh(h * weight[:2] + step),
        steps,
        tf.zeros_like(steps[0]),
    )
    return tf.reshape(tf.transpose(found, (1, 0, 2)), (-1, 4))


def _chosen(x, weight):
    large = tf.reduce_sum(weight) > 0
    return tf.cond(large, lambda: tf.tanh(x * weight), lambda: x * weight)


@tf.custom_gradient
def _own_product(x, weight):
    def back(d):
        return d * weight, tf.reduce_sum(d * x, 0)

    return x * weight, back


def _recurrent():
    return keras.Sequential(
        [layers.Reshape((2, 2)), layers.RNN(Cell()), layers.Flatten()]
    )


# Name → layer, and what the second sample is made of.
CASES = {
    "nan": (_loop(tf.tanh), np.nan),
    "inf": (_loop(tf.tanh), np.inf),
    # Finite when it enters the loop.
    "overflow inside": (_loop(tf.exp), 40.0),
    "scan": (lambda: Uses(_scanned), np.nan),
    "map_fn": (
        lambda: Uses(
            lambda x, w: tf.map_fn(lambda row: tf.tanh(tf.sin(row * w)), x)
        ),
        np.nan,
    ),
    "condition": (lambda: Uses(_chosen), np.nan),
    "own gradient": (lambda: Uses(_own_product), np.nan),
    "recomputed": (
        lambda: Recomputed(lambda x, w: tf.tanh(x * w)),
        np.nan,
    ),
    "op without a rule": (
        lambda: Uses(lambda x, w: tf.math.igamma(w, tf.abs(x))),
        np.nan,
    ),
    "cell of one's own": (_recurrent, np.nan),
}


def _model(make):
    return net(make(), shape=(4,), units=1, cls=kpg.PerGradModel, seed=3)


def _with(entry):
    x = X.copy()
    x[1] = entry
    return x


def _change(model, x, mode, jit_compile=False):
    compiled(model, mode, rate=1.0, jit_compile=jit_compile)
    before = model.get_weights()
    trained(model, x, Y, batch_size=4)
    return [a - b for a, b in zip(before, model.get_weights())]


IN_XLA = "map_fn", "cell of one's own"


@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [(name, False) for name in CASES] + [(name, True) for name in IN_XLA],
)
def test_counts_as_zero(name, jit_compile):
    make, entry = CASES[name]
    model, x = compiled(_model(make)), _with(entry)
    gradients = oracle.per_sample_gradients(model, x, Y, training=True)
    rows = np.concatenate([np.reshape(g, (4, -1)) for g in gradients], 1)
    norms = np.linalg.norm(rows, axis=1)
    assert list(np.isfinite(norms)) == [True, False, True, True]
    rows[1] = 0
    expected = np.minimum(1, 0.5 / np.where(norms > 0, norms, 1)) @ rows / 4
    change = _change(
        model, x, kpg.Vectorized(kpg.ClippedMean(0.5)), jit_compile
    )
    found = np.concatenate([np.ravel(d) for d in change])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_private_weights_stay_finite():
    model, x = _model(CASES["nan"][0]), _with(np.nan)
    private = kpg.PrivateTraining(
        noise_multiplier=1.0,
        delta=1e-3,
        samples=4,
        batch_size=4,
        steps=1,
        user_ids="unique",
    )
    model.compile("sgd", "mse", gradient_mode=private.gradient_mode)
    batches = private.batches(x, Y)
    model.fit(batches, callbacks=[private.callback], verbose=0)
    assert all(np.isfinite(v).all() for v in model.get_weights())


def _drawn(h):
    return tf.tanh(h) * tf.random.uniform((4,), dtype=h.dtype)


def test_a_loop_that_draws_is_refused_before_any_weight_changes():
    make = _loop(_drawn)
    model, mode = _model(make), kpg.Vectorized(kpg.ClippedMean(0.5))
    assert all(np.isfinite(d).all() for d in _change(model, X, mode))
    before = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="before the loop"):
        _change(model, _with(np.nan), mode)
    assert_equal(model.get_weights(), before)


def test_under_xla_a_loop_that_draws_leaves_out_all_samples_and_counts_them():
    model, mode = _model(_loop(_drawn)), kpg.Vectorized(kpg.ClippedMean(0.5))
    assert all(np.any(d) for d in _change(model, X, mode, jit_compile=True))
    before = model.get_weights()
    logs = model.train_on_batch(_with(np.nan), Y, return_dict=True)
    assert logs["nonfinite_samples"] == 4
    assert_equal(model.get_weights(), before)


def test_with_noise_such_a_loop_is_refused_under_xla():
    noisy = kpg.ClippedMean(0.5, noise_multiplier=1.0, expected_batch_size=4)
    mode = kpg.Vectorized(noisy)
    model = _model(_loop(_drawn))
    with pytest.raises(ValueError, match="noise does not hide"):
        _change(model, X, mode, jit_compile=True)
    assert all(map(np.any, _change(model, X, mode)))
    sound = _model(_loop(tf.tanh))
    assert all(map(np.any, _change(sound, X, mode, jit_compile=True)))
