"""Recurrent layers where Keras would call cuDNN, as it does with a GPU."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_pergrad.samples import TracedStep
from keras_pergrad.samples.forward import Forward
from tests.samples.rules.exact import (
    assert_draws_of_the_batch,
    assert_exact,
    normal,
    stack,
)

layers = keras.layers
LAYERS = {"lstm": layers.LSTM, "gru": layers.GRU}


@pytest.fixture
def gpu(monkeypatch):
    """Keras finds a GPU where a step is traced, not in the oracle."""
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    original = Forward.__call__

    def call(self, x):
        with monkeypatch.context() as while_traced:
            while_traced.setattr(rnn, "_is_gpu_available", lambda: True)
            return original(self, x)

    monkeypatch.setattr(Forward, "__call__", call)
    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", None)


@pytest.mark.usefixtures("float64", "gpu")
@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_is_exact(name, trainable):
    layer = LAYERS[name](3, trainable=trainable)
    model = stack((4, 2), layers.Dense(2), layer, layers.Dense(2))
    assert_exact(model, normal(3, 4, 2))
    assert layer.use_cudnn == "auto"


@pytest.mark.usefixtures("float64", "gpu")
@pytest.mark.parametrize("name", LAYERS)
def test_dropout_in_training_is_the_batchs_own(name):
    layer = LAYERS[name](3, dropout=0.4, seed=3)
    model = stack((4, 2), layer, layers.Dense(2))
    assert_draws_of_the_batch(model, normal(3, 4, 2), normal(3, 2))


@pytest.mark.usefixtures("float64", "gpu")
@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_padding_gives_zeros_in_sequences_as_cudnn_does(
    name, trainable, sequence
):
    """The last state of a sequence is that of its last step that counts."""
    layer = LAYERS[name](3, return_sequences=sequence, trainable=trainable)
    embedding = layers.Embedding(7, 2, mask_zero=True)
    model = stack((4,), embedding, layer, dtype="int32")
    ids = tf.constant([[1, 2, 0, 0], [3, 4, 5, 6]])
    model.compile(loss="mse")
    with TracedStep(model, (ids, None, None)) as tape:
        found = tape.forward(ids).numpy()
    layer.zero_output_for_mask = sequence
    np.testing.assert_allclose(found, model(ids), rtol=1e-12)
    assert np.all(found[0, 2:] == 0) if sequence else np.all(found != 0)
