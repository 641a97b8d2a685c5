"""One batch's gradient: against closed forms and the oracle."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.functions.batch_loss import MissingLoss
from keras_pergrad.gradient_health.figures import read_basic
from keras_pergrad.gradient_health.gradient_meter import GradientMeter
from keras_pergrad.gradient_health.observation import Observation
from keras_pergrad.keras_internals.models.parts import build_symbolically
from tests import oracle, zoo
from tests.models.making import assert_equal, compiled, net

layers = keras.layers
LOSS = "sparse_categorical_crossentropy"


def meter_of(model, *batch):
    """Return the meter of a batch, of a model that is compiled if need be."""
    batch = tf.nest.map_structure(
        lambda p: None if p is None else tf.convert_to_tensor(p),
        (*batch, None, None)[:3],
    )
    if not model.compiled:
        compiled(model, jit_compile=False)
    build_symbolically(model, batch)
    return GradientMeter(model, batch)


@pytest.mark.parametrize("maker", ["functional", "sequential"])
def test_it_agrees_with_the_oracle(maker):
    batch = zoo.data()
    model = zoo.MAKERS[maker](keras.Model)
    for layer in model.layers:
        if isinstance(layer, layers.Dropout):
            layer.rate = 0.0
    compiled(model, loss=LOSS)
    meter = meter_of(model, *batch)
    found = meter.measure()
    assert meter.plan.undefined is None
    figures, by_variable = read_basic(found)
    norms = [np.linalg.norm(g) for g in found.gradient]
    np.testing.assert_allclose(by_variable["norm"], norms, rtol=1e-5)
    each = kpg.gradient_statistics(model, *batch, per_variable=True)
    np.testing.assert_allclose(norms, [g.norm for g in each], 1e-4)
    traces = [g.variance for g in each]
    np.testing.assert_allclose(found.traces, traces, rtol=1e-3)
    whole = kpg.gradient_statistics(model, *batch)
    for name in ("variance", "norm"):
        expected = pytest.approx(getattr(whole, name), rel=1e-4)
        assert figures[f"gradient_{name}"] == expected
    true = figures["gradient_snr"] * found.trace / found.samples
    assert true == pytest.approx(whole.squared_true_norm, rel=1e-3)
    if maker == "sequential":
        expected = oracle.batch_gradient(model, *batch)
        oracle.assert_agree(found.gradient, expected)
        samples = oracle.per_sample_gradients(model, *batch)
        traces = [np.var(g, 0, ddof=1).sum() for g in samples]
        np.testing.assert_allclose(found.traces, traces, rtol=1e-3)


def test_each_variables_snr_and_noise_scale():
    def read(squared_means, traces):
        known = {"squared_means": np.array(squared_means)}
        if traces is not None:
            known["traces"] = np.array(traces)
        seen = Observation(samples=4, loss=0.0, gradient=[], **known)
        return read_basic(seen)

    squares, traces = [3.0, 1.0, 4.0, 0.0], [4.0, 8.0, 0.0, 0.0]
    _, found = read(squares, traces)
    # ‖G‖² is 2, −1, 4 and 0.
    np.testing.assert_array_equal(
        found["noise_scale"], [2.0, np.nan, 0.0, np.nan]
    )
    np.testing.assert_array_equal(found["snr"], [2.0, -0.5, np.nan, np.nan])
    for k in range(4):
        one, _ = read(squares[k:][:1], traces[k:][:1])
        for name in ("noise_scale", "snr"):
            whole, each = one[f"gradient_{name}"], found[name][k]
            np.testing.assert_array_equal(whole, each)
    figures, by_variable = read(squares, None)
    assert set(figures) == {"gradient_norm"}
    assert set(by_variable) == {"norm"}


def test_regularisers_are_in_the_loss_and_not_in_the_gradient():
    x = np.ones((4, 3), "float32")

    def measured(regularizer):
        keras.utils.set_random_seed(1)
        layer = layers.Dense(2, kernel_regularizer=regularizer)
        model = net(layer, shape=(3,), units=None)
        return meter_of(model, x, x[:, :2]).measure()

    plain, penalised = measured(None), measured("l2")
    assert penalised.loss > plain.loss
    assert_equal(penalised.gradient, plain.gradient, rtol=1e-5)


def test_a_variable_without_influence_has_a_zero_gradient():
    inputs = keras.Input((3,))
    outputs = layers.Dense(2, name="used")(inputs)
    unused = layers.Dense(1, name="unused")(inputs)
    model = compiled(keras.Model(inputs, [outputs, unused]), loss=["mse", None])
    batch = np.ones((4, 3), "float32"), [np.ones((4, 2)), None]
    found = meter_of(model, *batch).measure(2)
    assert found.repeats.equal_variables == 4
    assert [n > 0 for n in found.squared_means] == [True, True, False, False]
    assert found.traces[2:].tolist() == [0, 0]
    assert found.repeats.deviations.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("policy", ["mixed_float16", "float64"])
def test_float_types(policy):
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    model = zoo.sequential(keras.Model)
    compiled(model, loss=LOSS, optimizer="adam")
    x, y, _ = zoo.data()
    x = x.astype(keras.config.floatx())
    found = meter_of(model, x, y).measure()
    assert {g.dtype.name for g in found.gradient} == {keras.config.floatx()}
    compiled(model, loss=LOSS)
    known = kpg.gradient_statistics(model, x, y)
    rel = 1e-9 if policy == "float64" else 2e-2
    figures, _ = read_basic(found)
    assert figures["gradient_norm"] == pytest.approx(known.norm, rel=rel)
    assert found.trace == pytest.approx(known.variance, rel=rel)


class Noisy(layers.Layer):
    """Identity whose gradient is different every time."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        @tf.custom_gradient
        def multiply(x, weight):
            def gradient(d):
                # A variable would be put back; a Python counter is not.
                off = tf.numpy_function(self._next, [], tf.float32)
                off.set_shape(())
                return d * weight, tf.reduce_sum(d * x, 0) * off

            return x * weight, gradient

        return multiply(x, self.weight.value)

    def _next(self):
        self.count = getattr(self, "count", 0) + 1
        return np.float32(1 + 0.001 * self.count)


def test_repetitions_that_differ_are_found():
    x = np.ones((4, 3), "float32")
    model = net(layers.Dense(3), Noisy(), shape=(3,), units=None)
    found = meter_of(model, x, 0 * x).measure(4)
    # The last of four is the farthest, by three steps.
    largest = found.repeats.deviations[2]
    assert found.repeats.deviations[:2].tolist() == [0, 0]
    assert largest == pytest.approx(0.003, rel=0.02)
    share = np.sqrt(found.squared_means[2] / found.squared_mean)
    deviation = pytest.approx(largest * share, rel=1e-3)
    assert found.repeats.deviation == deviation
    assert found.repeats.equal_variables == 2


class NeedsTwo(layers.Layer):
    """Cannot be called for one sample alone, and does not say it well."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        if x.shape[0] == 1:
            raise self.error("one is\nnot enough")
        return self.scale * x


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_a_layer_that_needs_several_samples_has_variances(error):
    x = np.eye(4, 2, dtype="float32")
    model = net(layers.Dense(2), NeedsTwo(error), shape=(2,), units=None)
    meter = meter_of(model, x, x)
    found = meter.measure(2)
    assert meter.plan.undefined is None
    assert found.traces is not None
    assert found.squared_mean > 0
    assert found.repeats.deviation == 0
    assert meter.measure().squared_mean == found.squared_mean


def test_a_model_without_a_loss_is_refused():
    # A penalty on weights is no loss of the samples.
    parts = [layers.Dense(2, kernel_regularizer="l2")]
    x = np.ones((2, 2), "float32")
    model = compiled(net(*parts, shape=(2,), units=None), loss=None)
    with pytest.raises(MissingLoss, match=r"Expected compile\(loss=\.\.\.\)"):
        meter_of(model, x, x)
    parts.append(layers.ActivityRegularization(l2=1.0))
    model = compiled(net(*parts, shape=(2,), units=None), loss=None)
    assert meter_of(model, x, x).measure().squared_mean > 0


def test_a_model_without_variables_is_refused():
    model = net(layers.ReLU(), shape=(2,), units=None)
    with pytest.raises(ValueError, match="no trainable variables"):
        meter_of(model, np.ones((2, 2)), np.ones((2, 2)))
