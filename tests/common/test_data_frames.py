"""Rows of data frames are taken by position wherever arrays are."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.common.data_batches import frame_to_array
from tests.models.making import compiled, net

N = 6
X = np.arange(3.0 * N).reshape(N, 3).astype("float32")
Y = np.arange(N)[:, None] % 2.0
LABELS = np.arange(N)[::-1]


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


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
def test_of_inputs_targets_and_weights(pandas, labels):
    tanh = keras.layers.Dense(2, activation="tanh")
    model = net(tanh, shape=(3,), units=None, cls=kpg.PerGradModel, seed=1)
    compiled(model, jit_compile=False)
    own, weights = np.arange(N) % 2, np.arange(N) + 1.0
    arrays = X, np.repeat(Y, 2, 1), weights
    frames = (
        pandas.DataFrame(X, index=labels),
        pandas.DataFrame(arrays[1], index=labels),
        pandas.Series(weights, index=labels),
    )
    found, expected = (
        kpg.input_gradients(model, x, outputs=outputs, batch_size=4, verbose=0)
        for x, outputs in (
            (frames[0], pandas.Series(own, index=labels)),
            (X, own),
        )
    )
    np.testing.assert_array_equal(found, expected)
    for size in (None, 4):
        found, expected = (
            kpg.per_sample_norms(model, *data, batch_size=size, verbose=0)
            for data in (frames, arrays)
        )
        np.testing.assert_array_equal(found, expected)
