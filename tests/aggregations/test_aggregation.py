"""Clipping, noise, and what happens to samples that are not finite."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.aggregations.aggregation import is_finite
from tests.aggregations.networks import compiled

layers = keras.layers


def _data(n=7):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, 4, 6)).astype("float32")
    return x, rng.normal(size=(n, 3)).astype("float32")


def _step(model, x, y):
    """What one SGD step with learning rate 1 subtracted from the weights."""
    before = model.get_weights()
    logs = model.train_on_batch(x, y, return_dict=True)
    after = model.get_weights()
    return [b - a for a, b in zip(after, before, strict=True)], logs


MODES = [kpg.PerSample, kpg.Vectorized]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("execution", ["graph", "eager", "xla"])
def test_clips_every_sample(mode, execution):
    x, y = _data()
    plain = compiled("batch")
    gradients = kpg.per_sample_gradients(plain, x, y)
    norms = kpg.per_sample_norms(plain, x, y).numpy()
    clip = 0.99 * float(np.median(norms))
    factors = np.minimum(1, clip / norms)
    model = compiled(
        mode(kpg.ClippedMean(clip)),
        run_eagerly=execution == "eager",
        jit_compile=execution == "xla",
    )
    step, logs = _step(model, x, y)
    for found, sample in zip(step, gradients, strict=True):
        expected = np.tensordot(factors, sample, 1) / len(x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert logs["clipped_fraction"] == pytest.approx(np.mean(factors < 1))
    assert logs["nonfinite_samples"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_infinite_clip_norm_is_the_mean(mode):
    x, y = _data()
    found, _ = _step(compiled(mode(kpg.ClippedMean(float("inf")))), x, y)
    expected, _ = _step(compiled("batch"), x, y)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_broken_sample_poisons_nothing(mode, jit_compile):
    x, y = _data()
    aggregation = kpg.ClippedMean(0.1)
    model = compiled(mode(aggregation), jit_compile=jit_compile)
    broken = x.copy()
    broken[2, 1] = np.inf
    broken[4, 0] = np.nan
    found, logs = _step(model, broken, y)
    assert logs["nonfinite_samples"] == 2
    keep = np.array([0, 1, 3, 5, 6])
    expected, _ = _step(compiled(mode(aggregation)), x[keep], y[keep])
    for a, b in zip(found, expected, strict=True):
        # The loss is a mean over 7 in one case and over 5 in the other, but
        # every gradient is clipped to the same norm.
        np.testing.assert_allclose(a * 7, b * 5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_noise_has_the_stated_deviation(mode):
    x, y = _data()
    quiet, _ = _step(compiled(mode(kpg.ClippedMean(0.5))), x, y)
    aggregation = kpg.ClippedMean(0.5, noise_multiplier=3.0, seed=1)
    model = compiled(mode(aggregation))
    noise = []
    start = model.get_weights()
    for _ in range(60):
        model.set_weights(start)
        noisy, _ = _step(model, x, y)
        noise += [(a - b).ravel() for a, b in zip(noisy, quiet, strict=True)]
    noise = np.concatenate(noise)
    expected = 3.0 * 0.5 / len(x)
    # 60 steps of 51 numbers: the estimate is good to about 1.3 %.
    assert noise.std() == pytest.approx(expected, rel=0.06)
    assert abs(noise.mean()) < 4 * expected / np.sqrt(noise.size)


def test_noise_by_itself():
    aggregation = kpg.ClippedMean(0.5, noise_multiplier=3.0, seed=1)
    state = aggregation.make_state()
    [noise] = aggregation.finish([tf.zeros(10_000)], 4, state)
    assert np.std(noise) == pytest.approx(3.0 * 0.5 / 4, rel=0.03)


def test_noise_is_repeatable_with_a_seed():
    x, y = _data()
    steps = [
        _step(
            compiled(
                kpg.Vectorized(
                    kpg.ClippedMean(0.5, noise_multiplier=1.0, seed=3)
                )
            ),
            x,
            y,
        )[0]
        for _ in range(2)
    ]
    for a, b in zip(*steps, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "1", None, True])
def test_clip_norm_must_be_positive(value):
    with pytest.raises(ValueError, match="`clip_norm` must be a positive"):
        kpg.ClippedMean(value)


def test_noise_must_be_a_finite_multiplier():
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="`noise_multiplier` must be"):
            kpg.ClippedMean(1.0, noise_multiplier=value)
    with pytest.raises(ValueError, match="must be finite"):
        kpg.ClippedMean(float("inf"), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="`seed` must be an integer"):
        kpg.ClippedMean(1.0, seed=0.5)


def test_evaluate_does_not_report_training_statistics():
    x, y = _data()
    model = compiled(kpg.Vectorized(kpg.ClippedMean(0.1)))
    history = model.fit(x, y, validation_data=(x, y), verbose=0).history
    assert "clipped_fraction" in history
    assert "val_clipped_fraction" not in history
    assert set(model.evaluate(x, y, verbose=0, return_dict=True)) == {"loss"}


def test_statistics_are_epoch_means():
    x, y = _data(8)
    norms = kpg.per_sample_norms(compiled("batch"), x, y).numpy()
    clip = float(np.sort(norms)[5])  # 2 of 8 are above
    model = compiled(kpg.Vectorized(kpg.ClippedMean(clip * 1.0001)))
    model.optimizer.learning_rate = 0.0
    history = model.fit(x, y, batch_size=4, verbose=0, shuffle=False).history
    assert history["clipped_fraction"][0] == pytest.approx(2 / 8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_comparison_tells_finite_norms(dtype):
    limits = np.finfo("float16")
    values = [0.0, limits.tiny, 1.0, limits.max, np.inf, np.nan]
    norms = tf.cast(values, dtype)
    expected = tf.math.is_finite(norms).numpy()
    assert expected.tolist() == [True] * 4 + [False] * 2
    np.testing.assert_array_equal(is_finite(norms), expected)


def _ops(model, x, y):
    """The types of ops in a mode's step."""

    model.compute_loss(x, y, model(x), None)  # builds the compiled loss

    @tf.function(autograph=False)
    def step(x, y):
        found = model.gradient_mode.step(model, x, y, None)
        return found.gradients, found.statistics

    definition = step.get_concrete_function(x, y).graph.as_graph_def()
    bodies = [f.node_def for f in definition.library.function]
    return {node.op for body in [definition.node, *bodies] for node in body}


@pytest.mark.parametrize(
    "mode",
    [
        kpg.PerSample(kpg.ClippedMean(1.0), statistics=True),
        kpg.Accumulated(
            microbatch_size=4,
            inner=kpg.Vectorized(aggregation=kpg.ClippedMean(1.0)),
        ),
    ],
)
def test_modes_ask_for_finite_norms_with_an_op_that_metal_has(mode):
    model = compiled(mode)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, "mse", gradient_mode=mode)
    optimizer.build(model.trainable_variables)
    ops = _ops(model, *map(tf.constant, _data()))
    assert "Less" in ops
    assert "IsFinite" not in ops
