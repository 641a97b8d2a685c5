"""The description of a model: what changes it, and what must not."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.runs.description import architecture, settings
from tests.models.making import net

layers = keras.layers


def dense(x):
    return layers.Dense(4, activation="tanh")(x)


def model_of(hidden, cls=keras.Model):
    return net(hidden, shape=(4,), units=2, cls=cls)


def residual(x):
    first = dense(x)
    return layers.Add()([first, dense(first)])


def shared(x):
    layer = layers.Dense(4, activation="tanh")
    return layer(layer(x))


def nested(x):
    return net(dense, shape=(4,), units=None)(x)


DIFFERENT = {
    "dense": dense,
    "another activation": lambda x: layers.Dense(4, activation="relu")(x),
    "another width": lambda x: layers.Dense(5, activation="tanh")(x),
    "dropout": lambda x: layers.Dropout(0.1)(dense(x)),
    "more dropout": lambda x: layers.Dropout(0.2)(dense(x)),
    "no bias": lambda x: layers.Dense(4, "tanh", use_bias=False)(x),
    "an operation": lambda x: dense(x) * 2.0,
    "two": lambda x: dense(dense(x)),
    "one, used twice": shared,
    "skips the second": residual,
    "skips both": lambda x: layers.Add()([x, dense(dense(x))]),
    "another order": lambda x: layers.Concatenate()([x, dense(x)]),
    "of arguments": lambda x: layers.Concatenate()([dense(x), x]),
    "nested": nested,
    "a wrapped layer": lambda x: layers.Flatten()(
        layers.TimeDistributed(layers.Dense(4))(x[:, None])
    ),
    "another wrapped layer": lambda x: layers.Flatten()(
        layers.TimeDistributed(layers.Dense(4, "tanh"))(x[:, None])
    ),
}


def described(model):
    return architecture(model), str(settings(model))


def test_another_function_has_another_description():
    found = {k: described(model_of(part)) for k, part in DIFFERENT.items()}
    assert len(set(found.values())) == len(DIFFERENT), found


def test_settings_are_named():
    found = settings(model_of(dense))
    assert found["0 Dense activation"] == "tanh"
    assert found["1 Dense units"] == 2
    assert found["1 Dense inputs"] == "[[0]]"


@pytest.mark.parametrize("hidden", [dense, residual, shared, nested])
def test_names_and_classes_of_models_do_not_matter(hidden):
    expected = described(model_of(hidden))
    dense(keras.Input((3,)))  # goes on with Keras's numbers
    assert described(model_of(hidden)) == expected
    assert described(model_of(hidden, kpg.PerGradModel)) == expected
    if hidden is dense:
        parts = layers.Dense(4, activation="tanh"), layers.Dense(2)
        model = keras.Sequential([keras.Input((4,)), *parts])
        assert described(model) == expected


def test_layers_of_a_subclassed_model_are_seen():
    class Block(layers.Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, x):
            return self.inner(x)

    class Model(keras.Model):
        def __init__(self, activation):
            super().__init__()
            self.block = Block(layers.Dense(3, activation=activation))

        def call(self, x):
            return self.block(x)

    def built(activation):
        model = Model(activation)
        model(np.ones((1, 2)))
        return described(model)

    assert built("tanh") == built("tanh") != built("relu")


def test_what_a_model_begins_with_does_not_matter():
    expected = described(net(layers.Dense(2), shape=(4,), units=None))
    for options in (
        {"kernel_initializer": "zeros"},
        {"trainable": True, "dtype": "mixed_bfloat16"},
    ):
        layer = layers.Dense(2, **options)
        assert described(net(layer, shape=(4,), units=None)) == expected


def many_layers():
    image = keras.Input((4, 4, 1))
    x = layers.Conv2D(2, 3, activation="relu")(image)
    x = layers.MaxPooling2D()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.1)(layers.Flatten()(x))
    words = keras.Input((3,), dtype="int32")
    y = layers.Embedding(5, 4, mask_zero=True)(words)
    y = layers.MultiHeadAttention(2, 2)(y, y)
    y = layers.LayerNormalization()(y)
    y = layers.LSTM(2, return_sequences=True)(y)
    y = layers.Bidirectional(layers.GRU(2))(y)
    both = layers.Concatenate()([x * 2.0, y])
    return keras.Model([image, words], layers.Dense(2)(both))


def test_versions_of_keras_agree():
    # If this fails on one version alone, runs of two versions are refused; if
    # on all, those of older records are, and the changelog must say so.
    assert architecture(many_layers()) == "cbc627e0302d3095"
