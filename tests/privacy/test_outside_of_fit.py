"""Updates that no private `fit` has asked for are refused, whoever asks."""

import keras
import pytest
import tensorflow as tf

from keras_pergrad.keras_internals.graphs.runs import trace_step
from tests.privacy.tiny import X, Y, fit, model, private, refused


def one_loss(x, y, sample_weight):
    return keras.losses.mean_squared_error(y, x)


ASKED = {
    "train_on_batch": lambda net: net.train_on_batch(X, Y),
    "train_step": lambda net: net.train_step((X, Y)),
    "compute_gradients": lambda net: net.compute_gradients(one_loss, X, X),
}


def test_refused_before_anything_is_traced():
    training, traces = private(), []

    class Watched(keras.layers.Dense):
        def call(self, x):
            traces.append(x.shape)
            return super().call(x)

    net = model(training, parts=[Watched(1)], loss="mse")
    for _ in range(2):
        seen = len(traces)
        for name, ask in ASKED.items():
            with refused(net, rf"Received: {name}\(\).*No weight"):
                ask(net)
        assert len(traces) == seen
        # And so after a private `fit`.
        fit(net, training)


def test_a_step_may_be_looked_at(net):
    """Reports of placement trace it, and never apply it."""
    with refused(net, r"train_step\(\) in a custom loop"):
        trace_step(net.train_step, (X, Y))
        net.train_step((X, Y))


def test_a_callback_cannot_train_in_between(training, net):
    trains = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: net.train_on_batch(X, Y)
    )
    with pytest.raises(ValueError, match=r"Received: train_on_batch\(\)"):
        fit(net, training, callbacks=[trains])


@pytest.mark.parametrize(
    ("jit_compile", "match"),
    [(False, "beyond the pri"), (True, "was not made")],
)
def test_a_traced_function_changes_nothing(jit_compile, match):
    """XLA would leave out the assertion, which is why it is outside of it."""
    training = private(sampling="fixed")
    net = model(training, jit_compile=jit_compile)
    fit(net, training)
    data = tf.data.Dataset.from_tensors((X[:10], Y[:10])).repeat()
    with refused(net, match, tf.errors.InvalidArgumentError):
        net.train_function(iter(data))
    assert net.aggregation_state.updates == 4


def test_private_batches_elsewhere(training, net):
    data = training.batches(X, Y)
    match = (
        r"`validation_data` are batches dr.*"
        r"Received: PrivateBatches\(40.*\(x_val, y_val\)"
    )
    with pytest.raises(ValueError, match=match):
        fit(net, training, validation_data=data)
    net.compile("sgd", "mse", jit_compile=False)
    validation = {"x": X, "y": Y, "validation_data": data}
    for name, given in (("x", {"x": data}), ("validation_data", validation)):
        match = rf"fit\(\) as {name}, but the mod"
        with pytest.raises(ValueError, match=match):
            net.fit(**given, verbose=0)
