"""Every mode with mean aggregation trains as plain `keras.Model` does."""

import functools

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests import zoo
from tests.marks import few
from tests.models.making import assert_equal, compiled
from tests.modes.big_batch import EXECUTION


def train(make, mode, draws=True, **how):
    keras.utils.set_random_seed(3)
    model = make(kpg.PerGradModel if mode else keras.Model)
    for layer in model.layers:
        if not draws and isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    x, y, weights = zoo.data()
    how |= {"optimizer": keras.optimizers.Adam(1e-2), "metrics": ["accuracy"]}
    loss = "sparse_categorical_crossentropy"
    model = compiled(model, mode, loss, **how)
    # Keras takes one or the other.
    weighted = {"sample_weight": weights}
    if make is zoo.sequential:
        weighted = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    model.fit(x, y, **weighted, batch_size=8, epochs=3, verbose=0)
    return model.get_weights(), model.history.history


@functools.cache
def plain(make, execution, draws=True):
    return train(make, None, draws, **EXECUTION[execution])


@pytest.mark.parametrize("execution", few(EXECUTION, ["graph"]))
@pytest.mark.parametrize("make", zoo.MAKERS.values(), ids=zoo.MAKERS)
@pytest.mark.parametrize(
    "mode", ["batch", "per_sample", "vectorized", "accumulated"]
)
def test_same_weights_and_history(mode, make, execution):
    draws = mode != "per_sample"  # There each sample draws its own numbers.
    weights, history = plain(make, execution, draws)
    ours, our_history = train(make, mode, draws, **EXECUTION[execution])
    assert set(our_history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(our_history[name], values, rtol=1e-4)
    assert_equal(ours, weights, rtol=1e-4, atol=2e-5)
