"""Clipping per layer and variable, automatic, adaptive, by schedules."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.aggregations.networks import compiled

layers, schedules = keras.layers, keras.optimizers.schedules
N = 9
_rng = np.random.default_rng(2)
X = _rng.normal(size=(N, 4, 6)).astype("float32")
Y = _rng.normal(size=(N, 3)).astype("float32")

MODES = {
    "vectorized": kpg.Vectorized,
    "per_sample": kpg.PerSample,
    "virtual": lambda a: kpg.Accumulated(
        microbatch_size=4, inner=kpg.Vectorized(a)
    ),
    "one by one": lambda a: kpg.Accumulated(
        microbatch_size=4, inner=kpg.PerSample(a)
    ),
}


model = functools.partial(compiled, jit_compile=False)


def step(net, n=N):
    """What one step subtracted from the weights, and its logs."""
    before = net.get_weights()
    logs = net.train_on_batch(X[:n], Y[:n], return_dict=True)
    after = net.get_weights()
    return [b - a for a, b in zip(after, before, strict=True)], logs


@functools.cache
def samples():
    """All per-sample gradients, as arrays (n, size)."""
    found = kpg.per_sample_gradients(model("batch"), X, Y)
    return [np.asarray(g) for g in found]


def norms(groups):
    """The norms over groups of variables, (n, groups)."""
    squares = [np.square(g).reshape(N, -1).sum(1) for g in samples()]
    return np.sqrt([sum(squares[k] for k in group) for group in groups]).T


GROUPS = {
    "model": [[0, 1, 2, 3]],
    "layer": [[0, 1], [2, 3]],
    "variable": [[0], [1], [2], [3]],
}


@pytest.mark.parametrize(
    ("per", "mode"),
    [
        ("variable", "vectorized"),
        ("variable", "per_sample"),
        ("variable", "virtual"),
        ("layer", "vectorized"),
        ("layer", "one by one"),
    ],
)
def test_clips_each_group(per, mode):
    groups = GROUPS[per]
    clip = float(np.median(norms(groups))) * np.sqrt(len(groups))
    limit = clip / np.sqrt(len(groups))
    factors = np.minimum(1, limit / norms(groups))
    assert 0 < np.mean(factors < 1) < 1
    found, logs = step(model(MODES[mode](kpg.ClippedMean(clip, per=per))))
    for g, group in enumerate(groups):
        for k in group:
            expected = np.tensordot(factors[:, g], samples()[k], 1) / N
            np.testing.assert_allclose(found[k], expected, 1e-4, 1e-6)
    assert logs["clipped_fraction"] == pytest.approx(np.mean(factors < 1))


def test_no_sample_keeps_more_than_the_clip_norm():
    for per in ("model", "variable"):
        net = model(kpg.Vectorized(kpg.ClippedMean(0.01, per=per)))
        found, _ = step(net, 1)
        total = np.sqrt(sum(np.square(f).sum() for f in found))
        assert total <= 0.01 * (1 + 1e-3), per
        assert total > 0.005


def _dense_behind_norm():
    inputs = keras.Input((4, 32))
    return inputs, layers.Dense(48, use_bias=False)(inputs)


def _convolution_behind_norm():
    inputs = keras.Input((6, 32))
    return inputs, layers.Conv1D(48, 3, use_bias=False)(inputs)


def _image_behind_norm():
    inputs = keras.Input((6, 6, 32))
    x = layers.Conv2D(48, 3, use_bias=False)(inputs)
    return inputs, layers.Reshape((16, 48))(x)


@pytest.mark.parametrize("offset", [0, 1e3, 3e3, 1e4])
@pytest.mark.parametrize(
    "make", [_dense_behind_norm, _convolution_behind_norm, _image_behind_norm]
)
def test_the_bound_holds_where_positions_cancel(make, offset):
    """What all positions have in common is gone behind the norm."""
    inputs, x = make()
    x = layers.LayerNormalization(axis=1, center=False, scale=False)(x)
    x = layers.Flatten()(layers.Activation("tanh")(x))
    head = layers.Dense(2, trainable=False)
    net = kpg.PerGradModel(inputs, head(x))
    mode = kpg.Vectorized(kpg.ClippedMean(0.1))
    net.compile(keras.optimizers.SGD(1.0), "mse", gradient_mode=mode)
    start, rng = net.get_weights(), np.random.default_rng(0)
    for _ in range(12):
        net.set_weights(start)
        x = offset + rng.normal(size=(1, *inputs.shape[1:]))
        net.train_on_batch(x.astype("float32"), rng.normal(size=(1, 2)))
        pairs = zip(net.get_weights(), start)
        moved = sum(np.square(a - b).sum(dtype="float64") for a, b in pairs)
        assert np.sqrt(moved) <= 0.1 * (1 + 1e-3)


@pytest.mark.parametrize("per", ["model", "variable"])
@pytest.mark.parametrize(
    "make",
    [kpg.ClippedMean, kpg.privacy.AutomaticClippedMean],
    ids=lambda m: m.__name__,
)
def test_numbers_keep_the_digits_of_float64(make, per):
    aggregation = make(0.1, per=per, expected_batch_size=0.3)
    size = [2, 3] if per == "variable" else [2]
    norms = 0.7 + np.arange(np.prod(size)).reshape(size)
    limit = 0.1 / np.sqrt(size[1:] or 1)
    expected = limit / (norms + getattr(aggregation, "gamma", 0.0))
    found = aggregation.weights(tf.constant(norms, "float64"))
    np.testing.assert_allclose(found, expected, 1e-15)
    gradients = [tf.constant([0.7, -0.2], "float64")]
    [mean] = aggregation.finish(gradients, tf.constant(2))
    np.testing.assert_allclose(mean, gradients[0] * 2 / 0.3, 1e-15)


def test_statistics_are_of_the_whole_gradient():
    logs = [
        step(
            model(
                kpg.Vectorized(kpg.ClippedMean(0.1, per=per), statistics=True)
            )
        )[1]
        for per in ("model", "variable")
    ]
    for name in ("gradient_norm", "gradient_variance"):
        assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-5)


def test_a_broken_variable_blanks_the_whole_sample():
    broken = X.copy()
    broken[3] = np.inf
    net = model(kpg.Vectorized(kpg.ClippedMean(0.1, per="variable")))
    logs = net.train_on_batch(broken, Y, return_dict=True)
    assert logs["nonfinite_samples"] == 1
    assert all(np.isfinite(w).all() for w in net.get_weights())


@pytest.mark.parametrize("per", ["model", "variable"])
def test_automatic(per):
    groups = GROUPS[per]
    factors = 0.3 / np.sqrt(len(groups)) / (norms(groups) + 0.05)
    clipping = kpg.privacy.AutomaticClippedMean(0.3, per=per, gamma=0.05)
    found, _ = step(model(kpg.Vectorized(clipping)))
    for g, group in enumerate(groups):
        for k in group:
            expected = np.tensordot(factors[:, g], samples()[k], 1) / N
            np.testing.assert_allclose(found[k], expected, 1e-4, 1e-6)


@pytest.mark.parametrize("mode", ["per_sample", "virtual"])
def test_expected_batch_size(mode):
    plain, _ = step(model(kpg.Vectorized(kpg.ClippedMean(0.1))), 6)
    clipping = kpg.ClippedMean(0.1, expected_batch_size=4)
    found, _ = step(model(MODES[mode](clipping)), 6)
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_allclose(a, b * 6 / 4, 1e-4, 1e-6)


def test_an_empty_batch_is_noise_alone():
    clipping = kpg.ClippedMean(
        0.5, noise_multiplier=3.0, seed=1, expected_batch_size=4
    )
    draws = []
    # The others call the model, whose convolution TensorFlow fails in.
    for build in (MODES["virtual"], MODES["one by one"]):
        net = model(build(clipping))
        data = tf.data.Dataset.from_generator(
            lambda: iter([(X[:0], Y[:0])] * 40),
            output_signature=(
                tf.TensorSpec([None, 4, 6]),
                tf.TensorSpec([None, 3]),
            ),
        ).apply(tf.data.experimental.assert_cardinality(40))
        before = net.get_weights()
        logs = net.fit(data, verbose=0, shuffle=False).history
        after = net.get_weights()
        assert logs["loss"] == [0]
        assert np.isnan(logs["clipped_fraction"]).all()
        draws.append(
            np.concatenate(
                [(a - b).ravel() for a, b in zip(after, before, strict=True)]
            )
        )
    np.testing.assert_allclose(*draws, rtol=1e-4, atol=1e-5)
    expected = 3.0 * 0.5 / 4 * np.sqrt(40)
    assert draws[0].std() == pytest.approx(expected, rel=0.35)


@pytest.mark.parametrize("mode", ["vectorized", "one by one"])
def test_the_clip_follows_a_quantile(mode):
    """In every mode alike, and in the end as many are below as it says."""
    keep = np.sort(norms(GROUPS["model"])[:, 0])
    clipping = kpg.privacy.AdaptiveClippedMean(
        0.05, quantile=0.7, clip_rate=0.5
    )
    net = model(MODES[mode](clipping))
    net.optimizer.learning_rate.assign(0.0)
    for _ in range(60):
        net.train_on_batch(X, Y)
    clip = float(net.aggregation_state.clip.numpy())
    assert keep[5] * 0.9 < clip < keep[7] * 1.1
    assert float(net.aggregation_state.seen.numpy()) == 0


def test_the_count_of_a_quantile_is_noisy():
    clipping = kpg.privacy.AdaptiveClippedMean(
        0.1,
        noise_multiplier=1.0,
        seed=1,
        expected_batch_size=10,
        clip_rate=1.0,
    )
    assert clipping.gradient_noise == pytest.approx((1 - 1 / 4) ** -0.5)
    net = model(kpg.Vectorized(clipping))
    net.optimizer.learning_rate.assign(0.0)
    moves, all_norms = [], norms(GROUPS["model"])
    for _ in range(50):
        before = float(net.aggregation_state.clip.numpy())
        net.train_on_batch(X, Y)
        after = float(net.aggregation_state.clip.numpy())
        below = (all_norms <= before).sum()
        fraction = 0.5 + (below - N / 2) / 10
        moves.append(np.log(after / before) + (fraction - 0.5))
        net.aggregation_state.clip.assign(0.1)
    assert np.std(moves) == pytest.approx(1.0 / 10, rel=0.35)


def test_the_clip_is_saved_and_goes_on(tmp_path):
    net = model(kpg.Vectorized(kpg.privacy.AdaptiveClippedMean(0.1)))
    net.train_on_batch(X, Y)
    clip = float(net.aggregation_state.clip.numpy())
    assert clip != pytest.approx(0.1)
    net.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert float(loaded.aggregation_state.clip.numpy()) == clip
    mode = net.gradient_mode
    net.compile("sgd", "mse", gradient_mode=mode)
    assert float(net.aggregation_state.clip.numpy()) == clip
    other = model(mode)
    assert float(other.aggregation_state.clip.numpy()) == pytest.approx(0.1)


@pytest.mark.parametrize("mode", ["vectorized", "virtual"])
def test_schedules(mode, tmp_path):
    clip = schedules.PiecewiseConstantDecay([0], [0.02, 0.04])
    net = model(MODES[mode](kpg.ClippedMean(clip)))
    first, _ = step(net)
    weights = net.get_weights()
    second, _ = step(net)
    expected, _ = step(model(kpg.Vectorized(kpg.ClippedMean(0.02))))
    for a, b in zip(first, expected, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-6)
    after = model(kpg.Vectorized(kpg.ClippedMean(0.04)))
    after.set_weights(weights)
    for a, b in zip(second, step(after)[0], strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-6)
    net.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert int(loaded.aggregation_state.steps.numpy()) == 2


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: kpg.ClippedMean(1.0, per="weights"), "`per` must be one of"),
        (
            lambda: kpg.ClippedMean(1.0, expected_batch_size=0),
            "`expected_batch_size` must be a positive",
        ),
        (lambda: kpg.privacy.AutomaticClippedMean(gamma=0), "`gamma` must be"),
        (
            lambda: kpg.privacy.AutomaticClippedMean(float("inf")),
            "must be finite",
        ),
        (
            lambda: kpg.privacy.AdaptiveClippedMean(quantile=1),
            "`quantile` must be",
        ),
        (
            lambda: kpg.privacy.AdaptiveClippedMean(clip_rate=-1),
            "`clip_rate` must",
        ),
        (
            lambda: kpg.privacy.AdaptiveClippedMean(
                0.1, noise_multiplier=2.0, count_noise=1.0
            ),
            "`count_noise` must be more than noise_multiplier / 2",
        ),
        (
            lambda: kpg.privacy.AdaptiveClippedMean(
                0.1, noise_multiplier=schedules.ExponentialDecay(1.0, 1, 0.5)
            ),
            "must be a finite number: the clip is not",
        ),
        (
            lambda: kpg.privacy.AdaptiveClippedMean(0.1, count_noise=1.0),
            "goes with a `noise_multiplier` only",
        ),
    ],
)
def test_refusals(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_check_gradients_knows_groups():
    net = model(kpg.Vectorized(kpg.ClippedMean(0.05, per="variable")))
    found = kpg.check_gradients(
        net, X[:4], Y[:4], gradient_modes=net.gradient_mode, devices=["CPU:0"]
    )
    assert "Yes" in str(found)


def test_numbers_of_numpy_are_taken():
    one = kpg.ClippedMean(
        np.float32(1.5),
        noise_multiplier=np.float64(0.5),
        expected_batch_size=np.int64(8),
    )
    assert one.get_config()["clip_norm"] == 1.5
    assert type(one.expected_batch_size) is int
    with pytest.raises(ValueError, match="`clip_norm` must be a positive"):
        kpg.ClippedMean(np.bool_(True))
