"""Rows of data frames are taken by position wherever arrays are."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.keras_internals.data.batches import frame_to_array

N = 6
X = np.arange(3.0 * N).reshape(N, 3).astype("float32")
Y = np.arange(N)[:, None] % 2.0
LABELS = np.arange(N)[::-1]


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


@pytest.fixture
def net():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2, activation="tanh")(inputs)
    net = kpg.PerGradModel(inputs, outputs)
    net.compile("sgd", "mse", jit_compile=False)
    return net


def test_by_position(pandas):
    frame = pandas.DataFrame(X, index=LABELS)
    np.testing.assert_array_equal(frame_to_array(frame), X)
    assert frame_to_array(X) is X
    assert frame_to_array(None) is None
    text = pandas.Series(["a", "b"], index=[1, 0])
    assert list(frame_to_array(text)) == ["a", "b"]
    mixed = pandas.Series([1, "a"], dtype="object")
    with pytest.raises(ValueError, match=r"a Series of dtypes \['object'\]"):
        frame_to_array(mixed)


@pytest.mark.parametrize("labels", [LABELS, LABELS / 2, list("fedcba")])
def test_input_gradients(pandas, net, labels):
    frame = pandas.DataFrame(X, index=labels)
    own = pandas.Series(np.arange(N) % 2, index=labels)
    expected = kpg.input_gradients(
        net, X, outputs=np.arange(N) % 2, batch_size=4, verbose=0
    )
    found = kpg.input_gradients(
        net, frame, outputs=own, batch_size=4, verbose=0
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("labels", [LABELS, LABELS / 2, list("fedcba")])
def test_per_sample_norms(pandas, net, labels):
    frame = pandas.DataFrame(X, index=labels)
    y = pandas.DataFrame(np.repeat(Y, 2, 1), index=labels)
    weights = pandas.Series(np.arange(N) + 1.0, index=labels)
    arrays = X, np.repeat(Y, 2, 1), np.arange(N) + 1.0
    for size in (None, 4):
        found, expected = (
            kpg.per_sample_norms(net, *data, batch_size=size, verbose=0)
            for data in ((frame, y, weights), arrays)
        )
        np.testing.assert_array_equal(found, expected)
