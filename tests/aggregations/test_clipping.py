"""Clipping in every form, noise, and samples that are not finite."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.aggregations.aggregation import is_finite
from tests.marks import few
from tests.models import making
from tests.models.making import assert_equal

layers, schedules = keras.layers, keras.optimizers.schedules
Clipped = kpg.ClippedMean
Adaptive = kpg.privacy.AdaptiveClippedMean
Automatic = kpg.privacy.AutomaticClippedMean
N = 9
_rng = np.random.default_rng(2)
X = _rng.normal(size=(N, 4, 6)).astype("float32")
Y = _rng.normal(size=(N, 3)).astype("float32")

in_parts = functools.partial(kpg.Accumulated, microbatch_size=4)
MODES = {
    "vectorized": kpg.Vectorized,
    "per_sample": kpg.PerSample,
    "virtual": lambda a: in_parts(inner=kpg.Vectorized(a)),
    "one by one": lambda a: in_parts(inner=kpg.PerSample(a)),
}
BOTH = ["per_sample", "vectorized"]
EAGER, XLA = {"run_eagerly": True}, {"jit_compile": True}


def compiled(mode, **arguments):
    """Return a model with a kernel of several positions, and biases."""
    keras.utils.set_random_seed(0)
    parts = (
        layers.Conv1D(3, 2, activation="tanh"),
        layers.GlobalAveragePooling1D(),
    )
    model = making.net(*parts, shape=(4, 6), cls=kpg.PerGradModel)
    return making.compiled(model, mode, rate=1.0, **arguments)


model = functools.partial(compiled, jit_compile=False)


def step(net, x=X, y=Y):
    """What one step subtracted from the weights, and its logs."""
    before = net.get_weights()
    logs = net.train_on_batch(x, y, return_dict=True)
    after = net.get_weights()
    return [b - a for a, b in zip(after, before, strict=True)], logs


def clip_of(net):
    return float(net.aggregation_state.clip.numpy())


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


def assert_weighted(found, factors, groups, *, size=N):
    """What was subtracted is the sum of the samples, each by its factors."""
    for g, group in enumerate(groups):
        for k in group:
            expected = np.tensordot(factors[:, g], samples()[k], 1) / size
            np.testing.assert_allclose(found[k], expected, 1e-4, 1e-6)


CLIPPED = [
    *(("model", mode, how) for mode in BOTH for how in ({}, EAGER, XLA)),
    *(("variable", mode, {}) for mode in (*BOTH, "virtual")),
    ("layer", "vectorized", {}),
    ("layer", "one by one", {}),
]


@pytest.mark.parametrize(("per", "mode", "settings"), CLIPPED)
def test_clips_each_sample_in_each_group(per, mode, settings):
    groups = GROUPS[per]
    limit = 0.99 * float(np.median(norms(groups)))
    factors = np.minimum(1, limit / norms(groups))
    assert 0 < np.mean(factors < 1) < 1
    clipping = Clipped(limit * np.sqrt(len(groups)), per=per)
    found, logs = step(model(MODES[mode](clipping), **settings))
    assert_weighted(found, factors, groups)
    assert logs["clipped_fraction"] == pytest.approx(np.mean(factors < 1))
    assert logs["nonfinite_samples"] == 0


@pytest.mark.parametrize("mode", BOTH)
def test_an_infinite_clip_norm_is_the_mean(mode):
    found, _ = step(model(MODES[mode](Clipped(float("inf")))))
    assert_equal(found, step(model("batch"))[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["per_sample", "virtual"])
def test_an_expected_batch_size_divides(mode):
    found, _ = step(model(MODES[mode](Clipped(0.1, expected_batch_size=4))))
    factors = np.minimum(1, 0.1 / norms(GROUPS["model"]))
    assert_weighted(found, factors, GROUPS["model"], size=4)


@pytest.mark.parametrize("per", ["model", "variable"])
def test_automatic(per):
    groups, clipping = GROUPS[per], Automatic(0.3, per=per, gamma=0.05)
    factors = 0.3 / np.sqrt(len(groups)) / (norms(groups) + 0.05)
    found, _ = step(model(kpg.Vectorized(clipping)))
    assert_weighted(found, factors, groups)


@pytest.mark.parametrize("offset", [0, 1e3, 3e3, 1e4])
@pytest.mark.parametrize(
    ("shape", "cls", "sizes"),
    [
        ((4, 32), layers.Dense, ()),
        ((6, 32), layers.Conv1D, (3,)),
        ((6, 6, 32), layers.Conv2D, (3,)),
    ],
)
def test_the_bound_holds_where_positions_cancel(shape, cls, sizes, *, offset):
    """What all positions have in common is gone behind the norm."""
    parts = [
        cls(48, *sizes, use_bias=False),
        layers.Reshape((-1, 48)),
        layers.LayerNormalization(axis=1, center=False, scale=False),
        layers.Activation("tanh"),
        layers.Flatten(),
        layers.Dense(2, trainable=False),
    ]
    net = making.net(*parts, shape=shape, units=None)
    mode = kpg.Vectorized(Clipped(0.1))
    net = making.compiled(net, mode, rate=1.0)
    start, rng = net.get_weights(), np.random.default_rng(0)
    for _ in range(12):
        net.set_weights(start)
        x = offset + rng.normal(size=(1, *shape))
        net.train_on_batch(x.astype("float32"), rng.normal(size=(1, 2)))
        pairs = zip(net.get_weights(), start)
        moved = sum(np.square(a - b).sum(dtype="float64") for a, b in pairs)
        assert np.sqrt(moved) <= 0.1 * (1 + 1e-3)


@pytest.mark.parametrize("per", ["model", "variable"])
@pytest.mark.parametrize("make", [Clipped, Automatic])
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


@pytest.mark.parametrize(
    ("mode", "jit_compile", "per"),
    [
        *((mode, jit, "model") for mode in BOTH for jit in (False, True)),
        ("vectorized", False, "variable"),
    ],
)
def test_a_broken_sample_poisons_nothing(mode, jit_compile, per):
    aggregation = Clipped(0.1, per=per)
    broken = X.copy()
    broken[2, 1] = np.inf
    broken[4, 0] = np.nan
    net = model(MODES[mode](aggregation), jit_compile=jit_compile)
    found, logs = step(net, broken)
    assert logs["nonfinite_samples"] == 2
    keep = np.array([0, 1, 3, 5, 6, 7, 8])
    expected, _ = step(model(MODES[mode](aggregation)), X[keep], Y[keep])
    # The loss is a mean over 9 in one case and over 7 in the other, but
    # every gradient is clipped to the same norm.
    expected = [e * 7 / N for e in expected]
    assert_equal(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mode", few(BOTH, BOTH, killers=BOTH[:1]))
def test_noise_has_the_stated_deviation(mode):
    quiet, _ = step(model(MODES[mode](Clipped(0.5))))
    aggregation = Clipped(0.5, noise_multiplier=3.0, seed=1)
    net, noise = model(MODES[mode](aggregation)), []
    start = net.get_weights()
    for _ in range(60):
        net.set_weights(start)
        noisy, _ = step(net)
        noise += [(a - b).ravel() for a, b in zip(noisy, quiet, strict=True)]
    noise = np.concatenate(noise)
    expected = 3.0 * 0.5 / N
    # 60 steps of 51 numbers: the estimate is good to about 1.3 %.
    assert noise.std() == pytest.approx(expected, rel=0.06)
    assert abs(noise.mean()) < 4 * expected / np.sqrt(noise.size)


def test_an_empty_batch_is_noise_alone():
    noise = {"noise_multiplier": 3.0, "seed": 1}
    clipping = Clipped(0.5, expected_batch_size=4, **noise)
    spec = tf.TensorSpec([None, 4, 6]), tf.TensorSpec([None, 3])
    data = tf.data.Dataset.from_generator(
        lambda: iter([(X[:0], Y[:0])] * 40), output_signature=spec
    ).apply(tf.data.experimental.assert_cardinality(40))
    draws = []
    # The others call the model, whose convolution TensorFlow fails in.
    for mode in ("virtual", "one by one"):
        net = model(MODES[mode](clipping))
        before = net.get_weights()
        logs = net.fit(data, verbose=0, shuffle=False).history
        assert logs["loss"] == [0]
        assert np.isnan(logs["clipped_fraction"]).all()
        pairs = zip(net.get_weights(), before, strict=True)
        draws.append(np.concatenate([(a - b).ravel() for a, b in pairs]))
    np.testing.assert_allclose(*draws, rtol=1e-4, atol=1e-5)
    expected = 3.0 * 0.5 / 4 * np.sqrt(40)
    assert draws[0].std() == pytest.approx(expected, rel=0.35)


def test_logs_are_means_of_an_epoch_and_not_of_evaluation():
    keep = np.sort(norms(GROUPS["model"])[:8, 0])
    clip = float(keep[5]) * 1.0001  # 2 of 8 are above
    net = model(kpg.Vectorized(Clipped(clip)))
    net.optimizer.learning_rate = 0.0
    x, y = X[:8], Y[:8]
    given = {"batch_size": 4, "shuffle": False, "verbose": 0}
    history = net.fit(x, y, validation_data=(x, y), **given).history
    assert history["clipped_fraction"][0] == pytest.approx(2 / 8)
    assert "val_clipped_fraction" not in history
    assert set(net.evaluate(x, y, verbose=0, return_dict=True)) == {"loss"}


@pytest.mark.parametrize("mode", ["vectorized", "one by one"])
def test_the_clip_follows_a_quantile(mode):
    """In every mode alike, and in the end as many are below as it says."""
    keep = np.sort(norms(GROUPS["model"])[:, 0])
    clipping = Adaptive(0.05, quantile=0.7, clip_rate=0.5)
    net = model(MODES[mode](clipping))
    net.optimizer.learning_rate.assign(0.0)
    for _ in range(60):
        net.train_on_batch(X, Y)
    clip = clip_of(net)
    assert keep[5] * 0.9 < clip < keep[7] * 1.1
    assert float(net.aggregation_state.seen.numpy()) == 0


def test_the_count_of_a_quantile_is_noisy():
    noise = {"noise_multiplier": 1.0, "seed": 1}
    clipping = Adaptive(0.1, expected_batch_size=10, clip_rate=1.0, **noise)
    assert clipping.gradient_noise == pytest.approx((1 - 1 / 4) ** -0.5)
    net = model(kpg.Vectorized(clipping))
    net.optimizer.learning_rate.assign(0.0)
    moves, all_norms = [], norms(GROUPS["model"])
    for _ in range(50):
        before = clip_of(net)
        net.train_on_batch(X, Y)
        after = clip_of(net)
        below = (all_norms <= before).sum()
        fraction = 0.5 + (below - N / 2) / 10
        moves.append(np.log(after / before) + (fraction - 0.5))
        net.aggregation_state.clip.assign(0.1)
    assert np.std(moves) == pytest.approx(1.0 / 10, rel=0.35)


def test_the_clip_is_saved_and_goes_on(tmp_path):
    net = model(kpg.Vectorized(Adaptive(0.1)))
    net.train_on_batch(X, Y)
    clip = clip_of(net)
    assert clip != pytest.approx(0.1)
    net.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert clip_of(loaded) == clip
    mode = net.gradient_mode
    net.compile("sgd", "mse", gradient_mode=mode)
    assert clip_of(net) == clip
    other = model(mode)
    assert clip_of(other) == pytest.approx(0.1)


@pytest.mark.parametrize("mode", ["vectorized", "virtual"])
def test_schedules(mode, tmp_path):
    clip = schedules.PiecewiseConstantDecay([0], [0.02, 0.04])
    net = model(MODES[mode](Clipped(clip)))
    for now in (0.02, 0.04):
        one = model(kpg.Vectorized(Clipped(now)))
        one.set_weights(net.get_weights())
        assert_equal(step(net)[0], step(one)[0], rtol=1e-4, atol=1e-6)
    net.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert int(loaded.aggregation_state.steps.numpy()) == 2


INFINITE, NAN = float("inf"), float("nan")
NOISY = {"noise_multiplier": 1.0}
decay = schedules.ExponentialDecay(1.0, 1, 0.5)
REFUSED = [
    *(
        (Clipped, "`clip_norm` expected a positive", {"clip_norm": v})
        for v in (0, -1.0, NAN, "1", None, True, np.bool_(True))
    ),
    *(
        (Clipped, "`noise_multiplier` expected", {"noise_multiplier": v})
        for v in (-1.0, NAN, INFINITE)
    ),
    (Clipped, "must be finite", {"clip_norm": INFINITE, **NOISY}),
    (Clipped, "`seed` expected an integer", {"seed": 0.5}),
    (Clipped, "`per` expected one of", {"per": "weights"}),
    (
        Clipped,
        "`expected_batch_size` expected a positive",
        {"expected_batch_size": 0},
    ),
    (Automatic, "`gamma` expected", {"gamma": 0}),
    (Automatic, "must be finite", {"clip_norm": INFINITE}),
    (Adaptive, "`quantile` expected", {"quantile": 1}),
    (Adaptive, "`clip_rate` expected", {"clip_rate": -1}),
    (
        Adaptive,
        "`count_noise` must be more than noise_multiplier / 2",
        {"noise_multiplier": 2.0, "count_noise": 1.0},
    ),
    (Adaptive, "number: the clip is not", {"noise_multiplier": decay}),
    (Adaptive, "needs a `noise_multiplier` above 0", {"count_noise": 1.0}),
]


@pytest.mark.parametrize(("cls", "match", "arguments"), REFUSED)
def test_refusals(cls, match, arguments):
    defaults = {"clip_norm": 1.0} if cls is Clipped else {}
    with pytest.raises(ValueError, match=match):
        cls(**{**defaults, **arguments})


def test_check_gradients_knows_groups():
    net = model(kpg.Vectorized(Clipped(0.05, per="variable")))
    found = kpg.check_gradients(
        net, X[:4], Y[:4], gradient_modes=net.gradient_mode, devices=["CPU:0"]
    )
    assert "Yes" in str(found)


def test_numbers_of_numpy_are_taken():
    noise = {"noise_multiplier": np.float64(0.5)}
    one = Clipped(np.float32(1.5), expected_batch_size=np.int64(8), **noise)
    assert one.get_config()["clip_norm"] == 1.5
    assert type(one.expected_batch_size) is int


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_comparison_tells_finite_norms(dtype):
    limits = np.finfo("float16")
    values = [0.0, limits.tiny, 1.0, limits.max, np.inf, np.nan]
    norms = tf.cast(values, dtype)
    expected = tf.math.is_finite(norms).numpy()
    assert expected.tolist() == [True] * 4 + [False] * 2
    np.testing.assert_array_equal(is_finite(norms), expected)


@pytest.mark.parametrize("outer", [False, True])
def test_modes_ask_for_finite_norms_with_an_op_that_metal_has(outer):
    mode = kpg.PerSample(Clipped(1.0), statistics=True)
    if outer:
        mode = MODES["virtual"](Clipped(1.0))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    net = making.compiled(model("batch"), mode, optimizer=optimizer)
    optimizer.build(net.trainable_variables)
    net.compute_loss(X, Y, net(X), None)  # builds the compiled loss

    @tf.function(autograph=False)
    def step(x, y):
        found = net.gradient_mode.step(net, x, y, None)
        return found.gradients, found.statistics

    data = tf.constant(X), tf.constant(Y)
    definition = step.get_concrete_function(*data).graph.as_graph_def()
    bodies = [f.node_def for f in definition.library.function]
    ops = {node.op for body in [definition.node, *bodies] for node in body}
    assert "Less" in ops
    assert "IsFinite" not in ops


def test_noise_by_itself():
    aggregation = Clipped(0.5, noise_multiplier=3.0, seed=1)
    state = aggregation.make_state()
    [noise] = aggregation.finish([tf.zeros(10_000)], 4, state)
    assert np.std(noise) == pytest.approx(3.0 * 0.5 / 4, rel=0.03)
