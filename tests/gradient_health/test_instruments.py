"""The instruments against single samples, and where they have no answer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.callbacks import GradientVariance
from keras_pergrad.gradient_health import figures
from keras_pergrad.gradient_health.instruments import histogram
from tests.gradient_health import health_models, health_oracle

layers = keras.layers


def watched(case, *, batch=None, **options):
    """Fit one update; return the model, its reading, and the oracle's."""
    model, *data = case
    data = (*data, None)[:3]
    before = model.get_weights()
    options = {"instruments": "all", "repeats": 1, **options}
    watch = GradientVariance(probe=data, **options)
    x, y, weights = data
    n = len(tf.nest.flatten(x)[0])
    model.fit(x, y, n, 1, 0, [watch], sample_weight=weights, shuffle=False)
    return model, before, watch


def reading_of(case, **options):
    return watched(case, **options)[2].readings[0]


@pytest.mark.parametrize("name", health_models.CASES)
def test_equal_single_samples(float64, name):
    case = health_models.CASES[name]()
    model, before, watch = watched(case)
    batch = (*case[1:], None)[:3]
    expected = health_oracle.figures(model, before, batch, 0.1)
    reading = watch.readings[0]
    for key, value in expected.items():
        assert reading.figures[key] == pytest.approx(value, rel=1e-9), key
    assert watch.messages == []
    assert reading.variable_names == tuple(
        v.path for v in model.trainable_variables
    )
    for values in reading.by_variable.values():
        assert len(values) == len(reading.variable_names)


@pytest.mark.parametrize("how", ["run_eagerly", "jit_compile"])
def test_equal_single_samples_eagerly_and_by_xla(float64, how):
    case = health_models.mlp(**{how: True})
    model, before, watch = watched(case)
    expected = health_oracle.figures(model, before, (*case[1:], None), 0.1)
    for key, value in expected.items():
        assert watch.readings[0].figures[key] == pytest.approx(value, rel=1e-9)


def test_tests_of_the_batch_add_up_and_variables_make_the_whole(float64):
    reading = reading_of(health_models.cnn())
    known = reading.figures
    assert known["gradient_norm_test"] ** 2 == pytest.approx(
        known["gradient_inner_product_test"] ** 2
        + known["gradient_orthogonality_test"] ** 2
    )
    for name, figure in (
        ("distance", "gradient_distance"),
        ("norm", "gradient_norm"),
    ):
        assert np.linalg.norm(reading.by_variable[name]) == pytest.approx(
            known[figure]
        )
    assert sum(reading.by_variable["variance"]) == pytest.approx(
        known["gradient_variance"]
    )


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


def linear(rate, start=0.0, curve=1.0):
    """One weight w, on the loss (curve · w − 1)² of every sample."""
    model = keras.Sequential(
        [keras.Input((1,)), layers.Dense(1, use_bias=False)]
    )
    model.compile(keras.optimizers.SGD(rate), "mse", jit_compile=False)
    model.set_weights([np.array([[start]])])
    return model, np.full((3, 1), curve), np.ones((3, 1))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.5, 0), (1.0, 1), (0.25, -0.5), (0.75, 0.5), (0.0, -1)],
)
def test_alpha_is_the_place_on_a_parabola(float64, rate, expected):
    """The gradient is 2 (w − 1): a rate of 1 / 2 goes to the minimum."""
    figures = reading_of(linear(rate)).figures
    assert figures["gradient_alpha"] == pytest.approx(expected, abs=1e-9)


def test_alpha_where_the_parabola_bends_down_or_is_not_finite():
    none = (0.0, 0.0)
    assert figures.fit_alpha(1, (0, -2), (-1, -3), none, none) == -1
    # Up from the start, on a parabola that bends up.
    assert figures.fit_alpha(1, (0, 2), (1, 3), none, none) < -1
    nan = (float("nan"), 1.0)
    assert np.isnan(figures.fit_alpha(1, nan, (1, 1), none, none))


def test_noisy_ends_count_less():
    """With slopes that cannot be trusted the losses decide, and so on."""
    sure, unsure = (1e-6, 1e-6), (1e6, 1e6)
    losses, slopes = (1.0, 1.0), (-1.0, 0.0)
    by_losses = figures.fit_alpha(1, losses, slopes, sure, (1e-6, 1e6))
    assert by_losses == pytest.approx(1, abs=1e-3)
    by_slopes = figures.fit_alpha(1, losses, slopes, unsure, sure)
    assert by_slopes == pytest.approx(0, abs=1e-3)


def test_alpha_has_no_unit():
    """Of lengths, such as that of an update four times as long."""
    losses, loss_noise = (1.0, 0.7), (0.1, 0.3)
    slopes, slope_noise = np.array([-1.0, -0.2]), np.array([0.5, 0.2])
    found = [
        figures.fit_alpha(
            length,
            losses,
            slopes / length,
            loss_noise,
            slope_noise / length**2,
        )
        for length in (1.0, 4.0)
    ]
    assert found[0] == pytest.approx(found[1])
    assert -1 < found[0] < 1


def test_figures_of_three_samples_by_hand():
    g = np.array([[1.0, 2.0], [3.0, -1.0], [2.0, 2.0]])
    mean, squares = g.mean(0), np.square(g).sum(0)
    off, size = g - mean, np.linalg.norm(mean)
    ratio = (mean**2 / g.var(0)).mean()
    seen = figures.Observation(
        3,
        ("weight",),
        np.array([size**2]),
        np.array([g.var(0, ddof=1).sum()]),
        squared_norms=np.square(g).sum(1),
        dots=g @ mean,
        ratios=figures.snr_sums([mean], [tf.constant(squares)], 3).numpy(),
        loss=0.5,
        learning_rate=0.1,
    )
    along = (g @ mean)[:, None] * mean / size**2
    for ask, square in (
        (figures.norm_test, np.square(off).sum()),
        (figures.inner_product_test, np.square(off @ mean / size).sum()),
        (figures.orthogonality_test, np.square(g - along).sum()),
    ):
        (found,) = ask(seen).figures.values()
        assert found == pytest.approx(np.sqrt(square / 3 / 2) / size)
    for ask, right in (
        (figures.cabs, 0.1 * g.var(0).sum() / 0.5),
        (figures.signal_to_noise, ratio),
        (figures.stopping_evidence, 1 - 2 * ratio),
    ):
        answer = ask(seen)
        assert [*answer.figures.values()] == pytest.approx([right])
        for values in answer.by_variable.values():
            assert list(values) == pytest.approx([right])


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
    watch = GradientVariance(
        probe, instruments="all", repeats=1, histograms=True
    )
    model.fit(x, y, verbose=0, callbacks=[watch])
    reading = watch.readings[0]
    for name in ("norm_test", "cabs", "early_stopping", "alpha"):
        assert np.isnan(reading.figures[f"gradient_{name}"])
    assert reading.figures["gradient_exploding_layers"] >= 1
    norms = reading.histograms["sample_norms"]
    assert sum(norms.counts) == len(x) - 1


def test_one_sample_has_no_tests_and_it_is_said_once():
    model, x, y = health_models.mlp()
    watch = watched((model, x[:1], y[:1]))[2]
    assert len(watch.messages) == 1
    assert "one sample alone" in watch.messages[0]
    more = {k.removeprefix("gradient_") for k in watch.readings[0].figures} - {
        "norm",
        "repeat_deviation",
    }
    assert {"update_ratio", "distance", "vanishing_layers"} <= more
    assert not {"norm_test", "alpha", "dead_units", "cabs"} & more


def test_batch_normalization_leaves_what_needs_no_samples(capsys):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(5),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )
    model.compile("sgd", "mse", jit_compile=False)
    _, x, y = health_models.mlp()
    watch = watched((model, x, y))[2]
    assert set(watch.readings[0].figures) == {
        "gradient_norm",
        "gradient_update_ratio",
        "gradient_distance",
        "gradient_vanishing_layers",
        "gradient_exploding_layers",
    }
    assert capsys.readouterr().out.count("BatchNormalization) makes") == 1


class Squared(keras.Model):
    """Computes its own loss."""

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return tf.reduce_mean((y - y_pred) ** 2)


def test_alpha_needs_the_samples_losses_and_says_so():
    inputs = keras.Input((4,))
    model = Squared(inputs, layers.Dense(3)(inputs))
    model.compile("sgd", jit_compile=False)
    _, x, y = health_models.mlp()
    watch = watched((model, x, y))[2]
    assert "gradient_alpha" not in watch.readings[0].figures
    assert "gradient_cabs" in watch.readings[0].figures
    assert len(watch.messages) == 1
    assert "no 'alpha'" in watch.messages[0]


def test_layers_that_vanish_and_explode_are_named():
    model = keras.Sequential([keras.Input((4,), name="in")])
    for k in range(6):
        model.add(layers.Dense(4, activation="sigmoid", name=f"deep_{k}"))
    model.add(layers.Dense(3, name="head"))
    model.compile("sgd", "mse", jit_compile=False)
    for layer in model.layers[:-1]:
        layer.kernel.assign(0.01 * layer.kernel)
    _, x, y = health_models.mlp()
    reading = reading_of((model, x, y))
    first, *_, head = dict.fromkeys(
        path.rpartition("/")[0] for path in reading.variable_names
    )
    assert first in reading.layers["vanishing"]
    assert head not in reading.layers["vanishing"]
    assert reading.layers["exploding"] == ()
    model.optimizer.learning_rate = 0.0
    reading = reading_of((model, x, 1e9 * y))
    assert head in reading.layers["exploding"]


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
