"""Noise that is correlated over steps: its strategy, draws and accounting."""

import dp_accounting as dp
import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import pld

from keras_pergrad.privacy import correlated_noise
from keras_pergrad.privacy.accounting import compute_epsilon
from keras_pergrad.privacy.draws import draw_batch, make_key, noise_seed
from keras_pergrad.privacy.mechanism import Mechanism
from keras_pergrad.privacy.phase_noise import PhaseNoise
from tests.privacy import tiny
from tests.privacy.tiny import made_of, noise_of, normal_draws, private, sgd

make_strategy = correlated_noise.make_strategy
KINDS = ["banded", "banded_inverse"]
#: Steps, bands, rate in a group, noise multiplier, delta; and what jax_privacy
#: 2.0.0 says of them in float64: epsilon of `BandMFExecutionPlanConfig`'s
#: event (`PLDAccountant`, REPLACE_SPECIAL), `toeplitz.loss` of its optimum, and
#: `toeplitz.minsep_sensitivity_squared` ** 0.5 for three times the bands.
JAX_PRIVACY = [
    ((2000, 4, 0.2, 6.0, 1e-5), 3.1815619468, 257.0399930982, 12.92284798),
    ((512, 8, 0.5, 3.0, 1e-6), 7.2194348485, 37.8356305091, 4.69041576),
    ((1000, 16, 1.0, 20.0, 1e-5), 1.5414707859, 39.4153172731, 4.58257569),
    ((90, 2, 0.05, 1.2, 1e-4), 1.3933235888, 24.2998391504, 3.87298335),
]


@pytest.mark.parametrize(("setting", "epsilon", "loss", "norm"), JAX_PRIVACY)
def test_as_in_jax_privacy(setting, epsilon, loss, *, norm):
    steps, bands, rate, noise, delta = setting
    strategy = make_strategy("banded", bands, steps)
    batch_size = round(rate * 16000 / bands)
    mechanism = Mechanism(
        "cyclic", 16000, batch_size, noise_multiplier=noise, strategy=strategy
    )
    found = compute_epsilon(((mechanism, steps),), delta)
    assert found == pytest.approx(epsilon, abs=1e-6)
    assert strategy.mean_error(steps) ** 2 == pytest.approx(loss, rel=1e-5)
    found = strategy.sensitivity(steps, 3 * bands)
    assert found == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_strategy_is_what_its_matrix_is(kind):
    steps, period = 30, 7
    strategy = make_strategy(kind, 5, steps)
    by_steps = made_of(strategy, np.eye(steps))
    assert by_steps.min() >= 0  # The worst contributions are equal ones.
    assert np.linalg.norm(by_steps[:, 0]) == pytest.approx(1, abs=1e-5)
    banded = by_steps if kind == "banded" else np.linalg.inv(by_steps)
    assert abs(np.tril(banded, -5)).max() < 1e-12
    worst = max(
        np.linalg.norm(by_steps[:, first::period].sum(1))
        for first in range(period)
    )
    assert strategy.sensitivity(steps, period) == pytest.approx(worst)
    inverse = np.linalg.inv(by_steps)
    impulse = np.arange(steps) == 0.0
    found = strategy.inverse_times(impulse)
    np.testing.assert_allclose(found, inverse[:, 0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        strategy.variances(steps), (inverse**2).sum(1), rtol=1e-10
    )
    sums = np.tril(np.ones((steps, steps))) @ inverse
    error = np.sqrt((sums**2).sum() / steps)
    assert strategy.mean_error(steps) == pytest.approx(error)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_made_of_independent_draws(kind):
    steps, size = 20_000, 16
    noise = PhaseNoise(make_strategy(kind, 8, steps))
    noise.set_seed(noise_seed(make_key(11), 0), restarts=True)
    noise.allocate([tf.zeros(size)])

    @tf.function
    def drawn():
        found = tf.TensorArray("float32", steps)
        for step in tf.range(steps):
            values = noise.draw(0, tf.zeros(size), step, True)
            found = found.write(step, values)
        return found.stack()

    normal = made_of(noise.strategy, drawn())
    limit = 5 / normal.size**0.5
    assert abs(normal.mean()) < limit
    assert abs(normal.var() - 1) < limit * 2**0.5
    for lag in (1, 2, 7, 8, 9, 50):
        assert abs((normal[lag:] * normal[:-lag]).mean()) < limit


def correlated(kind, **arguments):
    ways = {
        "banded": {"sampling": "cyclic"},
        "banded_inverse": {"sampling": "ordered", "earlier_noise": "redrawn"},
    }
    arguments = {"noise": "correlated", "bands": 3, "steps": 16, **arguments}
    return private(**{**ways[kind], **arguments})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "how",
    [
        "straight",
        "one band",
        "another fit",
        "compiled again",
        "another process",
        pytest.param("eager", marks=pytest.mark.slow),
        pytest.param("xla", marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_with_the_same_noise(kind, how, tmp_path):
    training = correlated(kind, **{"bands": 1} if how == "one band" else {})
    ways = {"eager": {"run_eagerly": True}, "xla": {"jit_compile": True}}
    net = sgd(training, **ways.get(how, {}))
    found = [*noise_of(net, training, epochs=4 if how == "straight" else 2)]
    if how == "another process":
        net.save_weights(tmp_path / "a.weights.h5")
        training = correlated(kind)
        net = sgd(training)
        net.load_weights(tmp_path / "a.weights.h5")
    elif how == "compiled again":
        tiny.compile_privately(net, training, keras.optimizers.SGD(1.0))
    if how != "straight":
        found += [*noise_of(net, training, epochs=2)]
    assert net.aggregation_state.spent == ((training.mechanism, 16),)
    found = made_of(training.mechanism.strategy, found) / 2.0
    np.testing.assert_allclose(found, normal_draws(16), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lost", ["seed", "continue_from", "weights"])
def test_without_the_earlier_noise_a_phase_begins(kind, lost):
    """What is not known cannot be taken back: the phases add up."""
    training = correlated(kind)
    net = sgd(training)
    noise_of(net, training)
    if lost == "continue_from":
        training = correlated(kind, continue_from=net)
        net = sgd(training)
    else:
        net.layers[-1].bias.trainable = lost != "weights"
        training = correlated(kind, seed=4 if lost == "seed" else 3)
        tiny.compile_privately(net, training, keras.optimizers.SGD(1.0))
    noise = noise_of(net, training)
    expected = ((training.mechanism, 4), (training.mechanism, 4))
    assert net.aggregation_state.spent == expected
    if lost != "weights":
        found = made_of(training.mechanism.strategy, noise) / 2.0
        expected = normal_draws(4, 1, training.seed)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "shapes"), [*zip(KINDS, ([(2, 1), (2, 3, 1)], []))]
)
def test_what_is_kept_is_bands_less_one_of_each_weight(kind, shapes, tmp_path):
    training = correlated(kind)
    net = tiny.fitted(training)
    net.save_weights(tmp_path / "a.weights.h5")
    names = []
    with h5py.File(tmp_path / "a.weights.h5") as file:
        file.visit(names.append)
        kept = [file[name] for name in names if "noise_history" in name]
        assert sorted(item.shape for item in kept) == shapes


@pytest.mark.parametrize("parts", [1, 2])
def test_cyclic_groups_take_turns(parts):
    strategy = correlated_noise.Strategy("banded", (0.8, 0.5, 0.33))
    mechanism = Mechanism(
        "cyclic", 101, 20, noise_multiplier=1.0, strategy=strategy
    )
    key, rounds = make_key(5), 400
    steps_of = [[] for _ in range(101)]
    for step in range(3 * rounds):
        for part in range(parts):
            for row in draw_batch(mechanism, key, step, part=part, parts=parts):
                steps_of[row].append(step)
    groups = [{step % 3 for step in steps} for steps in steps_of]
    assert {len(group) for group in groups} == {1}
    sizes = np.bincount([group.pop() for group in groups])
    assert sizes.min() >= 32
    rate, count = 3 * 20 / 101, 101 * rounds
    total = sum(map(len, steps_of))
    deviation = (count * rate * (1 - rate)) ** 0.5
    assert abs(total - count * rate) < 5 * deviation


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("steps", [1, 4, 5, 12])
def test_ordered_epochs_are_one_gaussian_mechanism(kind, steps):
    """Its noise over the norm of the sum of an example's columns."""
    strategy = kind and make_strategy(kind, 3, 12)
    mechanism = Mechanism(
        "ordered", 40, 10, noise_multiplier=2.0, strategy=strategy
    )
    by_steps = made_of(strategy, np.eye(steps))
    norm = np.linalg.norm(by_steps[:, ::4].sum(1))
    event = dp.GaussianDpEvent(2.0 / norm)
    expected = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    found = compute_epsilon(((mechanism, steps),), 1e-5)
    assert found == pytest.approx(expected, abs=1e-6)
    if kind == "banded" and steps == 12:
        # Columns that do not overlap: as many looks as epochs.
        assert norm == pytest.approx(3**0.5, rel=1e-5)


def test_the_bands_are_chosen_by_their_error():
    def error(**bands):
        settings = {"noise_multiplier": None, "target_epsilon": 20.0, **bands}
        training = private(noise="correlated", steps=200, **settings)
        assert training.epsilon() <= 20
        strategy = training.mechanism.strategy
        return training.noise_multiplier * strategy.mean_error(200)

    chosen = error()
    for bands in (1, 2, 4):
        assert chosen <= error(bands=bands) * 1.03


def test_the_statement_says_how_it_is_correlated():
    training = correlated("banded")
    text = tiny.words(training.statement())
    assert "correlated over 3 steps (banded strategy)" in text
    assert "3 groups at random" in text
    assert "correlated over 3 steps" in str(training)
    again = Mechanism.from_dict(training.mechanism.to_dict())
    assert again == training.mechanism
