"""One batch's gradient: against closed forms and the oracle."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.gradient_health.batch_gradient import BatchGradient
from keras_pergrad.gradient_health.gradient_meter import GradientMeter
from keras_pergrad.keras_internals.losses.per_sample import MissingLoss
from tests import oracle, zoo
from tests.models.making import assert_equal, compiled, net

layers = keras.layers


def tensors(*parts):
    batch = (*parts, None, None)[:3]
    return tf.nest.map_structure(
        lambda p: None if p is None else tf.convert_to_tensor(p), batch
    )


def linear(d):
    bare = layers.Dense(1, use_bias=False)
    return compiled(net(bare, shape=(d,), units=None))


def meter_of(model, *batch):
    return GradientMeter(compiled(model, jit_compile=False), tensors(*batch))


def test_closed_form_of_a_linear_model_over_1000_draws():
    # g = 2 x (x·δ − ε) with x ~ N(0, I), ε ~ N(0, s²), δ = w − w*:
    # G = 2δ, E‖g‖² = 4 ((d + 2)‖δ‖² + d s²), tr Σ = E‖g‖² − ‖G‖².
    d, n, s, draws = 5, 8, 0.5, 1000
    model = linear(d)
    random = np.random.default_rng(0)
    weights, delta = random.normal(size=(2, d, 1)).astype("float32")
    model.set_weights([weights])
    size = float((delta**2).sum())
    true_square, true_trace = 4 * size, 4 * ((d + 1) * size + d * s**2)

    def draw():
        x = random.normal(size=(n, d)).astype("float32")
        noise = s * random.normal(size=(n, 1)).astype("float32")
        return tensors(x, x @ (weights - delta) + noise)

    meter = GradientMeter(model, draw())
    found = []
    for _ in range(draws):
        meter.batch = draw()
        measured = meter.measure()
        found.append(
            [
                measured.variance,
                measured.squared_true_norm,
                measured.squared_norms[0],
            ]
        )
    means, errors = np.mean(found, 0), np.std(found, 0) / np.sqrt(draws)
    expected = [true_trace, true_square, true_square + true_trace / n]
    np.testing.assert_array_less(np.abs(means - expected), 3 * errors)
    # The errors are small enough to tell n from n − 1 in the variance.
    assert errors[0] < 0.3 * true_trace / n
    scale = means[0] / means[1]
    assert scale == pytest.approx(true_trace / true_square, rel=0.15)


@pytest.mark.parametrize("maker", ["functional", "sequential"])
def test_it_agrees_with_the_oracle(maker):
    x, y, weights = zoo.data()
    model = zoo.MAKERS[maker](keras.Model)
    for layer in model.layers:
        if isinstance(layer, layers.Dropout):
            layer.rate = 0.0
    model.compile("sgd", "sparse_categorical_crossentropy")
    batch = tensors(x, y, weights)
    meter = GradientMeter(model, batch)
    found = meter.measure()
    assert meter.undefined is None
    statistics = kpg.gradient_statistics(
        model, x, y, weights, per_variable=True
    )
    for k, (g, known) in enumerate(zip(found.values, statistics)):
        assert found.norms[k] == pytest.approx(np.linalg.norm(g), rel=1e-5)
        assert found.norms[k] == pytest.approx(known.norm, rel=1e-4)
        assert found.variances[k] == pytest.approx(known.variance, rel=1e-3)
    whole = kpg.gradient_statistics(model, x, y, weights)
    assert found.variance == pytest.approx(whole.variance, rel=1e-4)
    assert found.norm == pytest.approx(whole.norm, rel=1e-4)
    assert found.squared_true_norm == pytest.approx(
        whole.squared_true_norm, rel=1e-3
    )
    if maker == "sequential":
        expected = oracle.batch_gradient(model, *batch)
        oracle.assert_agree(found.values, expected)
        samples = oracle.per_sample_gradients(model, *batch)
        traces = [np.var(g, 0, ddof=1).sum() for g in samples]
        np.testing.assert_allclose(found.variances, traces, rtol=1e-3)


def test_snr_and_noise_scale_belong_together():
    x, y, _ = zoo.data()
    model = zoo.sequential(keras.Model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    # Equal labels: the samples agree on the direction.
    meter = GradientMeter(model, tensors(x, np.zeros_like(y)))
    found = meter.measure()
    assert found.noise_scale > 0
    assert found.snr == pytest.approx(19 / found.noise_scale)
    found.squared_norms = found.squared_norms * 0
    assert found.noise_scale is None
    assert found.snr == pytest.approx(-1.0)


def test_each_variables_snr_and_noise_scale():
    found = BatchGradient(
        samples=4,
        loss=0.0,
        values=[],
        squared_norms=np.array([3.0, 1.0, 4.0, 0.0]),
        variances=np.array([4.0, 8.0, 0.0, 0.0]),
    )
    # ‖G‖² is 2, −1, 4 and 0.
    np.testing.assert_array_equal(
        found.noise_scales, [2.0, np.nan, 0.0, np.nan]
    )
    np.testing.assert_array_equal(found.snrs, [2.0, -0.5, np.nan, np.nan])
    for k in range(4):
        one = BatchGradient(
            4, 0.0, [], found.squared_norms[k:][:1], found.variances[k:][:1]
        )
        for whole, each in (
            (one.noise_scale, found.noise_scales[k]),
            (one.snr, found.snrs[k]),
        ):
            assert np.isnan(each) if whole is None else each == whole
    found.variances = None
    assert np.isnan(found.noise_scales).all()
    assert found.snrs.shape == (4,)


def test_regularisers_are_in_the_loss_and_not_in_the_gradient():
    x = np.ones((4, 3), "float32")

    def measured(regularizer):
        keras.utils.set_random_seed(1)
        layer = layers.Dense(2, kernel_regularizer=regularizer)
        model = net(layer, shape=(3,), units=None)
        return meter_of(model, x, x[:, :2]).measure()

    plain, penalised = measured(None), measured("l2")
    assert penalised.loss > plain.loss
    assert_equal(penalised.values, plain.values, rtol=1e-5)


def test_a_variable_without_influence_has_a_zero_gradient():
    inputs = keras.Input((3,))
    outputs = layers.Dense(2, name="used")(inputs)
    unused = layers.Dense(1, name="unused")(inputs)
    model = compiled(keras.Model(inputs, [outputs, unused]), loss=["mse", None])
    batch = tensors(np.ones((4, 3), "float32"), [np.ones((4, 2)), None])
    found = GradientMeter(model, batch).measure(2)
    assert found.bitwise_equal_variables == 4
    assert [n > 0 for n in found.norms] == [True, True, False, False]
    assert found.variances[2:].tolist() == [0, 0]
    assert found.repeat_deviations.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("policy", ["mixed_float16", "float64"])
def test_float_types(policy):
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    model = zoo.sequential(keras.Model)
    model.compile("adam", "sparse_categorical_crossentropy")
    x, y, _ = zoo.data()
    x = x.astype(keras.config.floatx())
    found = GradientMeter(model, tensors(x, y)).measure()
    assert {g.dtype.name for g in found.values} == {keras.config.floatx()}
    model.compile("sgd", "sparse_categorical_crossentropy")
    known = kpg.gradient_statistics(model, x, y)
    rel = 1e-9 if policy == "float64" else 2e-2
    assert found.norm == pytest.approx(known.norm, rel=rel)
    assert found.variance == pytest.approx(known.variance, rel=rel)


class Noisy(layers.Layer):
    """Identity whose gradient is different every time."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0.0, trainable=False)
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
    assert found.repeat_deviations[:2].tolist() == [0, 0]
    assert 0 < found.repeat_deviation < found.repeat_deviations[2] < 0.05
    assert found.bitwise_equal_variables == 2


def test_the_largest_deviation_counts():
    model = net(shape=(2,), units=1)
    meter = meter_of(model, np.ones((4, 2)), np.ones((4, 1)))
    meter.measure()
    kernel, bias = np.array([[3.0], [0.0]], "float32"), np.zeros(1, "float32")
    off = np.array([[0.0], [0.3]], "float32")
    answers = [kernel, kernel + off, kernel - 2 * off, kernel]
    squares = {"squared_norms": np.array([[9.0] * 4, [0.0] * 4])}
    replies = iter([(1.0, [answer, bias], squares) for answer in answers])
    meter._gradient_program = lambda *wanted: next(replies)
    found = meter.measure(4)
    assert found.repeat_deviation == pytest.approx(0.2)
    np.testing.assert_allclose(found.repeat_deviations, [0.2, 0])
    assert found.bitwise_equal_variables == 1


def test_one_sample_has_no_variance():
    meter = meter_of(linear(2), np.ones((1, 2)), np.ones((1, 1)))
    found = meter.measure(2)
    assert "one sample" in meter.undefined
    assert found.variance is found.noise_scale is found.snr is None
    assert found.repeat_deviation == 0


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


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (
            layers.BatchNormalization,
            r"are not defined: layer 'batch_norm.*makes every.*\.$",
        ),
        (zoo.Centre, r"are not defined: layer 'centre.*mixes the samples.*\.$"),
        (lambda: NeedsTwo(TypeError), None),
        (lambda: NeedsTwo(ValueError), None),
    ],
)
def test_samples_have_gradients_or_it_is_said_why_not(layer, said):
    x = np.eye(4, 2, dtype="float32")
    model = net(layers.Dense(2), layer(), shape=(2,), units=None)
    meter = meter_of(model, x, x)
    found = meter.measure(2)
    if said is None:
        assert meter.undefined is None
        assert found.variances is not None
    else:
        expected = f"(?s)the samples' own gradients {said}"
        assert re.match(expected, meter.undefined)
        assert found.variances is None
    assert found.norm > 0
    assert found.repeat_deviation == 0
    assert meter.measure().norm == found.norm


def test_a_model_without_a_loss_is_refused():
    # A penalty on weights is no loss of the samples.
    parts = [layers.Dense(2, kernel_regularizer="l2")]
    x = np.ones((2, 2), "float32")
    model = compiled(net(*parts, shape=(2,), units=None), loss=None)
    with pytest.raises(MissingLoss, match=r"Expected compile\(loss=\.\.\.\)"):
        GradientMeter(model, tensors(x, x)).measure()
    parts.append(layers.ActivityRegularization(l2=1.0))
    model = compiled(net(*parts, shape=(2,), units=None), loss=None)
    assert GradientMeter(model, tensors(x, x)).measure().norm > 0


def test_a_model_without_variables_is_refused():
    model = net(layers.ReLU(), shape=(2,), units=None)
    with pytest.raises(ValueError, match="no trainable variables"):
        meter_of(model, np.ones((2, 2)), np.ones((2, 2)))


class Counting(layers.Layer):
    """Has state of every kind, and adds a loss."""

    def __init__(self):
        super().__init__()
        self.calls = self.add_weight(shape=(), trainable=False)
        self.plain = tf.Variable(0, trainable=False)

    def call(self, x, training=False):
        self.calls.assign_add(1.0)
        self.plain.assign_add(1)
        self.add_loss(0.01 * keras.ops.sum(x**2))
        noise = keras.random.normal(keras.ops.shape(x))  # the global seed
        return x + 0.1 * noise if training else x


@pytest.mark.parametrize("eagerly", [False, True])
def test_no_state_changes(eagerly):
    inputs = keras.Input((3,))
    x = layers.Dense(4)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Dropout(0.5, seed=1)(x)
    counting = Counting()
    x = counting(x)
    model = keras.Model(inputs, [layers.Dense(1)(x), layers.Dense(2)(x)])
    model.compile("adam", ["mse", "mae"], run_eagerly=eagerly)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    y = [x[:, :1], x[:, :2]]
    model.fit(x, y, verbose=0)

    def state():
        from keras.src.backend.common import global_state

        seeds = global_state.get_global_attribute("global_seed_generator")
        variables = [
            *model.variables,
            *model.optimizer.variables,
            *(v for metric in model.metrics for v in metric.variables),
            seeds.state,
        ]
        found = [np.array(v) for v in variables]
        # A plain variable is not known to Keras in eager execution.
        return found if eagerly else [*found, counting.plain.numpy()]

    before = state()
    found = GradientMeter(model, tensors(x, y)).measure(3)
    # Dropout and noise were the same each time.
    assert found.repeat_deviation < 1e-6
    assert_equal(state(), before)


def test_state_is_put_back_when_the_measurement_fails():
    class Failing(layers.Layer):
        fails = False

        def __init__(self):
            super().__init__()
            self.calls = self.add_weight(
                shape=(), initializer="zeros", trainable=False
            )

        def call(self, x):
            self.calls.assign_add(1.0)
            zero = tf.numpy_function(self.check, [], tf.float32)
            zero.set_shape(())
            return x + zero

        def check(self):
            if self.fails:
                raise RuntimeError("on purpose")
            return np.float32(0)

    failing = Failing()
    x = np.ones((4, 3), "float32")
    meter = meter_of(net(failing, shape=(3,), units=1), x, x[:, :1])
    meter.measure()
    failing.fails = True
    with pytest.raises(tf.errors.OpError, match="on purpose"):
        meter.measure()
    assert float(failing.calls) == 0
