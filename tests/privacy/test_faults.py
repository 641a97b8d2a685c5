"""Mechanisms broken on purpose are caught; sound ones are not accused.

Each check is run on the real mechanism, which passes, and on a broken one.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.aggregations.clipping import ClippedMean
from keras_pergrad.keras_internals.state.saved import AggregationState
from tests.privacy.tiny import N, X, Y, compile_privately, fit, private

CLIP, NOISE, SIZE = 0.05, 2.0, 10


# Two equal halves, so that without one of them half of every sum is missing.
TWICE = [np.concatenate([part[: N // 2]] * 2) for part in (X, Y)]


def moved(without=(), noise=NOISE, scale=1.0, epochs=1, **arguments):
    """What some steps moved the weights by, times the expected size."""
    clip = {} if "clipping" in arguments else {"clip_norm": CLIP}
    training = private(noise_multiplier=noise, **clip, **arguments)
    keras.utils.set_random_seed(4)
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    outputs = keras.layers.Dense(1, activation="sigmoid")(hidden)
    net = kpg.PerGradModel(inputs, outputs)
    compile_privately(net, training, keras.optimizers.SGD(1.0))
    data = training.batches(TWICE[0] * scale, TWICE[1])
    data.excluded_rows = np.asarray(without, int)
    before = net.get_weights()
    fit(net, training, epochs, data=data)
    after = net.get_weights()
    flat = [(a - b).ravel() for a, b in zip(before, after, strict=True)]
    return np.concatenate(flat) * training.mechanism.batch_size


def check_noise():
    """What steps on no examples move is the noise, 81 numbers of it."""
    found = moved(range(N), epochs=2)
    expected = NOISE * CLIP * np.sqrt(8)
    assert found.std() == pytest.approx(expected, rel=0.3)


def check_sensitivity(**arguments):
    """One example moves the sum of full batches by at most the clip norm."""
    arguments = {
        "noise": 1e-3,
        "batch_size": N,
        "scale": 100.0,
        **arguments,
    }
    change = moved(**arguments) - moved([0], **arguments)
    assert np.linalg.norm(change) <= CLIP * 1.05


def check_division():
    """Half of the examples move the weights by half, not as much."""
    arguments = {"noise": 1e-3, "batch_size": N}
    whole, half = moved(**arguments), moved(range(N // 2), **arguments)
    np.testing.assert_allclose(2 * half, whole, rtol=0.05, atol=1e-2)


def no_noise(self, like, deviation):
    return tf.zeros_like(like)


def divided_by_the_actual_size(self, gradients, n, state=None):
    size = tf.cast(self.expected_batch_size, tf.float32)
    found = sound_finish(self, gradients, n, state)
    return [g * size / tf.cast(n, g.dtype) for g in found]


def clipped_per_batch(self, norms):
    # As if the mean of the batch were clipped, not each of its samples.
    mean = tf.reduce_mean(norms)
    return tf.ones_like(norms) * tf.minimum(1.0, CLIP * SIZE / mean)


sound_finish = ClippedMean.finish
FAULTS = {
    "no noise": (AggregationState, "normal", no_noise, check_noise),
    "division by the actual size": (
        ClippedMean,
        "finish",
        divided_by_the_actual_size,
        check_division,
    ),
    "clipping per batch": (
        ClippedMean,
        "weights",
        clipped_per_batch,
        check_sensitivity,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_mechanisms_are_caught(fault, monkeypatch):
    owner, name, broken, check = FAULTS[fault]
    check()
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(
    "clipping",
    [
        kpg.ClippedMean(CLIP, per="variable"),
        kpg.ClippedMean(CLIP, per="layer"),
        kpg.privacy.AutomaticClippedMean(CLIP),
        kpg.privacy.AdaptiveClippedMean(CLIP),
    ],
    ids=["variable", "layer", "automatic", "adaptive"],
)
def test_sensitivity_of_other_ways_to_clip(clipping):
    # What adaptive clipping counts needs some noise, too.
    noise = (
        0.05 if isinstance(clipping, kpg.privacy.AdaptiveClippedMean) else 1e-3
    )
    check_sensitivity(clipping=clipping, noise=noise)


def test_a_sample_that_is_not_finite_counts_as_zero():
    arguments = {"noise": 1e-3, "batch_size": N}
    broken = np.ones([N, 1], "float32")
    broken[3] = np.nan
    found = moved(scale=broken, **arguments)
    np.testing.assert_allclose(found, moved([3], **arguments), atol=1e-5)


@pytest.fixture(scope="module")
def at_once():
    return moved()


@pytest.mark.parametrize(
    "other", [{"microbatch_size": 3}, {"method": "per_sample"}]
)
def test_how_gradients_are_found_changes_nothing(other, at_once):
    """Noise is added once per update, and the update is counted once."""
    np.testing.assert_allclose(moved(**other), at_once, atol=1e-4)


def test_noise_is_added_once():
    training = private(noise_multiplier=3.0, clip_norm=0.5)
    aggregation = training.gradient_mode.aggregation
    state = aggregation.make_state()
    state.limit.assign(1)
    [noise] = aggregation.finish([tf.zeros(10_000)], SIZE, state)
    assert np.std(noise) == pytest.approx(3.0 * 0.5 / SIZE, rel=0.03)
    assert state.updates == 1


def test_noise_of_steps_and_variables_is_independent():
    training = private(noise_multiplier=1.0, clip_norm=1.0)
    state = training.gradient_mode.aggregation.make_state()
    state.limit.assign(10**6)
    zeros = [tf.zeros([6]), tf.zeros([6])]
    finish = tf.function(
        lambda: training.gradient_mode.aggregation.finish(zeros, 3, state)
    )
    draws = np.array([np.concatenate(finish()) for _ in range(400)]) * SIZE
    assert draws.std() == pytest.approx(1.0, rel=0.06)
    numbers = np.corrcoef(draws.T)[np.triu_indices(12, 1)]
    assert np.abs(numbers).max() < 0.25
    following = np.corrcoef(draws[1:].ravel(), draws[:-1].ravel())[0, 1]
    assert abs(following) < 0.08
    assert len(np.unique(draws)) == draws.size
