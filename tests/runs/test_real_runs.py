"""Runs of real training: the callback records, the comparison separates."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import keras_pergrad as kpg
from tests.models.making import compiled, net, normal
from tests.runs import made_up

SEEDS = [0, 0, 0, 1, 2, 3, 4]
STEPS, FAULTY_STEP = 12, 7


class Scaled(keras.layers.Dense):
    """A Dense whose gradient of the kernel is scaled: an op with a fault."""

    def build(self, input_shape):
        super().build(input_shape)
        self.scale = tf.Variable(1.0, trainable=False)

    def call(self, inputs):
        @tf.custom_gradient
        def kernel(value):
            return value, lambda upstream: upstream * self.scale

        return self.activation(inputs @ kernel(self.kernel) + self.bias)


class Break(keras.callbacks.Callback):
    """Makes the fault act in the training gradient of one step.

    Whether it acts in the measured gradients, too, and goes on.
    """

    def __init__(self, lasting):
        super().__init__()
        self.lasting = lasting

    def on_train_batch_begin(self, batch, logs=None):
        if batch + 1 == FAULTY_STEP:
            self.model.get_layer("middle").scale.assign(1.5)

    def on_train_batch_end(self, batch, logs=None):
        if not self.lasting:
            self.model.get_layer("middle").scale.assign(1.0)


class Shake(keras.callbacks.Callback):
    """Stands in for a machine that is not deterministic."""

    def on_train_batch_end(self, batch, logs=None):
        random = np.random.default_rng()  # another one each time
        for weight in self.model.trainable_variables:
            weight.assign_add(1e-5 * random.normal(size=weight.shape))


def _train(log_dir, seed, name, *callbacks):
    keras.utils.set_random_seed(seed)
    first = keras.layers.Dense(12, activation="tanh", name="first")
    middle = Scaled(12, activation="tanh", name="middle")
    model = compiled(
        net(first, middle, shape=(8,)), rate=0.05, jit_compile=False
    )
    x = normal(STEPS * 16, 8, seed=5)
    y = np.tanh(x @ normal(8, 3, seed=6))
    record = kpg.callbacks.GradientVariance(
        probe=(x[:16], y[:16]),
        every=1,
        repeats=1,
        log_dir=log_dir,
        run_name=name,
    )
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[*callbacks, record])


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


def test_nondeterminism_is_told_from_seeds(log_dir, tmp_path):
    for k in range(2):
        _train(tmp_path, 1, f"shaken {k}", Shake())
    comparison = kpg.diagnose.compare_runs([log_dir, tmp_path], by="seed")
    data = comparison.data
    share = np.median(data["repeat_variance"] / data["variance"])
    assert 0 < share < 1e-4
    assert "repeats" in made_up.kinds(comparison)
    assert all(e.real for e in comparison.groups if e.reference)


@pytest.mark.parametrize("lasting", [True, False])
def test_a_faulty_op_is_found(log_dir, tmp_path, lasting):
    """At its step; and in its variable, if the measured gradient has it.

    A fault in a training gradient alone shows in the probe's gradient by
    the weights that it leaves, which change the gradients of all variables.
    """
    _train(tmp_path, 0, "faulty", Break(lasting))
    comparison = kpg.diagnose.compare_runs([log_dir, tmp_path])
    (found,) = [d for d in comparison.divergences if d.common == "seed 0"]
    assert len(found.runs) == 4
    assert (found.differ_step, found.step) == (FAULTY_STEP, FAULTY_STEP)
    assert found.outlier == "faulty"
    if lasting:
        path, size = found.variables[0]
        assert path.endswith("middle/kernel")
        assert size == pytest.approx(0.5, rel=0.5)
    (part,) = [f for f in comparison.findings if f.kind == "diverge"]
    assert part.values["step"] == FAULTY_STEP
