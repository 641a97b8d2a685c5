"""Runs of real training: the callback records, the comparison separates."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import keras_pergrad as kpg
from keras_pergrad.runs import list_runs, read_run

SEEDS = [0, 0, 0, 1, 2, 3, 4]
STEPS, FAULTY_STEP = 12, 7


class Scaled(keras.layers.Dense):
    """A Dense whose gradient of the kernel is scaled: an op with a fault."""

    factor = 1.0

    def build(self, input_shape):
        super().build(input_shape)
        self.scale = tf.Variable(self.factor, trainable=False)

    def call(self, inputs):
        @tf.custom_gradient
        def kernel(value):
            return value, lambda upstream: upstream * self.scale

        return self.activation(inputs @ kernel(self.kernel) + self.bias)


class Break(keras.callbacks.Callback):
    """Makes the fault act in the training gradient of one step.

    Whether it acts in the measured gradients, too, and goes on.
    """

    def __init__(self, layer, factor, lasting):
        super().__init__()
        self.layer, self.factor, self.lasting = layer, factor, lasting

    def on_train_batch_begin(self, batch, logs=None):
        if batch + 1 == FAULTY_STEP:
            self.layer.scale.assign(self.factor)

    def on_train_batch_end(self, batch, logs=None):
        if not self.lasting:
            self.layer.scale.assign(1.0)


class Shake(keras.callbacks.Callback):
    """Stands in for a machine that is not deterministic."""

    def on_train_batch_end(self, batch, logs=None):
        random = np.random.default_rng()  # another one each time
        for weight in self.model.trainable_variables:
            weight.assign_add(1e-5 * random.normal(size=weight.shape))


def _data():
    random = np.random.default_rng(5)
    x = random.normal(size=(STEPS * 16, 8)).astype("float32")
    return x, np.tanh(x @ random.normal(size=(8, 3))).astype("float32")


def _train(log_dir, seed, name, break_it=None, shake=False):
    keras.utils.set_random_seed(seed)
    middle = Scaled(12, activation="tanh", name="middle")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(12, activation="tanh", name="first"),
            middle,
            keras.layers.Dense(3, name="last"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    x, y = _data()
    record = kpg.callbacks.GradientVariance(
        probe=(x[:16], y[:16]),
        every=1,
        repeats=1,
        log_dir=log_dir,
        run_name=name,
    )
    watchers = [Shake()] * shake + [record]
    if break_it:
        watchers.insert(0, Break(middle, *break_it))
    model.fit(x, y, batch_size=16, verbose=0, callbacks=watchers)


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    """Five seeds, the first of them three times."""
    log_dir = tmp_path_factory.mktemp("runs")
    tf.config.experimental.enable_op_determinism()
    try:
        for k, seed in enumerate(SEEDS):
            _train(log_dir, seed, f"run {k}")
    finally:
        # TensorFlow has no public way back.
        config.disable_op_determinism()
    return log_dir


def test_deterministic_repeats_are_exactly_equal(log_dir):
    comparison = kpg.diagnose.compare_runs(log_dir, tolerance=0)
    data = comparison.data
    assert (data["repeat_variance"] == 0).all()
    assert (data["variance_low"] > 0).all()
    assert np.isfinite(data["sampling_share"]).all()
    np.testing.assert_array_equal(data["step"], np.arange(1, STEPS + 1))
    repeats = comparison.divergences[0]
    assert (repeats.common, repeats.differ_step) == ("seed 0", None)
    assert comparison.findings[1].kind == "repeats_equal"


def test_distances_are_those_of_the_gradients(log_dir):
    """The model has 243 weights, of which the sketch keeps every length."""
    runs = [read_run(path) for path in list_runs(log_dir)]
    for run in runs:
        norms = np.linalg.norm(run.sketches, axis=1)
        expected = run.scalars["gradient_norm"]
        np.testing.assert_allclose(norms, expected, rtol=0.1)


def test_nondeterminism_is_told_from_seeds(log_dir, tmp_path):
    for k in range(2):
        _train(tmp_path, 1, f"shaken {k}", shake=True)
    comparison = kpg.diagnose.compare_runs([log_dir, tmp_path], by="seed")
    data = comparison.data
    share = np.median(data["repeat_variance"] / data["variance"])
    assert 0 < share < 1e-4
    assert "repeats" in [finding.kind for finding in comparison.findings]
    assert all(e.real for e in comparison.groups if e.yardstick)


@pytest.mark.parametrize("lasting", [True, False])
def test_a_faulty_op_is_found(log_dir, tmp_path, lasting):
    """At its step; and in its variable, if the measured gradient has it.

    A fault in a training gradient alone shows in the probe's gradient by
    the weights that it leaves, which change the gradients of all variables.
    """
    _train(tmp_path, 0, "faulty", break_it=(1.5, lasting))
    comparison = kpg.diagnose.compare_runs([log_dir, tmp_path])
    (found,) = [d for d in comparison.divergences if d.common == "seed 0"]
    assert len(found.runs) == 4
    assert (found.differ_step, found.step) == (FAULTY_STEP, FAULTY_STEP)
    assert found.odd == "faulty"
    if lasting:
        path, size = found.variables[0]
        assert path.endswith("middle/kernel")
        assert size == pytest.approx(0.5, rel=0.5)
    (part,) = [f for f in comparison.findings if f.kind == "part"]
    assert part.values["step"] == FAULTY_STEP


def test_another_architecture_or_probe_is_refused_by_name(log_dir, tmp_path):
    x, y = _data()
    for units, size, field in ((4, 16, "architecture"), (12, 15, "probe")):
        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(12, activation="tanh")(inputs)
        hidden = Scaled(units, activation="tanh")(hidden)
        model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
        model.compile("sgd", "mse", jit_compile=False)
        record = kpg.callbacks.GradientVariance(
            probe=(x[:size], y[:size]), log_dir=tmp_path / field
        )
        model.fit(x[:16], y[:16], verbose=0, callbacks=[record])
        with pytest.raises(ValueError, match=f"the same `{field}`"):
            kpg.diagnose.compare_runs([log_dir, tmp_path / field])
