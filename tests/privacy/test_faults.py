"""Noise is added once, whatever finds the gradients: see `test_replay.py`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.privacy.tiny import N, X, Y, fit, flat, model, private

layers = keras.layers
SIZE = 10


def hidden():
    return [layers.Dense(16, activation="tanh")]


def moved(without=(), noise=2.0, scale=1.0, **arguments):
    """What some steps moved the weights by, times the expected size."""
    training = private(noise_multiplier=noise, clip_norm=0.05, **arguments)
    net = model(training, keras.optimizers.SGD(1.0), parts=hidden)
    data = training.batches(X * scale, Y)
    data.excluded_rows = np.asarray(without, int)
    before = flat(net)
    fit(net, training, data=data)
    return (before - flat(net)) * training.mechanism.batch_size


def test_a_sample_that_is_not_finite_counts_as_zero():
    arguments = {"noise": 1e-3, "batch_size": N}
    broken = np.ones([N, 1], "float32")
    broken[3] = np.nan
    found = moved(scale=broken, **arguments)
    np.testing.assert_allclose(found, moved([3], **arguments), atol=1e-5)


def test_how_gradients_are_found_changes_nothing():
    """Noise is added once per update, and the update is counted once."""
    expected = moved()
    for other in ({"microbatch_size": 3}, {"method": "per_sample"}):
        np.testing.assert_allclose(moved(**other), expected, atol=1e-4)


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
