"""Adam without the noise's part of the second moment, against NumPy."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.privacy import corrected
from keras_pergrad.privacy.corrected_adam import CorrectedAdam
from tests.models import making
from tests.privacy.tiny import N, X, Y, fit, model, private, refused

layers, optimizers = keras.layers, keras.optimizers
Decay = optimizers.schedules.ExponentialDecay
STEPS, SIZE = 5, 6
_rng = np.random.default_rng(8)
IDS = _rng.integers(0, 7, (SIZE, 4))
TARGETS = _rng.normal(size=(SIZE, 1))


def net(optimizer, mode, **arguments):
    """A model with an embedding, a weight decay and a weight without use."""
    keras.utils.set_random_seed(1)
    result = making.net(
        layers.Embedding(7, 3, name="table"),
        layers.Flatten(),
        layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.01)),
        shape=(4,),
        dtype="int32",
        units=None,
    )
    return making.compiled(result, mode, optimizer=optimizer, **arguments)


#: Keras takes constants through single precision, which has these and those of
#: the schedules below.
ADAM = {"learning_rate": 0.1, "beta_1": 7 / 8, "beta_2": 63 / 64}


def expected_weights(start, gradients, variances, *, gamma, decay=0.0):
    """The formula of the docstring, Φ as a sum over all steps."""
    rate, b1, b2 = ADAM.values()
    weights = [w.astype("float64") for w in start]
    for k, weight in enumerate(weights):
        m = v = phi = 0.0
        for t, (step, variance) in enumerate(zip(gradients, variances), 1):
            m = b1 * m + (1 - b1) * step[k]
            v = b2 * v + (1 - b2) * step[k] ** 2
            phi = b2 * phi + (1 - b2) * variance
            estimate, noise = v / (1 - b2**t), phi / (1 - b2**t)
            floor = noise / 10 if gamma is None else gamma
            root = np.sqrt(np.maximum(estimate - noise, floor))
            weight *= 1 - decay * rate
            weight -= rate * m / (1 - b1**t) / root
    return weights


CLIPPINGS = {
    "constant": (
        kpg.ClippedMean(0.5, noise_multiplier=0.7, seed=2),
        lambda t, clip: (0.7 * 0.5 / SIZE) ** 2,
    ),
    "schedules": (
        kpg.ClippedMean(
            Decay(0.5, 1, 0.75),
            noise_multiplier=Decay(0.75, 1, 0.875),
            expected_batch_size=4,
            per="variable",
            seed=2,
        ),
        lambda t, clip: (0.75 * 0.875**t * 0.5 * 0.75**t / 4) ** 2,
    ),
    "adaptive": (
        kpg.privacy.AdaptiveClippedMean(
            0.5, noise_multiplier=0.7, count_noise=1.0, seed=2
        ),
        lambda t, clip: clip**2 / (0.7**-2 - 2.0**-2) / SIZE**2,
    ),
}


def test_correlated_noise_has_another_variance_at_each_step():
    training = private(noise="correlated", bands=3, steps=8)
    aggregation = training.gradient_mode.aggregation
    state = aggregation.make_state()
    state.enter_phase([tf.zeros(3)])
    found = []
    for _ in range(8):
        found.append(float(aggregation.noise_variance(7, state)))
        state.count_update(True)
    expected = training.mechanism.strategy.variances(8) * (2.0 / 10) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[-1] > 1.1 * found[0]


@pytest.mark.parametrize(
    ("clipping", "gamma", "cls"),
    [
        ("constant", None, optimizers.Adam),
        ("constant", 2.0**-13, optimizers.AdamW),
        ("schedules", None, optimizers.AdamW),
        ("adaptive", None, optimizers.Adam),
    ],
)
def test_against_numpy(clipping, gamma, cls, *, float64):
    aggregation, variance = CLIPPINGS[clipping]
    decay = 0.02 if cls is optimizers.AdamW else None
    adam = {**ADAM, "epsilon": 0.0, "weight_decay": decay}

    def trained(mode, **arguments):
        optimizer = corrected(cls(**adam), gamma=gamma)
        return net(optimizer, mode, **arguments), optimizer

    mode = kpg.Vectorized(aggregation)
    found, optimizer = trained(mode, run_eagerly=True)
    start, gradients, variances = found.get_weights(), [], []
    apply = optimizer.apply

    def recorded(given, variables=None):
        gradients.append([np.asarray(tf.convert_to_tensor(g)) for g in given])
        apply(given, variables)

    with mock.patch.object(optimizer, "apply", recorded):
        for t in range(STEPS):
            clip = float(getattr(found.aggregation_state, "clip", 0.0))
            variances.append(variance(t, clip))
            found.train_on_batch(IDS, TARGETS)
    weights = found.get_weights()
    expected = expected_weights(
        start, gradients, variances, gamma=gamma, decay=decay or 0
    )
    making.assert_equal(weights, expected, 1e-10, atol=1e-10)
    # And so in graphs and from microbatches; XLA draws other noise, whose
    # variance is the same.
    virtual = kpg.Accumulated(microbatch_size=4, inner=mode)
    for other, compiled in ((mode, False), (virtual, False), (mode, True)):
        again, by_other = trained(other, jit_compile=compiled)
        for _ in range(STEPS):
            again.train_on_batch(IDS, TARGETS)
        if not compiled:
            making.assert_equal(again.get_weights(), weights, 1e-9, atol=1e-9)
        elif clipping != "adaptive":
            parts = [np.asarray(o.noise_parts) for o in (by_other, optimizer)]
            np.testing.assert_allclose(*parts, rtol=1e-10)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("cls", [optimizers.Adam, optimizers.AdamW])
def test_without_noise_it_is_kerass_own(cls, before, float64):
    """Also in what is left out of weight decay, said before or after."""
    start = {"kernel": _rng.normal(size=(3, 2)), "bias": _rng.normal(size=4)}
    found = []
    for wrap in (lambda o: o, corrected):
        weights = [keras.Variable(w, name=n) for n, w in start.items()]
        optimizer = cls(0.1, weight_decay=0.1)
        if before:
            optimizer.exclude_from_weight_decay(var_names=["bias"])
        optimizer = wrap(optimizer)
        if not before:
            optimizer.exclude_from_weight_decay(var_list=weights[1:])
        if isinstance(optimizer, CorrectedAdam):
            optimizer.set_noise_variance(0)
        generator = np.random.default_rng(3)
        for _ in range(4):
            gradients = [generator.normal(size=w.shape) for w in weights]
            optimizer.apply([tf.constant(g) for g in gradients], weights)
        found.append([np.asarray(w) for w in weights])
    making.assert_equal(*found, 1e-10, 1e-10)


#: The gradient is noise alone, of 10,000 numbers.
NOISY = kpg.ClippedMean(0.3, noise_multiplier=2.0, seed=1)
by_sum = kpg.Vectorized(NOISY)
joined = kpg.Accumulated(steps=2, inner=by_sum)
in_private = private(noise_multiplier=2.0, microbatch_size=6)
#: A mode or a private training, whether it is compiled, and the policy.
NOISES = {
    "graph": (by_sum, False, "float32"),
    "compiled": (kpg.PerSample(NOISY), True, "float32"),
    "one update for two batches": (joined, False, "float32"),
    "each sample": (kpg.PerSample(NOISY, updates="sample"), False, "float32"),
    "loss scale": (by_sum, False, "mixed_float16"),
    "loss scale, compiled": (by_sum, True, "mixed_float16"),
    "private": (in_private, False, "float32"),
    "private, compiled": (in_private, True, "float32"),
}


@pytest.mark.parametrize("name", NOISES)
def test_pure_noise_leaves_nothing(name):
    """v̂ − Φ̂ has the mean 0: the modes tell the variance that is there."""
    given, jit_compile, policy = NOISES[name]
    keras.config.set_dtype_policy(policy)
    optimizer, mode = corrected("adam"), getattr(given, "gradient_mode", given)
    dense = layers.Dense(100, use_bias=False)
    result = making.net(dense, shape=(100,), units=None)
    result = making.compiled(
        result, mode, optimizer=optimizer, jit_compile=jit_compile
    )
    zeros = np.zeros((N, 100), "float32")
    if mode is given:
        result.fit(zeros[:12], zeros[:12], batch_size=3, epochs=2, verbose=0)
    else:
        fit(result, given, 2, data=given.batches(zeros, zeros))
    (part,), moments = optimizer.noise_parts, optimizer.variables
    (velocity,) = [v for v in moments if v.path.endswith("velocity")]
    # Means of 10,000 squares: the deviation is 1.4 % of a step's, at most.
    share = float(np.mean(velocity) / np.asarray(part))
    assert share == pytest.approx(1, abs=0.04)
    assert float(optimizer.noise_variance) == 0


def test_saved_and_loaded(tmp_path):
    training = private()
    given = optimizers.AdamW(Decay(0.1, 5, 0.9), weight_decay=0.01)
    given.exclude_from_weight_decay(var_names=["bias"])
    optimizer = corrected(given, gamma=1e-3)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    assert optimizer.get_config() == {**given.get_config(), "gamma": 1e-3}
    net = model(training, corrected(optimizers.AdamW(0.1), gamma=1e-3))
    fit(net, training)
    net.save(tmp_path / "net.keras")
    net.save_weights(tmp_path / "net.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    other = model(training, corrected(optimizers.AdamW(0.1), gamma=1e-3))
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "net.weights.h5")
    for each in (net, loaded, other):
        fit(each, training)
    for each in (loaded, other):
        assert each.optimizer.gamma == 1e-3
        making.assert_equal(each, net)


def test_refusals():
    scaled = optimizers.LossScaleOptimizer(optimizers.Adam())
    for other in ("sgd", "nadam", scaled):
        with pytest.raises(TypeError, match=r"Adam or AdamW.*Received: "):
            corrected(other)
    for name, value in (
        ("amsgrad", True),
        ("clipnorm", 1.0),
        ("global_clipnorm", 1.0),
        ("gradient_accumulation_steps", 2),
    ):
        with pytest.raises(ValueError, match=f"Received: {name}={value}"):
            corrected(optimizers.Adam(**{name: value}))
    with pytest.raises(ValueError, match="`gamma` expected a positive number"):
        corrected("adam", gamma=0)
    used = optimizers.Adam()
    used.build([keras.Variable(np.ones(2))])
    with pytest.raises(ValueError, match="has not been used"):
        corrected(used)


@pytest.mark.parametrize(
    "mode", [None, "batch", kpg.Vectorized(kpg.ClippedMean(1.0))]
)
def test_without_noise_it_says_so(mode):
    net = making.net(shape=(3,), units=1)
    net = making.compiled(net, mode, optimizer=corrected("adam"))
    with refused(net, "no step has set it"):
        net.fit(X, Y, verbose=0)
