"""Layers that were adapted hold what they saw: refused, or called public."""

import keras
import numpy as np
import pytest

from keras_pergrad.privacy.model_check import find_problems
from tests.privacy.tiny import N, Y, fit, model, private, refused

layers = keras.layers
NUMBERS = np.arange(N)[:, None] % 7
WORDS = np.array([f"w{k} w{k}" for k in NUMBERS[:, 0]])[:, None]
VALUES = NUMBERS.astype("float32")


class Own(layers.Layer):
    """A layer of one's own that can be adapted."""

    def adapt(self, data):
        self.top = float(np.max(data))

    def call(self, x):
        return x


#: Arguments of a layer; those that give it what it is else adapted to; data;
#: and what it keeps of them.
LAYERS = {
    "StringLookup": ({}, {"vocabulary": ["a"]}, WORDS, "vocabulary"),
    "IntegerLookup": ({}, {"vocabulary": [1]}, NUMBERS, "vocabulary"),
    "TextVectorization": (
        {"output_sequence_length": 2},
        {"vocabulary": ["a"]},
        WORDS,
        "vocabulary",
    ),
    "Normalization": (
        {},
        {"mean": 0.5, "variance": 2.0},
        VALUES,
        "mean and variance",
    ),
    "Discretization": (
        {"num_bins": 3},
        {"num_bins": None, "bin_boundaries": [1.0, 2.0]},
        VALUES,
        "boundaries",
    ),
    "Own": ({}, None, VALUES, "state"),
    "Hashing": ({"num_bins": 5}, {}, WORDS, None),
}


def net_of(training, layer, data):
    parts = [layer]
    if not isinstance(layer, (layers.Normalization, Own)):
        parts += [layers.Embedding(12, 2), layers.Flatten()]
    dtype = "string" if data is WORDS else data.dtype.name
    return model(training, parts=parts, shape=(1,), dtype=dtype)


def batches(training, data):
    return training.batches(data.astype(object) if data is WORDS else data, Y)


def adapted(name, **arguments):
    made, _, data, _ = LAYERS[name]
    layer, training = getattr(layers, name, Own)(**made), private(**arguments)
    layer.adapt(data)
    return net_of(training, layer, data), training, batches(training, data)


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name][3]])
def test_adapted(name):
    net, training, data = adapted(name)
    layer = net.layers[1]
    match = (
        rf"layer '{layer.name}' \({name}\) was adapted.* from its "
        rf"{LAYERS[name][3]}, .*public_layers=\['{layer.name}'\]"
    )
    with refused(net, match):
        fit(net, training, data=data)
    assert find_problems(net, data, [layer.name]) == []


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "Own"])
def test_given(name):
    made, given, data, _ = LAYERS[name]
    training, layer = private(), getattr(layers, name)(**{**made, **given})
    net = net_of(training, layer, data)
    assert find_problems(net, batches(training, data)) == []


def test_a_vocabulary_is_found_after_loading(tmp_path):
    net, _, data = adapted("StringLookup")
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    assert any("adapted" in text for text in find_problems(loaded, data))


def test_public_layers_train():
    public = ["integer_lookup"]
    net, training, data = adapted("IntegerLookup", public_layers=public)
    fit(net, training, data=data)
    assert net.aggregation_state.updates == 4
