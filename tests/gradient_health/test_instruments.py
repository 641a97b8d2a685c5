"""The instruments against single samples, and where they have no answer."""

import keras
import numpy as np
import pytest

from keras_pergrad.callbacks import GradientVariance
from keras_pergrad.gradient_health import last_update
from keras_pergrad.gradient_health.instruments import READ, histogram
from keras_pergrad.runs.figures import FIGURES, INSTRUMENTS
from tests.gradient_health import health_models, health_oracle
from tests.models.making import compiled, net, trained

layers = keras.layers


#: Figures of instruments that other tests ask.
ASKED_ELSEWHERE = {
    "gradient_noise_scale",
    "gradient_vanishing_layers",
    "gradient_exploding_layers",
}
#: What an instrument may need, as `Figure` says: of samples, and of weights.
OF_SAMPLES = {"samples", "dots", "weights", "units", "along"}
OF_WEIGHTS = {"begin", "before", "now"}


def watched(case, **options):
    """Fit one update; return the callback."""
    model, *data = case
    x, y, sample_weight = data = (*data, None)[:3]
    options = {"probe": data, "instruments": "all", "repeats": 1, **options}
    watch = GradientVariance(**options)
    settings = {"batch_size": len(x), "callbacks": [watch]}
    trained(model, x, y, sample_weight=sample_weight, **settings)
    return watch


def reading_of(case, **options):
    return watched(case, **options).readings[0]


def test_each_instrument_has_a_function_and_needs_what_there_is():
    assert set(READ) == set(INSTRUMENTS)
    for figure in FIGURES.values():
        assert figure.needs <= OF_SAMPLES | OF_WEIGHTS


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("mlp", {}, marks=pytest.mark.quick),
        *((name, {}) for name in health_models.CASES if name != "mlp"),
        ("mlp", {"run_eagerly": True}),
        ("mlp", {"jit_compile": True}),
    ],
)
def test_equal_single_samples(float64, name, options):
    """The whole, and what variables have of it."""
    model, *batch = case = health_models.CASES[name](**options)
    before = model.get_weights()
    watch = watched(case)
    expected = health_oracle.figures(
        model, before, (*batch, None)[:3], rate=0.1
    )
    names = {f.name for f in FIGURES.values() if f.instrument}
    assert expected.keys() == names - ASKED_ELSEWHERE
    reading = watch.readings[0]
    known, each = reading.figures, reading.by_variable
    for key, value in expected.items():
        assert known[key] == pytest.approx(value, rel=1e-9), key
    assert watch.messages == []
    paths = tuple(v.path for v in model.trainable_variables)
    assert reading.variable_names == paths
    for key, values in each.items():
        assert len(values) == len(paths)
        if name == "bare" and key != "relative_gradient":
            assert values[0] == pytest.approx(known[f"gradient_{key}"])
    for key in ("distance", "norm"):
        whole = known[f"gradient_{key}"]
        assert np.linalg.norm(each[key]) == pytest.approx(whole)
    assert sum(each["variance"]) == pytest.approx(known["gradient_variance"])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    figures = []
    for dtype in ("float32", policy):
        keras.utils.set_random_seed(1)
        keras.config.set_dtype_policy(dtype)
        case = health_models.mlp()
        case[0].optimizer.learning_rate = 0.0
        figures.append(reading_of(case).figures)
    for key in ("norm_test", "inner_product_test", "orthogonality_test"):
        one, other = (f[f"gradient_{key}"] for f in figures)
        assert one == pytest.approx(other, rel=0.05), key
    one, other = (f["gradient_dead_units"] for f in figures)
    assert one == other


def test_only_what_is_chosen_is_read():
    reading = reading_of(health_models.mlp(), instruments=("alpha", "distance"))
    plain = reading_of(health_models.mlp(), instruments=None)
    more = set(reading.figures) - set(plain.figures)
    assert more == {"gradient_alpha", "gradient_distance"}
    assert plain.layers == plain.histograms == {}
    assert set(plain.by_variable) == {"norm", "variance", "noise_scale", "snr"}


def linear(rate):
    """One weight w, at first 0, on the loss (w − 1)² of every sample."""
    weight = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = net(weight, shape=(1,), units=None)
    compiled(model, rate=rate, jit_compile=False)
    return model, np.ones((3, 1)), np.ones((3, 1))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.5, 0), (1.0, 1), (0.25, -0.5), (0.75, 0.5), (0.0, -1)],
)
def test_alpha_is_the_place_on_a_parabola(float64, rate, expected):
    """The gradient is 2 (w − 1): a rate of 1 / 2 goes to the minimum."""
    figures = reading_of(linear(rate)).figures
    assert figures["gradient_alpha"] == pytest.approx(expected, abs=1e-9)


def fitted_alpha(losses, slopes, **variances):
    """Return alpha; what has no variances given is exact."""
    exact = {"loss_variances": (0.0, 0.0), "slope_variances": (0.0, 0.0)}
    ends = {"losses": losses, "slopes": slopes, **exact, **variances}
    return last_update.fit_alpha(1, **ends)


def test_alpha_where_the_parabola_bends_down_or_is_not_finite():
    assert fitted_alpha((0, -2), (-1, -3)) == -1
    # Up from the start, on a parabola that bends up.
    assert fitted_alpha((0, 2), (1, 3)) < -1
    assert np.isnan(fitted_alpha((float("nan"), 1.0), (1, 1)))


def test_noisy_ends_count_less():
    """With slopes that cannot be trusted the losses decide, and so on."""
    sure, unsure = (1e-6, 1e-6), (1e6, 1e6)
    losses, slopes = (1.0, 1.0), (-1.0, 0.0)
    by_losses = {"loss_variances": sure, "slope_variances": (1e-6, 1e6)}
    by_slopes = {"loss_variances": unsure, "slope_variances": sure}
    for variances, expected in ((by_losses, 1), (by_slopes, 0)):
        found = fitted_alpha(losses, slopes, **variances)
        assert found == pytest.approx(expected, abs=1e-3)


def test_zero_gradients():
    model, x, y = health_models.mlp()
    figures = reading_of((model, x, model.predict(x, verbose=0))).figures
    assert figures["gradient_norm"] < 1e-6
    model, x, y = health_models.mlp()
    model.set_weights([0 * w for w in model.get_weights()])
    reading = reading_of((model, x, 0 * y))
    undefined = {k for k, v in reading.figures.items() if np.isnan(v)}
    assert {
        "gradient_norm_test",
        "gradient_inner_product_test",
        "gradient_orthogonality_test",
        "gradient_snr_by_weight",
        "gradient_early_stopping",
    } <= undefined
    assert reading.figures["gradient_alpha"] == -1
    assert reading.figures["gradient_dead_units"] == 1
    assert len(reading.layers["dead"]) == 2


def test_a_sample_that_is_not_finite():
    model, x, y = health_models.mlp()
    probe = x.copy(), y
    probe[0][2] = np.nan
    reading = reading_of((model, x, y), probe=probe, histograms=True)
    for name in ("norm_test", "cabs", "early_stopping", "alpha"):
        assert np.isnan(reading.figures[f"gradient_{name}"])
    assert reading.figures["gradient_exploding_layers"] >= 1
    norms = reading.histograms["sample_norms"]
    assert sum(norms.counts) == len(x) - 1


def test_one_sample_has_no_tests_and_it_is_said_once():
    model, x, y = health_models.mlp()
    watch = watched((model, x[:1], y[:1]))
    (message,) = watch.messages
    assert "one sample alone" in message
    found = {k.removeprefix("gradient_") for k in watch.readings[0].figures}
    assert {"update_ratio", "distance", "vanishing_layers"} <= found
    assert not {"norm_test", "alpha", "dead_units", "cabs"} & found
    assert not {"variance", "noise_scale", "snr"} & found
    assert set(watch.readings[0].by_variable) >= {"norm", "distance"}
    assert "variance" not in watch.readings[0].by_variable


def test_batch_normalization_leaves_what_needs_no_samples(capsys):
    model = net(layers.Dense(5), layers.BatchNormalization(), shape=(4,))
    _, x, y = health_models.mlp()
    reading = reading_of((compiled(model, jit_compile=False), x, y))
    assert set(reading.figures) == {
        "gradient_norm",
        "gradient_update_ratio",
        "gradient_distance",
        "gradient_vanishing_layers",
        "gradient_exploding_layers",
    }
    assert capsys.readouterr().out.count("BatchNormalization) makes") == 1


def test_alpha_needs_the_samples_losses_and_says_so():
    model = net(shape=(4,), cls=health_models.OwnLoss)
    compiled(model, loss=None, jit_compile=False)
    _, x, y = health_models.mlp()
    watch = watched((model, x, y))
    assert "gradient_alpha" not in watch.readings[0].figures
    assert "gradient_cabs" in watch.readings[0].figures
    (message,) = watch.messages
    assert "no 'alpha'" in message


def test_layers_that_vanish_and_explode_are_named():
    deep = [
        layers.Dense(4, activation="sigmoid", name=f"deep_{k}")
        for k in range(6)
    ]
    model = net(*deep, layers.Dense(3, name="head"), shape=(4,), units=None)
    compiled(model, jit_compile=False)
    for layer in deep:
        layer.kernel.assign(0.01 * layer.kernel)
    _, x, y = health_models.mlp()
    reading = reading_of((model, x, y))
    assert "deep_0" in reading.layers["vanishing"]
    assert "head" not in reading.layers["vanishing"]
    assert reading.layers["exploding"] == ()
    model.optimizer.learning_rate = 0.0
    reading = reading_of((model, x, 1e9 * y))
    assert "head" in reading.layers["exploding"]


def test_histograms():
    model, x, y = health_models.cnn()
    reading = reading_of((model, x, y), histograms=True)
    names = {f"gradient/{v.path}" for v in model.trainable_variables}
    assert set(reading.histograms) == names | {"sample_norms"}
    for v in model.trainable_variables:
        known = reading.histograms[f"gradient/{v.path}"]
        assert sum(known.counts) == int(np.prod(v.shape))
        assert len(known.edges) == len(known.counts) + 1
    assert sum(reading.histograms["sample_norms"].counts) == len(x)


@pytest.mark.parametrize("seed", range(3))
def test_a_histogram_counts_as_numpy_does(seed):
    values = np.random.default_rng(seed).normal(size=1000).astype("float32")
    known = histogram(values)
    counts, edges = np.histogram(values.astype("float64"), bins=30)
    np.testing.assert_allclose(known.edges, edges, rtol=1e-6)
    assert np.abs(np.array(known.counts) - counts).max() <= 1  # at a border
    assert sum(histogram(np.ones(4)).counts) == 4
    assert histogram(np.full(2, np.nan)).counts == (0,)
    assert (np.diff(known.edges) > 0).all()
