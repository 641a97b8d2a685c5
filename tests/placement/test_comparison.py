import numpy as np
import pytest

from keras_pergrad.placement.comparison import compare_devices
from tests.metal_stub import models, session

CHECK = "tests.placement.comparison_checks:compare"


def test_right_kernels_are_not_accused():
    names = ("dense", "cnn", "rnn", "embedding", "attention", "mnist")
    found = session.run(CHECK, *names)
    for name in names:
        assert found[name]["ok"], found[name]["text"]
        assert found[name]["agreement"] < 1e-5
        assert found[name]["op"] is None
        assert found[name]["unchanged"]


@pytest.mark.parametrize(
    ("model", "op", "nodes", "by", "layer"),
    [
        ("dense", "BiasAdd", "dense_1", 0.4, "dense"),
        ("cnn", "Conv2DBackpropFilter", "conv2d_1", 0.01, "conv2d"),
        ("rnn", "Sigmoid", "", 1.0, "lstm/lstm_cell"),
        ("embedding", "GatherV2", "", 1.0, None),
    ],
)
def test_a_wrong_kernel_is_named_with_its_layer(model, op, nodes, by, layer):
    if op == "GatherV2":  # the embedding's lookup is another library's
        op, layer = "Mean", "global_average_pooling1d"
    found = session.run(
        CHECK, model, BREAK_OPS=op, BREAK_NODES=nodes, BREAK_BY=by
    )[model]
    assert not found["ok"]
    assert found["op"] == op
    assert found["layer"].startswith(layer)
    assert "not rounding" in found["text"]


def test_without_an_accelerator_the_cpu_is_timed():
    model, x, y = models.make("dense")
    result = compare_devices(model, x, y)
    assert result.ok
    assert result.devices == []
    assert result.cpu_ms > 0
    assert "no accelerator" in str(result)


def test_the_cpu_agrees_with_itself():
    model, x, y = models.make("cnn")
    weights = [w.copy() for w in model.get_weights()]
    [cpu] = compare_devices(model, x, y, devices="CPU:0").devices
    assert cpu.ok
    assert len(cpu.verdicts) == 2 + len(model.trainable_weights)
    for before, after in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(before, after)


def test_random_layers_are_compared_without_training():
    import keras

    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    result = compare_devices(model, x, y, devices=["CPU:0"])
    assert result.ok
    assert "training=False" in str(result)


def test_refusals():
    model, x, y = models.make("dense")
    with pytest.raises(ValueError, match=r"from: CPU:0.*Received: GPU:7"):
        compare_devices(model, x, y, devices=["GPU:7"])
    with pytest.raises(ValueError, match="repeats=0"):
        compare_devices(model, x, y, repeats=0)
