"""Private training in `fit`, from its first step to its budget's end."""

import contextlib
import types

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.privacy.accounting import compute_epsilon
from tests.power_cut import PowerCut
from tests.privacy.tiny import N, X, Y, compile_privately, fit, model, private

callbacks = keras.callbacks


def weights(net):
    return np.concatenate([w.ravel() for w in net.get_weights()])


def spent(training, steps):
    return compute_epsilon(((training.mechanism, steps),), training.delta)


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
    before = weights(net)
    with pytest.raises(ValueError, match="The privacy budget is spent"):
        fit(net, training, 1)
    np.testing.assert_array_equal(weights(net), before)


def test_several_steps_at_once_keep_to_the_budget():
    training = private(target_epsilon=spent(private(), 7))
    net = model(training, steps_per_execution=2)
    history = fit(net, training, 3)
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
        found.append((history["epsilon"], weights(net)))
    for epsilons, after in found[1:]:
        assert epsilons == found[0][0]
        np.testing.assert_array_equal(after, found[0][1])


def test_steps_at_once_that_the_budget_does_not_allow_are_named():
    training = private(target_epsilon=spent(private(), 2))
    net = model(training, steps_per_execution=7)
    with pytest.raises(ValueError, match="of steps_per_execution=4, keeps"):
        fit(net, training)


def test_steps_at_once_beyond_an_epoch_of_several_replicas_are_refused():
    training = private()
    net = model(training, steps_per_execution=3)
    two = types.SimpleNamespace(
        num_replicas_in_sync=2, scope=contextlib.nullcontext
    )
    net._distribute_strategy = two
    with pytest.raises(ValueError, match="must divide the 4 steps"):
        fit(net, training)


def test_the_clipped_sum_is_divided_by_the_expected_size():
    """Two steps against the formula, one after the other in NumPy."""
    training = private(noise_multiplier=1e-3, clip_norm=0.1)
    net = model(training, keras.optimizers.SGD(1.0))
    data = training.batches(X, Y)
    ledger = net.aggregation_state
    plain = model(training)
    plain.compile("sgd", "binary_crossentropy")
    fit(net, training, data=data)
    for step in range(4):
        x, y = data.batch(ledger, step)
        gradients = kpg.per_sample_gradients(plain, x, y, verbose=0)
        norms = kpg.per_sample_norms(plain, x, y, verbose=0).numpy()
        factors = np.minimum(1, 0.1 / norms)
        after = [
            w - np.tensordot(factors, np.asarray(g), 1) / 10
            for w, g in zip(plain.get_weights(), gradients)
        ]
        plain.set_weights(after)
    np.testing.assert_allclose(weights(net), weights(plain), atol=2e-4)


def test_batches_of_all_sizes_are_one_trace():
    training = private(batch_size=2, samples=N)
    net = model(training)
    traces, step = [], net.train_step

    def counting(data):
        traces.append(data[0].shape)
        return step(data)

    net.train_step = counting
    fit(net, training, 2)
    sizes = {
        len(training.batches(X, Y).batch(net.aggregation_state, s)[0])
        for s in range(40)
    }
    assert 0 in sizes
    assert len(sizes) > 3
    assert len(traces) == 1
    assert np.isfinite(weights(net)).all()


def test_an_empty_batch_counts_and_adds_noise():
    training = private()
    net = model(training)
    data = training.batches(X, Y)
    data.excluded_rows = np.arange(N)  # Nobody is there.
    before = weights(net)
    history = fit(net, training, data=data)
    assert history["loss"] == [0]
    assert history["epsilon"][0] == pytest.approx(spent(training, 4))
    assert net.aggregation_state.updates == 4
    assert np.abs(weights(net) - before).min() > 0


@pytest.mark.parametrize(
    "seed", [None, pytest.param(3, marks=pytest.mark.slow)]
)
def test_a_restart_goes_on_as_if_nothing_had_happened(seed, tmp_path):
    training = private(seed=seed, clipping=kpg.privacy.AdaptiveClippedMean(0.1))
    keys = None

    def run(*extra):
        nonlocal keys
        net = model(training)
        # What the undisturbed run draws, where the system draws the seeds.
        if keys is None or extra:
            keys = keys or net.aggregation_state.key
            net.aggregation_state.key = keys
        history = fit(net, training, 3, extra)
        return net, history["epsilon"]

    def backup():
        return callbacks.BackupAndRestore(tmp_path / "backup")

    undisturbed, expected = run()
    with pytest.raises(RuntimeError, match="power cut"):
        run(backup(), PowerCut())
    # Another process draws other seeds, and takes those of the file.
    keys = (1, 2) if seed is None else None
    resumed, found = run(backup())
    assert found == expected[1:]
    np.testing.assert_allclose(weights(resumed), weights(undisturbed), 1e-5)
    states = [n.aggregation_state for n in (resumed, undisturbed)]
    assert states[0].spent == states[1].spent
    assert float(states[0].clip.numpy()) == pytest.approx(
        float(states[1].clip.numpy())
    )


def test_users(tmp_path):
    users = np.arange(N) // 4
    training = private(user_ids=users, samples_per_user=2, batch_size=5)
    assert training.mechanism.examples == N // 2
    data = training.batches(X, Y)
    net = model(training)
    history = fit(net, training, data=data)
    alone = private(batch_size=5)
    assert history["epsilon"][0] > spent(alone, 4)
    statement = training.statement(net)
    assert statement["unit"] == "user"
    assert "one user more" in str(statement)


@pytest.mark.parametrize("method", ["vectorized", "per_sample"])
def test_convolutions_of_an_empty_batch(method):
    """TensorFlow's own fail on it."""
    layers = keras.layers
    training = private(method=method)
    inputs = keras.Input((3, 1))
    x = layers.Conv1D(4, 2, activation="relu")(inputs)
    x = layers.Conv1D(4, 2, activation="relu")(x)
    net = kpg.PerGradModel(inputs, layers.Dense(1)(layers.Flatten()(x)))
    compile_privately(net, training, loss="mse", metrics=["mae"])
    data = training.batches(X[..., None], Y)
    fit(net, training, data=data)
    data.excluded_rows = np.arange(N)
    history = fit(net, training, data=data)
    assert history["loss"] == [0]
    assert net.aggregation_state.updates == 8
    assert np.isfinite(weights(net)).all()
