"""Private training in `fit`, from its first step to its budget's end."""

import contextlib
import types
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.privacy import tiny
from tests.privacy.tiny import N, X, Y, fit, flat, model, private, sgd, spent

callbacks, layers = keras.callbacks, keras.layers


def test_epsilon_is_in_the_logs(tmp_path):
    budget = spent(private(), 12)
    training = private(target_epsilon=budget)
    path = tmp_path / "log.csv"
    seen = []
    watch = callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["epsilon"])
    )
    net = model(training)
    # The callback stands last, and others read what it logs.
    history = fit(net, training, 2, [callbacks.CSVLogger(path), watch])
    expected = [spent(training, 4), spent(training, 8)]
    assert history["epsilon"] == pytest.approx(expected, abs=1e-12)
    assert seen == pytest.approx(np.repeat(expected, 4))
    assert "epsilon" in path.read_text().splitlines()[0]
    statement = training.statement()
    assert statement["epsilon"] == history["epsilon"][-1]
    # A second fit goes on counting.
    later = fit(net, training, 1)["epsilon"][0]
    assert later == pytest.approx(spent(training, 12), abs=1e-12)
    assert later == pytest.approx(budget)


def test_training_stops_before_the_budget_is_passed():
    training = private(target_epsilon=spent(private(), 6))
    net = model(training)
    history = fit(net, training, 5)
    assert len(history["epsilon"]) == 2
    assert history["epsilon"][-1] == pytest.approx(spent(training, 6))
    assert history["epsilon"][-1] <= training.target_epsilon
    with tiny.refused(net, "The privacy budget is spent"):
        fit(net, training, 1)
    # And so with several steps at once, of which the budget allows no others.
    training = private(target_epsilon=spent(private(), 7))
    history = fit(model(training, steps_per_execution=2), training, 3)
    assert history["epsilon"][-1] == pytest.approx(spent(training, 6))


@pytest.mark.parametrize("budget", [None, 50.0])
def test_more_steps_at_once_than_an_epoch_has(budget):
    """A call of the train function ends with the data of the epoch."""
    found = []
    for at_once in (1, 3, 7):
        training = private(target_epsilon=budget)
        net = model(training, steps_per_execution=at_once)
        history = fit(net, training, 2)
        assert net.aggregation_state.updates == 8
        found.append((history["epsilon"], flat(net)))
    for epsilons, after in found[1:]:
        assert epsilons == found[0][0]
        np.testing.assert_array_equal(after, found[0][1])


def test_steps_at_once_that_do_not_fit_are_refused():
    training = private(target_epsilon=spent(private(), 2))
    with pytest.raises(ValueError, match="of steps_per_execution=4, to keep"):
        fit(model(training, steps_per_execution=7), training)
    training = private()
    net = model(training, steps_per_execution=3)
    net._distribute_strategy = types.SimpleNamespace(
        num_replicas_in_sync=2, scope=contextlib.nullcontext
    )
    with pytest.raises(ValueError, match="must divide the 4 steps"):
        fit(net, training)


def test_batches_of_all_sizes_are_one_trace():
    training = private(batch_size=2)
    net = model(training)
    net.train_step = mock.Mock(wraps=net.train_step)
    fit(net, training, 2)
    sizes = tiny.drawn_sizes(training.batches(X, Y), net, 40)
    assert 0 in sizes
    assert len(set(sizes)) > 3
    assert net.train_step.call_count == 1
    assert np.isfinite(flat(net)).all()


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_an_empty_batch_counts_and_adds_noise(method):
    """Also with convolutions: TensorFlow's own fail on it."""
    training = private(method=method)
    parts = [
        layers.Reshape((3, 1)),
        layers.Conv1D(4, 2, activation="relu"),
        layers.Conv1D(4, 2, activation="relu"),
        layers.Flatten(),
    ]
    net = model(training, parts=parts, loss="mse", metrics=["mae"])
    data = training.batches(X, Y)
    fit(net, training, data=data)
    data.excluded_rows = np.arange(N)  # Nobody is there.
    before = flat(net)
    history = fit(net, training, data=data)
    assert history["loss"] == [0]
    assert history["epsilon"][0] == pytest.approx(spent(training, 8))
    assert net.aggregation_state.updates == 8
    assert np.abs(flat(net) - before).min() > 0
    assert np.isfinite(flat(net)).all()


def moved(without=(), noise=2.0, scale=1.0, **arguments):
    """What some steps moved the weights by, times the expected size."""
    training = private(noise_multiplier=noise, clip_norm=0.05, **arguments)
    net = sgd(training, parts=lambda: [layers.Dense(16, activation="tanh")])
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


def test_noise_of_steps_and_variables_is_independent():
    training = private(noise_multiplier=1.0, clip_norm=1.0)
    aggregation = training.gradient_mode.aggregation
    state = aggregation.make_state()
    state.limit.assign(10**6)
    zeros = [tf.zeros([6]), tf.zeros([6])]
    finish = tf.function(lambda: aggregation.finish(zeros, 3, state))
    draws = np.array([np.concatenate(finish()) for _ in range(400)]) * 10
    assert draws.std() == pytest.approx(1.0, rel=0.06)
    numbers = np.corrcoef(draws.T)[np.triu_indices(12, 1)]
    assert np.abs(numbers).max() < 0.25
    following = np.corrcoef(draws[1:].ravel(), draws[:-1].ravel())[0, 1]
    assert abs(following) < 0.08
    assert len(np.unique(draws)) == draws.size
