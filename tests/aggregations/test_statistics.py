"""Statistics from norms, against gradients that are written out."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.aggregations import statistics
from keras_pergrad.aggregations.aggregation import DefinedMean
from keras_pergrad.aggregations.statistics import RatioOfMeans
from keras_pergrad.factors import Rows, squared_norm
from tests.marks import few
from tests.models import making

layers, of = keras.layers, kpg.aggregations.GradientStatistics.of
MODES = [kpg.PerSample, kpg.Vectorized]
NAMES = ("gradient_norm", "gradient_variance", "gradient_noise_scale")


def _model(mode="batch", **arguments):
    keras.utils.set_random_seed(0)
    model = making.net(
        layers.Embedding(5, 4),
        layers.Conv1D(3, 2, activation="tanh"),
        layers.Dense(6, "tanh"),
        layers.Dense(6, kernel_regularizer="l2"),  # gram: few positions
        layers.GlobalAveragePooling1D(),
        shape=(6,),
        dtype="int32",
        cls=kpg.PerGradModel,
    )
    sgd = keras.optimizers.SGD(0.0)
    return making.compiled(model, mode, optimizer=sgd, **arguments)


def _data(n=7):
    rng = np.random.default_rng(2)
    x = rng.integers(0, 5, (n, 6))
    return x, rng.normal(size=(n, 3)).astype(keras.config.floatx())


def _written_out(gradients):
    """Norm, variance and ‖G‖² from the covariance itself."""
    rows = np.concatenate([np.reshape(g, (len(g), -1)) for g in gradients], 1)
    trace = np.var(rows, 0, ddof=1).sum()
    norm = np.linalg.norm(rows.mean(0))
    return norm, trace, norm**2 - trace / len(rows)


def test_estimates_are_unbiased():
    """Over many draws tr Σ and ‖G‖² come out as they were put in."""
    rng = np.random.default_rng(1)
    true = np.full(10, 0.3)
    rows = true + rng.normal(0, 2.0, size=(20_000, 4, 10))
    squares = np.square(rows).sum((1, 2))
    means = np.square(rows.mean(1)).sum(1)
    traces = np.array((squares - 4 * means) / 3)
    assert traces.mean() == pytest.approx(40, rel=0.02)
    found = statistics.squared_true_norm(means, traces, 4)
    assert np.mean(found) == pytest.approx(0.9, abs=0.1)


def test_what_has_no_variance_or_no_noise_scale():
    squares = tf.constant([4.0])
    assert np.isnan(statistics.variance(squares, tf.constant(4.0), 1))
    one = of(squares, tf.constant(4.0))
    assert (one.norm, one.variance, one.noise_scale) == (2.0, None, None)
    rows = tf.constant([0.1, 0.1, 0.1])
    assert of(rows, tf.constant(0.1 + 1e-9)).variance == 0
    noisy = of(rows, tf.constant(1e-6))
    assert noisy.squared_true_norm < 0
    assert noisy.noise_scale is None


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_of_a_model_and_of_each_variable(method):
    x, y = _data()
    y[:] = y[:1]  # a mean gradient that the noise does not hide
    data = _model(), x, y, np.linspace(0.1, 2, 7)
    gradients = kpg.per_sample_gradients(*data)
    norm, trace, true = _written_out(gradients)
    found = kpg.gradient_statistics(*data, method=method)
    assert found.samples == 7
    np.testing.assert_allclose(
        [found.norm, found.variance, found.squared_true_norm],
        [norm, trace, true],
        rtol=1e-10,
    )
    assert found.noise_scale == pytest.approx(trace / true, rel=1e-10)
    each = kpg.gradient_statistics(*data, method=method, per_variable=True)
    for one, gradient in zip(each, gradients, strict=True):
        expected = _written_out([gradient])[:2]
        np.testing.assert_allclose([one.norm, one.variance], expected, 1e-10)
    assert sum(e.variance for e in each) == pytest.approx(found.variance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("run", few(["graph", "eager", "xla"], ["graph"]))
@pytest.mark.parametrize("per", [None, "model", "variable"])
def test_modes_log_them(mode, run, per):
    x, y = _data()
    gradients = kpg.per_sample_gradients(_model(), x, y)
    norm, trace, true = _written_out(gradients)
    aggregation = kpg.ClippedMean(0.05, per=per) if per else "mean"
    model = _model(
        mode(aggregation, statistics=True),
        run_eagerly=run == "eager",
        jit_compile=run == "xla",
    )
    logs = model.train_on_batch(x, y, return_dict=True)
    found = [logs[name] for name in NAMES]
    expected = [norm, trace, trace / true if true > 0 else np.nan]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert ("clipped_fraction" in logs) == bool(per)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_an_epoch_is_the_ratio_of_means(clip):
    x, y = _data(12)
    y[:] = y[:1]  # a mean gradient that the noise does not hide
    parts = [
        kpg.per_sample_gradients(_model(), x[i : i + 5], y[i : i + 5])
        for i in (0, 5, 10)
    ]
    norms, traces, trues = np.array([_written_out(part) for part in parts]).T
    assert np.mean(trues) > 0
    aggregation = kpg.ClippedMean(clip) if clip else "mean"
    model = _model(kpg.Vectorized(aggregation, statistics=True))
    expected = norms.mean(), traces.mean(), traces.mean() / trues.mean()
    for _ in range(2):
        given = {"batch_size": 5, "shuffle": False, "verbose": 0}
        logs = model.fit(x, y, **given).history
        found = [logs[name][0] for name in NAMES]
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_one_have_no_variance(mode):
    x, y = _data(3)
    model = _model(mode(statistics=True))
    logs = model.fit(x, y, batch_size=1, verbose=0).history
    finite = [np.isfinite(logs[name][0]) for name in NAMES]
    assert finite == [True, False, False]
    # The last batch, of one, changes nothing.
    pair = model.fit(x[:2], y[:2], batch_size=2, verbose=0).history
    both = model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(
        both["gradient_variance"], pair["gradient_variance"], rtol=1e-4
    )


def test_the_spread_of_finite_samples():
    """Two of three, whose contributions are a third of their gradients."""
    gradients = np.array([[1.0, 2.0], [3.0, -1.0]])
    norms = [*np.linalg.norm(gradients, axis=1), np.nan]
    total = np.square((gradients / 3).sum(0)).sum()
    norms, total = tf.constant(norms), tf.constant(total)
    found = statistics.spread_statistics(norms, [total], 3)
    norm, trace, true = _written_out([gradients])
    np.testing.assert_allclose(found["gradient_norm"], norm, rtol=1e-12)
    np.testing.assert_allclose(found["gradient_variance"], trace, rtol=1e-12)
    scale = found["gradient_noise_scale"]
    np.testing.assert_allclose(scale, [trace, true], rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_sample_is_left_out(mode):
    x, y = _data()
    y[2] = np.nan
    model = _model(mode(kpg.ClippedMean(0.1), statistics=True))
    logs = model.train_on_batch(x, y, return_dict=True)
    keep = np.array([0, 1, 3, 4, 5, 6])
    alone = _model(mode(kpg.ClippedMean(0.1), statistics=True))
    expected = alone.train_on_batch(x[keep], y[keep], return_dict=True)
    # The loss is a mean over 7 samples in one case and over 6 in the other.
    for name in NAMES:
        np.testing.assert_allclose(logs[name], expected[name], rtol=1e-4)
    model = _model(mode(statistics=True))
    logs = model.train_on_batch(x, y, return_dict=True)
    assert all(np.isnan(logs[name]) for name in NAMES)


def test_settings_are_kept_and_checked():
    for mode in MODES:
        again = mode.from_config(mode(statistics=True).get_config())
        assert set(again.log_metrics) == set(NAMES)
    assert not kpg.Vectorized().log_metrics
    with pytest.raises(ValueError, match="its variance is not defined"):
        kpg.PerSample(updates="sample", statistics=True)
    with pytest.raises(ValueError, match="`inner` cannot log statistics"):
        kpg.Accumulated(inner=kpg.Vectorized(statistics=True))


def test_metrics_tell_nothing_from_zero():
    mean, ratio = DefinedMean(), RatioOfMeans()
    assert np.isnan(mean.result())
    assert np.isnan(ratio.result())
    for value in (2.0, float("nan"), 4.0, float("inf")):
        mean.update_state(value)
    assert mean.result() == 3
    for pair in ([6.0, 1.0], [float("nan"), 5.0], [2.0, 3.0]):
        ratio.update_state(tf.constant(pair))
    assert ratio.result() == 2
    ratio.update_state(tf.constant([1.0, -9.0]))
    assert np.isnan(ratio.result())
    mean.reset_state()
    assert np.isnan(mean.result())


def test_norm_of_a_table_needs_no_table():
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.integers(0, 4, (3, 5)))
    dz = tf.constant(rng.normal(size=(3, 5, 2)))
    small = Rows(ids, dz, [4, 2])
    expected = np.square(tf.convert_to_tensor(small.weighted_sum(None))).sum()
    huge = Rows(ids, dz, [10**12, 2])
    np.testing.assert_allclose(huge.squared_norm_of_sum(), expected)
    np.testing.assert_allclose(squared_norm(huge.weighted_sum(None)), expected)
