"""Every mode with mean aggregation trains as plain `keras.Model` does."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from tests import zoo
from tests.marks import few

EXECUTION = {
    "graph": {"jit_compile": False},
    "eager": {"run_eagerly": True},
    "xla": {"jit_compile": True},
}


def train(make, cls, **compile_arguments):
    keras.utils.set_random_seed(3)
    model = make(cls)
    x, y, weights = zoo.data()
    model.compile(
        keras.optimizers.Adam(1e-2),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        **compile_arguments,
    )
    # Keras takes one or the other.
    weighted = {"sample_weight": weights}
    if make is zoo.sequential:
        weighted = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
    history = model.fit(
        x,
        y,
        **weighted,
        batch_size=8,
        epochs=3,
        verbose=0,
    )
    return model.get_weights(), history.history


_plain = {}


def plain(make, execution):
    key = make.__name__, execution
    if key not in _plain:
        _plain[key] = train(make, keras.Model, **EXECUTION[execution])
    return _plain[key]


@pytest.mark.parametrize("execution", few(EXECUTION, ["graph"]))
@pytest.mark.parametrize("make", zoo.MAKERS.values(), ids=zoo.MAKERS)
@pytest.mark.parametrize(
    "mode", ["batch", "per_sample", "vectorized", "accumulated"]
)
def test_same_weights_and_history(mode, make, execution):
    weights, history = plain(make, execution)
    ours, our_history = train(
        make, kpg.PerGradModel, gradient_mode=mode, **EXECUTION[execution]
    )
    assert set(our_history) == set(history)
    for name, values in history.items():
        np.testing.assert_allclose(our_history[name], values, rtol=1e-4)
    for a, b in zip(ours, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)
