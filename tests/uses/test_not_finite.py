"""A sample that is not finite where an op has no rule: its batch is skipped."""

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
CLIPPED = kpg.Vectorized(kpg.ClippedMean(0.5))


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


def _change(model, x, mode, *, jit_compile=False):
    compiled(model, mode, rate=1.0, jit_compile=jit_compile)
    before = model.get_weights()
    trained(model, x, Y, batch_size=4)
    return [a - b for a, b in zip(before, model.get_weights())]


IN_XLA = "map_fn", "cell of one's own"


@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [(name, False) for name in CASES] + [(name, True) for name in IN_XLA],
)
def test_the_batch_counts_as_zero_and_the_logs_say_so(name, jit_compile):
    make, entry = CASES[name]
    model = compiled(_model(make), CLIPPED, rate=1.0, jit_compile=jit_compile)
    before = model.get_weights()
    logs = model.train_on_batch(_with(entry), Y, return_dict=True)
    assert logs["nonfinite_samples"] == 4
    assert_equal(model.get_weights(), before)
    logs = model.train_on_batch(X, Y, return_dict=True)
    assert logs["nonfinite_samples"] == 0
    found = [a - b for a, b in zip(before, model.get_weights())]
    expected = _change(_model(make), X, kpg.PerSample(CLIPPED.aggregation))
    assert_equal(found, expected, 0, atol=1e-10)


@pytest.mark.parametrize("name", ["nan", "overflow inside"])
def test_one_sample_after_the_other_leaves_out_that_sample_alone(name):
    make, entry = CASES[name]
    model, x = compiled(_model(make)), _with(entry)
    gradients = oracle.per_sample_gradients(model, x, Y, training=True)
    rows = np.concatenate([np.reshape(g, (4, -1)) for g in gradients], 1)
    norms = np.linalg.norm(rows, axis=1)
    assert list(np.isfinite(norms)) == [True, False, True, True]
    rows[1] = 0
    expected = np.minimum(1, 0.5 / np.where(norms > 0, norms, 1)) @ rows / 4
    change = _change(model, x, kpg.PerSample(CLIPPED.aggregation))
    found = np.concatenate([np.ravel(d) for d in change])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", ["microbatches", "norms of layers"])
def test_so_it_is_in_other_modes(mode):
    per_layer = kpg.Vectorized(kpg.ClippedMean(0.5, per="layer"))
    micro = kpg.Accumulated(microbatch_size=2, inner=CLIPPED)
    mode, skipped = {
        "microbatches": (micro, 2),
        "norms of layers": (per_layer, 4),
    }[mode]
    model = compiled(_model(CASES["nan"][0]), mode, jit_compile=False)
    logs = model.train_on_batch(_with(np.nan), Y, return_dict=True)
    assert logs["nonfinite_samples"] == skipped
    assert all(np.isfinite(w).all() for w in model.get_weights())


def _drawn(h):
    return tf.tanh(h) * tf.random.uniform((4,), dtype=h.dtype)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_loop_that_draws_leaves_out_all_samples_and_counts_them(jit_compile):
    model = _model(_loop(_drawn))
    assert all(map(np.any, _change(model, X, CLIPPED, jit_compile=jit_compile)))
    before = model.get_weights()
    logs = model.train_on_batch(_with(np.nan), Y, return_dict=True)
    assert logs["nonfinite_samples"] == 4
    assert_equal(model.get_weights(), before)


@pytest.mark.quick
def test_fit_warns_once():
    model = compiled(_model(CASES["nan"][0]), CLIPPED, jit_compile=False)
    fit = {"batch_size": 4, "verbose": 0}
    model.fit(X, Y, **fit)  # A warning would be an error.
    with pytest.warns(UserWarning, match=r"op StatelessWhile.*all samples of"):
        history = model.fit(_with(np.nan), Y, **fit).history
    assert history["nonfinite_samples"] == [4]
    model.fit(_with(np.nan), Y, **fit)


def test_ops_with_a_rule_are_not_warned_of():
    model = net(layers.Dense(3), shape=(4,), units=1, cls=kpg.PerGradModel)
    compiled(model, CLIPPED, jit_compile=False)
    history = model.fit(_with(np.nan), Y, batch_size=4, verbose=0).history
    assert history["nonfinite_samples"] == [1]


REFUSED = r"differentiated for one sample after the other \(op .* has no rule\)"


@pytest.mark.parametrize("name", CASES)
def test_noise_refuses_them_before_any_step(name):
    noisy = kpg.ClippedMean(0.5, noise_multiplier=1.0)
    model = _model(CASES[name][0])
    for mode in (
        kpg.Vectorized(noisy),
        kpg.Accumulated(microbatch_size=2, inner=kpg.Vectorized(noisy)),
    ):
        compiled(model, mode, jit_compile=False)
        before = model.get_weights()
        with pytest.raises(ValueError, match=REFUSED):
            model.train_on_batch(X, Y)
        with pytest.raises(ValueError, match=REFUSED):
            tf.function(model.train_step)((tf.constant(X), tf.constant(Y)))
        assert_equal(model.get_weights(), before)


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_private_training_serves_them_one_sample_after_the_other(method):
    model = _model(CASES["nan"][0])
    private = kpg.PrivateTraining(
        noise_multiplier=1.0,
        delta=1e-3,
        samples=4,
        batch_size=4,
        steps=1,
        user_ids="unique",
        method=method,
    )
    model.compile("sgd", "mse", gradient_mode=private.gradient_mode)
    before = model.get_weights()
    batches = private.batches(_with(np.nan), Y)
    fit = {"callbacks": [private.callback], "verbose": 0}
    if method == "vectorized":
        with pytest.raises(ValueError, match=r"method='per_sample'"):
            model.fit(batches, **fit)
        assert_equal(model.get_weights(), before)
        return
    model.fit(batches, **fit)
    assert all(np.isfinite(v).all() for v in model.get_weights())


def test_explain_says_what_noise_refuses():
    for noise, served in ((0.0, "fallback"), (1.0, "refused")):
        mode = kpg.Vectorized(kpg.ClippedMean(0.5, noise_multiplier=noise))
        model = compiled(_model(CASES["op without a rule"][0]), mode)
        rows = {row.type: row for row in kpg.explain(model, 4).rows}
        assert rows["Uses"].served_by == served
        assert "op Igamma has no rule" in rows["Uses"].reason


def test_functions_name_all_samples_of_the_batch_and_say_why():
    model = compiled(_model(CASES["nan"][0]))
    text = "samples 0, 1, 2, 3 are not finite.*'fallback'.*pass each alone"
    with pytest.raises(ValueError, match=text):
        kpg.per_sample_norms(model, _with(np.nan), Y)
