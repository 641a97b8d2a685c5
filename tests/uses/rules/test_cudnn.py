"""Recurrent layers where Keras would call cuDNN, as it does with a GPU."""

import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_pergrad as kpg
from tests.uses.rules.exact import (
    Unmasked,
    assert_draws_of_the_batch,
    assert_exact,
    normal,
    randomized,
    stack,
)

layers = keras.layers
LAYERS = {"lstm": layers.LSTM, "gru": layers.GRU}


@pytest.fixture
def gpu(monkeypatch):
    """Keras finds a GPU; a list of the calls of cuDNN's op.

    Where there is none, the op is said to be missing, and Keras goes on with
    its loop.
    """
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    monkeypatch.setattr(rnn, "_is_gpu_available", lambda: True)
    calls, op = [], tf.raw_ops.CudnnRNNV3

    def noting(**arguments):
        calls.append(arguments)
        if not tf.config.list_physical_devices("GPU"):
            raise tf.errors.NotFoundError(None, None, "no GPU")
        return op(**arguments)

    monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", noting)
    return calls


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


#: Padded behind, padded before, with holes, nothing, everything.
MASKS = np.array(
    [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]],
    bool,
)


def _masked(layer, cls=keras.Model):
    x, mask = keras.Input((4, 2)), keras.Input((4,), dtype="bool")
    outputs = Unmasked()(layer(x, mask=mask))
    return randomized(cls([x, mask], outputs))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lstm", {}),
        ("lstm", {"zero_output_for_mask": True}),
        ("gru", {"return_sequences": True}),
        ("gru", {"return_sequences": True, "go_backwards": True}),
        ("lstm", {"return_sequences": True, "zero_output_for_mask": True}),
    ],
)
def test_masks_are_those_of_the_loop(gpu, name, settings):
    model = _masked(LAYERS[name](3, **settings))
    batch = [normal(5, 4, 2), MASKS]
    gpu.clear()
    assert_exact(model, batch)
    assert not gpu


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("mode", ["batch", "per_sample", "accumulated"])
def test_modes_that_call_the_model_leave_cudnn_out_with_a_mask(
    gpu, mode, masked, wrap
):
    layer = layers.LSTM(3, return_sequences=True)
    layer = layers.Bidirectional(layer) if wrap else layer
    if masked:
        model = _masked(layer, kpg.PerGradModel)
        x = [normal(5, 4, 2), MASKS]
    else:
        inputs = keras.Input((4, 2))
        outputs = Unmasked()(layer(inputs))
        model, x = kpg.PerGradModel(inputs, outputs), normal(5, 4, 2)
    if mode == "accumulated":
        mode = kpg.Accumulated(microbatch_size=2)
    model.compile("sgd", "mse", gradient_mode=mode, jit_compile=False)
    y = normal(5, 24 if wrap else 12)
    gpu.clear()
    model.train_on_batch(x, y)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    assert bool(gpu) is not masked
    inner = layer.forward_layer if wrap else layer
    assert inner.use_cudnn == "auto"
    assert "inner_loop" not in vars(inner)


@pytest.mark.parametrize("use_cudnn", ["auto", True])
def test_the_check_runs_the_loop_as_its_reference(gpu, use_cudnn):
    layer = layers.GRU(3, return_sequences=True)
    model = _masked(layer, kpg.PerGradModel)
    layer.use_cudnn = use_cudnn
    model.compile("sgd", "mse", jit_compile=False)
    x = [normal(5, 4, 2), MASKS]
    gpu.clear()
    how = {"gradient_modes": ["batch", "vectorized"], "settings": ["graph"]}
    check = kpg.check_gradients(
        model, x, normal(5, 12), repeats=1, devices="CPU:0", **how
    )
    assert check.ok
    assert not gpu
