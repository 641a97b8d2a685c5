"""Layers that were adapted hold what they saw: refused, or called public."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.privacy.model_check import find_problems
from tests.privacy.tiny import N, Y, compile_privately, fit, private

layers = keras.layers
NUMBERS = np.arange(N)[:, None] % 7
WORDS = np.array([f"w{k} w{k}" for k in NUMBERS[:, 0]])[:, None]
VALUES = NUMBERS.astype("float32")


def adapted(layer, data):
    layer.adapt(data)
    return layer


class Own(layers.Layer):
    """A layer of one's own that can be adapted."""

    def adapt(self, data):
        self.top = float(np.max(data))

    def call(self, x):
        return x


ADAPTED = {
    "StringLookup": lambda: (adapted(layers.StringLookup(), WORDS), WORDS),
    "IntegerLookup": lambda: (
        adapted(layers.IntegerLookup(), NUMBERS),
        NUMBERS,
    ),
    "TextVectorization": lambda: (
        adapted(layers.TextVectorization(output_sequence_length=2), WORDS),
        WORDS,
    ),
    "Normalization": lambda: (adapted(layers.Normalization(), VALUES), VALUES),
    "Discretization": lambda: (
        adapted(layers.Discretization(num_bins=3), VALUES),
        VALUES,
    ),
    "Own": lambda: (adapted(Own(), VALUES), VALUES),
}
KEPT = {"Normalization": "mean and variance", "Discretization": "boundaries"}
GIVEN = {
    "StringLookup": lambda: (layers.StringLookup(vocabulary=["a"]), WORDS),
    "IntegerLookup": lambda: (layers.IntegerLookup(vocabulary=[1]), NUMBERS),
    "TextVectorization": lambda: (
        layers.TextVectorization(vocabulary=["a"], output_sequence_length=2),
        WORDS,
    ),
    "Discretization": lambda: (
        layers.Discretization(bin_boundaries=[1.0, 2.0]),
        VALUES,
    ),
    "Hashing": lambda: (layers.Hashing(5), WORDS),
}


def net_of(layer, data, **arguments):
    training = private(**arguments)
    kind = "string" if data.dtype.kind == "U" else data.dtype.name
    inputs = keras.Input((1,), dtype=kind)
    found = layer(inputs)
    if layer.name not in ("normalization", "own") and "own" not in layer.name:
        found = layers.Flatten()(layers.Embedding(12, 2)(found))
    net = kpg.PerGradModel(inputs, layers.Dense(1)(found))
    compile_privately(net, training, loss="mse")
    return net, training


def data_of(training, data):
    return training.batches(
        data.astype(object) if data.dtype.kind == "U" else data, Y
    )


@pytest.mark.parametrize("name", ADAPTED)
def test_adapted(name):
    layer, data = ADAPTED[name]()
    net, training = net_of(layer, data)
    kept = KEPT.get(name, "state" if name == "Own" else "vocabulary")
    match = (
        rf"layer '{layer.name}' \({name}\) was adapted.* its {kept} tells.*"
        rf"public_layers=\['{layer.name}'\]"
    )
    with pytest.raises(ValueError, match=match):
        fit(net, training, data=data_of(training, data))
    public = [layer.name]
    assert find_problems(net, data_of(training, data), public) == []


@pytest.mark.parametrize("name", GIVEN)
def test_given(name):
    layer, data = GIVEN[name]()
    net, training = net_of(layer, data)
    assert find_problems(net, data_of(training, data)) == []


def test_a_vocabulary_is_found_after_loading(tmp_path):
    layer, data = ADAPTED["StringLookup"]()
    net, training = net_of(layer, data)
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    assert any(
        "adapted" in text
        for text in find_problems(loaded, data_of(training, data))
    )


def test_public_layers_train():
    layer, data = ADAPTED["IntegerLookup"]()
    net, training = net_of(layer, data, public_layers=[layer.name])
    fit(net, training, data=data_of(training, data))
    assert net.aggregation_state.updates == 4
