"""What was spent is never forgotten, and what was not counted is noted."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from keras_pergrad.privacy.accounting import compute_epsilon
from tests.privacy.tiny import X, Y, compile_privately, fit, model, private

callbacks = keras.callbacks


def spent(training, *steps):
    phases = tuple((training.mechanism, count) for count in steps)
    return compute_epsilon(phases, training.delta)


def is_outside(training, net):
    return training.statement(net)["outside"]


class SavesFirst(callbacks.Callback):
    """As ModelCheckpoint if the first epoch is the best."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.save_weights(self.path)


def test_it_goes_on_from_the_ledger_before():
    first, second = private(), private(noise_multiplier=4.0)
    before, same, other = (
        training.gradient_mode.aggregation.make_state()
        for training in (first, first, second)
    )
    before.advance("phase_steps", 4)
    same.resume_from(before)
    assert same.spent == ((first.mechanism, 4),)
    other.resume_from(before)
    assert other.spent == ((first.mechanism, 4), (second.mechanism, 0))


def test_an_earlier_checkpoint_does_not_turn_it_back(tmp_path):
    training = private()
    net = model(training)
    path = tmp_path / "first.weights.h5"
    fit(net, training, 3, [SavesFirst(path)])
    ledger = net.aggregation_state
    noise = np.asarray(ledger.generator.state)
    net.load_weights(path)
    statement = training.statement(net)
    assert statement["epsilon"] == pytest.approx(spent(training, 12))
    assert not statement["outside"]
    # Noise that was added once is not added again.
    np.testing.assert_array_equal(ledger.generator.state, noise)
    assert fit(net, training)["epsilon"] == pytest.approx([spent(training, 16)])
    assert not is_outside(training, net)


def test_an_earlier_phase_does_not_turn_it_back(tmp_path):
    first, second = private(), private(noise_multiplier=4.0)
    net = model(first)
    fit(net, first)
    net.save_weights(tmp_path / "a.weights.h5")
    fit(net, first)
    compile_privately(net, second)
    fit(net, second)
    before = net.aggregation_state.spent
    net.load_weights(tmp_path / "a.weights.h5")
    assert net.aggregation_state.spent == before
    assert not is_outside(second, net)


def test_a_later_checkpoint_goes_on(tmp_path):
    training = private()
    net = model(training)
    net.save_weights(tmp_path / "start.weights.h5")
    fit(net, training, 2)
    net.save_weights(tmp_path / "later.weights.h5")
    fresh = model(training)
    fresh.load_weights(tmp_path / "later.weights.h5")
    assert fresh.aggregation_state.spent == net.aggregation_state.spent
    assert not is_outside(training, fresh)
    # A model that has loaded an earlier state of the run takes the later one.
    fresh = model(training)
    fresh.load_weights(tmp_path / "start.weights.h5")
    fresh.load_weights(tmp_path / "later.weights.h5")
    assert fresh.aggregation_state.updates == 8


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
    states = [
        np.asarray(n.aggregation_state.generator.state) for n in (net, source)
    ]
    if seeds[0] == seeds[1]:  # One stream of noise: no part of it comes twice.
        np.testing.assert_array_equal(*states)
    found = fit(net, other)["epsilon"]
    assert found == pytest.approx([spent(other, 16)])


def test_schedules_are_not_turned_back(tmp_path):
    pieces = keras.optimizers.schedules.PiecewiseConstantDecay([3], [2.0, 4.0])
    training = private(noise_multiplier=pieces)
    net = model(training)
    fit(net, training, 2, [SavesFirst(tmp_path / "first.weights.h5")])
    net.load_weights(tmp_path / "first.weights.h5")
    assert int(net.aggregation_state.steps.numpy()) == 8


class Interrupts(callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("stop")])
def test_an_interrupted_fit_allows_nothing_more(error):
    training = private()
    net = model(training)
    with pytest.raises(BaseException) as raised:
        fit(net, training, callbacks=[Interrupts(error)])
    assert isinstance(raised.value, (KeyboardInterrupt, RuntimeError))
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
    for variable, g in zip(
        net.trainable_variables, tape.gradient(loss, values)
    ):
        variable.assign_sub(0.1 * g)


def batch_mode(net):
    net.compile("sgd", "mse", gradient_mode="batch", jit_compile=False)


def fit_in_batch_mode(net):
    batch_mode(net)
    net.fit(X, Y, verbose=0)


def train_on_batch_in_batch_mode(net):
    batch_mode(net)
    net.train_on_batch(X, Y)


def shared_layers(net):
    other = keras.Model(net.inputs, net.outputs)
    other.compile("sgd", "mse", jit_compile=False)
    other.fit(X, Y, verbose=0)


def weights_set(net):
    net.set_weights([w + 1 for w in net.get_weights()])


@pytest.mark.parametrize(
    "change",
    [
        fit_in_batch_mode,
        train_on_batch_in_batch_mode,
        loop,
        shared_layers,
        weights_set,
    ],
)
def test_training_outside_is_noted(change, tmp_path):
    training = private()
    net = model(training)
    fit(net, training)
    assert not is_outside(training, net)
    change(net)
    statement = training.statement(net)
    assert statement["outside"]
    assert "DOES NOT HOLD if the examples were used" in str(statement)
    # Neither another fit nor a file forgets it.
    compile_privately(net, training)
    fit(net, training)
    net.save_weights(tmp_path / "net.weights.h5")
    fresh = model(training)
    fresh.load_weights(tmp_path / "net.weights.h5")
    assert is_outside(training, net)
    assert is_outside(training, fresh)


def test_weights_without_a_ledger_are_noted(tmp_path):
    training = private()
    net, other = model(training), model(training)
    fit(net, training)
    fit_in_batch_mode(other)
    other.save_weights(tmp_path / "plain.weights.h5")
    net.load_weights(tmp_path / "plain.weights.h5")
    assert is_outside(training, net)


def nothing(net, path):
    pass


def compiled_again(net, path):
    compile_privately(net, private(batch_size=5))


def looked_at(net, path):
    net.evaluate(X, Y, verbose=0)
    net.predict(X, verbose=0)
    kpg.per_sample_norms(net, X, Y, verbose=0)


def frozen(net, path):
    net.layers[-1].trainable = False
    net.layers[-1].trainable = True


def saved_and_loaded(net, path):
    net.save_weights(path / "net.weights.h5")
    net.load_weights(path / "net.weights.h5")


@pytest.mark.parametrize(
    "use", [nothing, compiled_again, looked_at, frozen, saved_and_loaded]
)
def test_what_changes_no_weight_is_no_training(use, tmp_path):
    training = private()
    net = model(training)
    best = callbacks.EarlyStopping("val_loss", restore_best_weights=True)
    averaged = keras.optimizers.SGD(0.5, use_ema=True)
    compile_privately(net, training, averaged)
    other = X[:4].copy(), Y[:4].copy()
    fit(net, training, 2, [best], validation_data=other)
    use(net, tmp_path)
    assert not is_outside(training, net)


def test_a_loaded_model_stands_for_its_weights(tmp_path):
    training = private()
    net = model(training)
    saves = callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    fit(net, training, 2, [saves])
    for epoch in (1, 2):
        loaded = keras.saving.load_model(tmp_path / f"{epoch}.keras")
        assert not is_outside(training, loaded)
        assert loaded.aggregation_state.updates == 4 * epoch


def test_another_model_goes_on_after():
    first = private(seed=None)
    net = model(first)
    fit(net, first)
    second = private(noise_multiplier=4.0, continue_from=net)
    other = model(second)
    other.set_weights(net.get_weights())
    expected = compute_epsilon(
        ((first.mechanism, 4), (second.mechanism, 4)), second.delta
    )
    found = fit(other, second)["epsilon"]
    assert found == pytest.approx([expected])
    assert second.statement(other)["epsilon"] == pytest.approx(expected)
    assert second.epsilon(4) == pytest.approx(expected)
    # It is the same for the model itself.
    compile_privately(net, second)
    assert fit(net, second)["epsilon"] == pytest.approx([expected])


@pytest.mark.parametrize("begun", [False, True])
def test_what_another_model_spent_counts_in_one_compiled_before(begun):
    first = private()
    net, other = model(first), model(first)
    fit(net, first)
    net.aggregation_state.outside = True
    if begun:
        fit(other, first)
    second = private(noise_multiplier=4.0, continue_from=net)
    compile_privately(other, second)
    spent = [steps for _, steps in other.aggregation_state.spent if steps]
    assert sum(spent) == (8 if begun else 4)
    assert other.aggregation_state.outside


def test_after_is_saved_with_the_model(tmp_path):
    first = private()
    net = model(first)
    fit(net, first)
    second = private(noise_multiplier=4.0, continue_from=net)
    other = model(second)
    fit(other, second)
    other.save(tmp_path / "other.keras")
    loaded = keras.saving.load_model(tmp_path / "other.keras")
    assert loaded.aggregation_state.spent == other.aggregation_state.spent
