"""What was spent is never forgotten, and what was not counted is noted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.privacy.accounting import compute_epsilon
from tests.privacy import tiny
from tests.privacy.tiny import X, Y, fit, fitted, model, private, spent

callbacks = keras.callbacks


def is_outside(training, net):
    return training.statement(net)["outside"]


pieces = keras.optimizers.schedules.PiecewiseConstantDecay([3], [2.0, 4.0])


@pytest.mark.parametrize(
    "noise",
    [pytest.param(2.0, marks=pytest.mark.quick), pieces],
    ids=["constant", "schedule"],
)
def test_an_earlier_checkpoint_does_not_turn_it_back(noise, tmp_path):
    training = private(noise_multiplier=noise)
    net = model(training)
    path = str(tmp_path / "{epoch}.weights.h5")
    saves = callbacks.ModelCheckpoint(path, save_weights_only=True)
    fit(net, training, 2, [saves])
    ledger = net.aggregation_state
    before, phase = ledger.spent, ledger.phase
    net.load_weights(path.format(epoch=1))
    assert ledger.spent == before == ((training.mechanism, 8),)
    assert not is_outside(training, net)
    # Noise that was added once is not added again.
    assert ledger.phase == phase
    epsilon = training.statement(net)["epsilon"]
    assert epsilon == pytest.approx(spent(training, 8))
    assert noise != pieces or int(ledger.steps.numpy()) == 8
    assert fit(net, training)["epsilon"] == pytest.approx([spent(training, 12)])
    assert not is_outside(training, net)
    # A schedule begins with its phase.
    second = private(noise_multiplier=noise, batch_size=5)
    tiny.compile_privately(net, second)
    ledger = net.aggregation_state
    assert noise != pieces or int(ledger.steps.numpy()) == 0
    # Phases compose, and an earlier one does not turn them back either.
    phases = (training.mechanism, 12), (second.mechanism, 8)
    epsilon = compute_epsilon(phases, 1e-2)
    assert fit(net, second)["epsilon"] == pytest.approx([epsilon])
    assert second.statement(net)["phases"][0]["steps"] == 12
    net.load_weights(path.format(epoch=1))
    assert ledger.spent == phases
    assert not is_outside(second, net)
    third = private(continue_from=net)
    phases = (*phases, (third.mechanism, 2))
    assert third.epsilon(2) == pytest.approx(compute_epsilon(phases, 1e-2))


def test_a_later_checkpoint_goes_on(training, net, tmp_path):
    net.save_weights(tmp_path / "start.weights.h5")
    fit(net, training, 2)
    net.save_weights(tmp_path / "later.weights.h5")
    for names in (["later"], ["start", "later"]):
        fresh = model(training)
        for name in names:
            fresh.load_weights(tmp_path / f"{name}.weights.h5")
        assert fresh.aggregation_state.spent == net.aggregation_state.spent
        assert fresh.aggregation_state.updates == 8
        assert not is_outside(training, fresh)


@pytest.mark.parametrize("seeds", [(3, 3), (3, None)])
def test_weights_of_another_run_bring_what_they_have_spent(tmp_path, seeds):
    one, other = (private(seed=seed) for seed in seeds)
    source, net = model(one), model(other)
    fit(source, one, 2)
    source.save_weights(tmp_path / "source.weights.h5")
    fit(net, other)
    net.load_weights(tmp_path / "source.weights.h5")
    ledger = net.aggregation_state
    assert [steps for _, steps in ledger.spent] == [4, 8, 0]
    assert other.statement(net)["epsilon"] == pytest.approx(spent(other, 12))
    # No number of a phase, and so no noise, comes twice.
    assert len(ledger.phases) == 2
    found = fit(net, other)["epsilon"]
    assert found == pytest.approx([spent(other, 16)])


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("stop")])
def test_an_interrupted_fit_allows_nothing_more(training, net, error):
    def interrupt(batch, logs):
        raise error

    stop = callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        fit(net, training, callbacks=[stop])
    ledger = net.aggregation_state
    assert ledger.updates == 1
    assert int(np.asarray(ledger.limit)) == 0
    assert not ledger.in_fit
    with pytest.raises(ValueError, match=r"Received: train_on_batch\(\)"):
        net.train_on_batch(X, Y)
    assert ledger.updates == 1
    # What it did is counted and known.
    assert fit(net, training)["epsilon"] == pytest.approx([spent(training, 5)])
    assert not is_outside(training, net)


def loop(net):
    """One step of a loop of one's own, on all examples."""
    with tf.GradientTape() as tape:
        loss = keras.ops.mean(keras.ops.square(net(X) - Y))
    values = [v.value for v in net.trainable_variables]
    for v, g in zip(net.trainable_variables, tape.gradient(loss, values)):
        v.assign_sub(0.1 * g)


def in_batch_mode(net):
    net.compile("sgd", "mse", gradient_mode="batch", jit_compile=False)
    return net


def shared_layers(net):
    other = keras.Model(net.inputs, net.outputs)
    other.compile("sgd", "mse", jit_compile=False)
    other.fit(X, Y, verbose=0)


def weights_without_a_ledger(net):
    other = in_batch_mode(model(private()))
    other.fit(X, Y, verbose=0)
    other.save_weights("plain.weights.h5")
    net.load_weights("plain.weights.h5")


@pytest.mark.parametrize(
    "change",
    [
        lambda net: in_batch_mode(net).fit(X, Y, verbose=0),
        lambda net: in_batch_mode(net).train_on_batch(X, Y),
        lambda net: net.set_weights([w + 1 for w in net.get_weights()]),
        loop,
        shared_layers,
        weights_without_a_ledger,
    ],
)
def test_training_outside_is_noted(change, training, tmp_path, *, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = fitted(training)
    assert not is_outside(training, net)
    change(net)
    statement = training.statement(net)
    assert statement["outside"]
    assert "DOES NOT HOLD if the examples were used" in str(statement)
    # Neither another fit nor a file forgets it.
    tiny.compile_privately(net, training)
    assert net.aggregation_state.updates == 4
    fit(net, training)
    net.save_weights(tmp_path / "net.weights.h5")
    fresh = model(training)
    fresh.load_weights(tmp_path / "net.weights.h5")
    assert is_outside(training, net)
    assert is_outside(training, fresh)


def test_what_changes_no_weight_is_no_training(training, tmp_path):
    net = model(training, keras.optimizers.SGD(0.5, use_ema=True))
    best = callbacks.EarlyStopping("val_loss", restore_best_weights=True)
    other = X[:4].copy(), Y[:4].copy()
    fit(net, training, 2, [best], validation_data=other)
    assert not is_outside(training, net), "best weights restored"
    net.evaluate(X, Y, verbose=0)
    net.predict(X, verbose=0)
    kpg.per_sample_norms(net, X, Y, verbose=0)
    assert not is_outside(training, net), "looked at"
    net.layers[-1].trainable = False
    net.layers[-1].trainable = True
    assert not is_outside(training, net), "frozen"
    net.save_weights(tmp_path / "net.weights.h5")
    net.load_weights(tmp_path / "net.weights.h5")
    assert not is_outside(training, net), "saved and loaded"
    mode = kpg.Vectorized(kpg.ClippedMean(1, noise_multiplier=1))
    with pytest.raises(ValueError, match="would be forgotten"):
        net.compile("sgd", "mse", gradient_mode=mode)
    net.compile("sgd", "binary_crossentropy", jit_compile=False)
    assert not is_outside(training, net), "compiled without privacy"
    tiny.compile_privately(net, private(batch_size=5))
    assert not is_outside(training, net), "compiled again"


def test_the_ledger_is_saved_with_the_model(training, net, tmp_path):
    saves = callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    fit(net, training, 2, [saves])
    for epoch in (1, 2):
        loaded = keras.saving.load_model(tmp_path / f"{epoch}.keras")
        assert not is_outside(training, loaded)
        assert loaded.aggregation_state.updates == 4 * epoch
    assert loaded.aggregation_state.spent == net.aggregation_state.spent
    statement = training.statement(loaded)
    assert statement["epsilon"] == training.statement(net)["epsilon"]
    fit(loaded, training)
    with pytest.raises(ValueError, match=r"Expected statement\(model\)"):
        training.statement()
    plain = keras.Model(net.inputs, net.outputs)
    plain.save_weights(tmp_path / "plain.weights.h5")
    assert b"ledger" not in (tmp_path / "plain.weights.h5").read_bytes()


@pytest.mark.parametrize("noise", [2.0, 4.0])
def test_another_model_goes_on_after(noise, tmp_path):
    """As in federated training, where each round begins with a new model."""
    first = private(seed=None)
    net = fitted(first)
    second = private(noise_multiplier=noise, continue_from=net)
    other = model(second)
    other.set_weights(net.get_weights())
    phases = (first.mechanism, 4), (second.mechanism, 4)
    expected = compute_epsilon(phases, second.delta)
    assert fit(other, second)["epsilon"] == pytest.approx([expected])
    statement = second.statement(other)
    assert statement["epsilon"] == pytest.approx(expected)
    assert not statement["outside"]
    assert "adds to this one" in tiny.words(statement)
    assert second.epsilon(4) == pytest.approx(expected)
    other.save(tmp_path / "other.keras")
    loaded = keras.saving.load_model(tmp_path / "other.keras")
    assert loaded.aggregation_state.spent == other.aggregation_state.spent
    # It is the same for the model itself.
    tiny.compile_privately(net, second)
    assert fit(net, second)["epsilon"] == pytest.approx([expected])


@pytest.mark.parametrize("begun", [False, True])
def test_what_another_model_spent_counts_in_one_compiled_before(begun):
    first = private()
    net, other = fitted(first), model(first)
    net.aggregation_state.outside = True
    if begun:
        fit(other, first)
    second = private(noise_multiplier=4.0, continue_from=net)
    tiny.compile_privately(other, second)
    steps = [steps for _, steps in other.aggregation_state.spent if steps]
    assert sum(steps) == (8 if begun else 4)
    assert other.aggregation_state.outside
