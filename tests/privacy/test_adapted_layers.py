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


#: A layer, what it is adapted to, and what it keeps of that.
ADAPTED = {
    "StringLookup": (layers.StringLookup, WORDS, "vocabulary"),
    "IntegerLookup": (layers.IntegerLookup, NUMBERS, "vocabulary"),
    "TextVectorization": (
        lambda: layers.TextVectorization(output_sequence_length=2),
        WORDS,
        "vocabulary",
    ),
    "Normalization": (layers.Normalization, VALUES, "mean and variance"),
    "Discretization": (
        lambda: layers.Discretization(num_bins=3),
        VALUES,
        "boundaries",
    ),
    "Own": (Own, VALUES, "state"),
}
GIVEN = [
    (lambda: layers.StringLookup(vocabulary=["a"]), WORDS),
    (lambda: layers.IntegerLookup(vocabulary=[1]), NUMBERS),
    (
        lambda: layers.TextVectorization(
            vocabulary=["a"], output_sequence_length=2
        ),
        WORDS,
    ),
    (lambda: layers.Discretization(bin_boundaries=[1.0, 2.0]), VALUES),
    (lambda: layers.Normalization(mean=0.5, variance=2.0), VALUES),
    (lambda: layers.Hashing(5), WORDS),
]


def net_of(training, layer, data):
    parts = [layer]
    if not isinstance(layer, (layers.Normalization, Own)):
        parts += [layers.Embedding(12, 2), layers.Flatten()]
    dtype = "string" if data is WORDS else data.dtype.name
    return model(training, parts=parts, shape=(1,), dtype=dtype)


def batches(training, data):
    return training.batches(data.astype(object) if data is WORDS else data, Y)


def adapted(name, **arguments):
    make, data, _ = ADAPTED[name]
    layer, training = make(), private(**arguments)
    layer.adapt(data)
    return net_of(training, layer, data), training, batches(training, data)


@pytest.mark.parametrize("name", ADAPTED)
def test_adapted(name):
    net, training, data = adapted(name)
    layer = net.layers[1]
    match = (
        rf"layer '{layer.name}' \({name}\) was adapted.* its "
        rf"{ADAPTED[name][2]} tells.*public_layers=\['{layer.name}'\]"
    )
    with refused(net, match):
        fit(net, training, data=data)
    assert find_problems(net, data, [layer.name]) == []


@pytest.mark.parametrize(("make", "data"), GIVEN)
def test_given(make, data):
    training = private()
    net = net_of(training, make(), data)
    assert find_problems(net, batches(training, data)) == []


def test_a_vocabulary_is_found_after_loading(tmp_path):
    net, _, data = adapted("StringLookup")
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    assert any("adapted" in text for text in find_problems(loaded, data))


def test_public_layers_train():
    net, training, data = adapted(
        "IntegerLookup", public_layers=["integer_lookup"]
    )
    fit(net, training, data=data)
    assert net.aggregation_state.updates == 4
