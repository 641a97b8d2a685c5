"""Losses given to `add_loss` are noted by the thread that gives them."""

import concurrent.futures

import keras
import numpy as np
import pytest

from keras_pergrad.keras_internals.losses.losses import recording_losses

X = np.ones((2, 3), "float32")


class MeanAsLoss(keras.layers.Layer):
    """Keras's own layers divide by the batch in some versions only."""

    def call(self, x):
        self.add_loss(keras.ops.mean(x))
        return x


@pytest.fixture
def model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, MeanAsLoss()(inputs))


def assert_restored(model):
    assert not any("add_loss" in vars(layer) for layer in model.layers)


@pytest.mark.parametrize("last", [0, 1])
def test_threads_that_take_turns_note_their_own(model, last):
    """As replicas do, which wait for each other inside of a layer."""
    noted, owners = ([], []), ([], [])
    notings = [recording_losses(model, *each) for each in zip(noted, owners)]
    with (
        concurrent.futures.ThreadPoolExecutor(1) as first,
        concurrent.futures.ThreadPoolExecutor(1) as second,
    ):
        replicas = first, second

        def leave(k):
            noting = notings[k].__exit__
            replicas[k].submit(noting, None, None, None).result()

        for replica, noting in zip(replicas, notings):
            replica.submit(noting.__enter__).result()
        for k, replica in enumerate(replicas):
            replica.submit(model, (k + 1) * X).result()
        leave(1 - last)
        replicas[last].submit(model, 10 * X).result()
        leave(last)
    expected = [[1.0], [2.0]]
    expected[last].append(10.0)
    assert [[float(v) for v in values] for values in noted] == expected
    layer = model.layers[-1]
    assert all(o is layer for each in owners for o in each)
    assert_restored(model)


def test_a_noting_inside_of_another(model):
    outer, inner = [], []
    with recording_losses(model, outer):
        with recording_losses(model, inner):
            model(X)
        model(X)
    assert len(inner) == 1
    assert len(outer) == 2
    assert_restored(model)


def test_restored_after_an_error(model):
    def fail():
        with recording_losses(model, []):
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail()
    assert_restored(model)
