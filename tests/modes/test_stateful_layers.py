"""Recurrent layers that go on in the next batch where the last one ended."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests.marks import few
from tests.models.making import assert_equal, compiled, unchanged

layers = keras.layers
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(16, 5, 3)), rng.normal(size=(16, 1))

RECURRENT = {
    "lstm": lambda: layers.LSTM(4, stateful=True, name="memory"),
    "both ways": lambda: layers.Bidirectional(
        layers.GRU(2, stateful=True), name="memory"
    ),
    "stacked": lambda: layers.RNN(
        [layers.SimpleRNNCell(3), layers.GRUCell(2)],
        stateful=True,
        name="memory",
    ),
}


def model(kind, mode, steps=None):
    keras.utils.set_random_seed(3)
    inputs = keras.Input(batch_shape=(4, 5, 3))
    made = keras.Model(inputs, layers.Dense(1)(RECURRENT[kind]()(inputs)))
    sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
    return compiled(made, mode, optimizer=sgd, jit_compile=False)


def trained(kind, mode, steps=None):
    made = model(kind, mode, steps)
    for start in range(0, 16, 4):
        rows = slice(start, start + 4)
        made.train_on_batch(X[rows], Y[rows])
    return made.get_weights()


@pytest.mark.parametrize("kind", few(RECURRENT, ("lstm",)))
def test_whole_batches_are_accumulated(kind):
    right = trained(kind, None, steps=2)
    found = trained(kind, kpg.Accumulated(steps=2))
    assert_equal(found, right, rtol=1e-4, atol=1e-5)


PRIVATE = kpg.PrivateTraining(
    noise_multiplier=1.0,
    delta=1e-3,
    samples=16,
    batch_size=4,
    epochs=1,
    user_ids="unique",
)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("lstm", kpg.Accumulated(microbatch_size=2)),
        ("both ways", kpg.Accumulated(steps=2, microbatch_size=4)),
        ("lstm", kpg.Accumulated(steps=2, inner="per_sample")),
        ("lstm", PRIVATE),
        ("stacked", PRIVATE),
    ],
    ids=["microbatches", "both", "per_sample", "private", "private stacked"],
)
def test_parts_of_a_batch_have_no_state(kind, mode):
    data, calls = (X[:4], Y[:4]), []
    if mode is PRIVATE:
        mode, calls = mode.gradient_mode, [mode.callback]
        data = (PRIVATE.batches(X, Y),)
    made = model(kind, mode)
    refused = pytest.raises(ValueError, match=r"'memory'.* is stateful")
    with unchanged(made), refused:
        made.fit(*data, verbose=0, callbacks=calls)
