"""Fits of one step, for what they refuse."""

import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import assert_equal, compiled, trained
from tests.privacy.tiny import private


def fit(case, mode="vectorized", as_dataset=False):
    """Fit all samples of a model, x and y in one batch.

    If that is refused, no weight changes.
    """
    model, x, y = case
    data, loss = (x, y), model.loss
    if as_dataset:
        data = [tf.data.Dataset.from_tensor_slices(data).batch(len(y))]
    if mode == "accumulated":
        mode = kpg.Accumulated(microbatch_size=2)
    model = compiled(model, mode, loss)
    before = model.get_weights()
    try:
        trained(model, *data)
    except ValueError:
        assert_equal(model.get_weights(), before)
        raise


def refusal(ask):
    """Return what a refusal says, "" if there is none."""
    try:
        ask()
    except ValueError as error:
        return str(error)
    return ""


def fit_privately(case, method="vectorized"):
    """Fit them in one batch, each a user's only one."""
    model, x, y = case
    n, loss = len(y), model.loss
    training = private(samples=n, batch_size=n, epochs=1, method=method)
    model = compiled(model, training.gradient_mode, loss)
    batches = training.batches(x, y)
    trained(model, batches, callbacks=[training.callback], shuffle=True)
