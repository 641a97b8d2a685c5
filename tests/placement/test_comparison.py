import keras
import numpy as np
import pytest

from keras_pergrad.placement.comparison import compare_devices
from tests.metal_stub import models, session
from tests.placement import comparison_checks

pytestmark = pytest.mark.slow

LAYERS = {
    "dense": "dense",
    "cnn": "conv2d",
    "rnn": "lstm/lstm_cell",
    "embedding": "global_average_pooling1d",
    "attention": "self_attention/multi_head_attention",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    check = "tests.placement.comparison_checks:compare"
    return session.run_once(tmp_path_factory, check)


@pytest.mark.parametrize("name", comparison_checks.RIGHT)
def test_right_kernels_are_not_accused(found, name):
    assert found[name]["ok"], found[name]["text"]
    assert found[name]["agreement"] < 1e-4
    assert found[name]["op"] is None
    assert found[name]["unchanged"]


@pytest.mark.parametrize(
    ("model", "op"), [case[:2] for case in comparison_checks.DAMAGE]
)
def test_a_wrong_kernel_is_named_with_its_layer(found, model, op):
    result = found[f"{model} {op}"]
    assert not result["ok"]
    assert result["op"] == op
    assert result["layer"].startswith(LAYERS[model])
    assert "not rounding" in result["text"]
    assert f"{op} in layer {result['layer']} is wrong" in result["text"]


def test_without_an_accelerator_the_cpu_is_timed():
    model, x, y = models.make("dense")
    result = compare_devices(model, x, y)
    assert result.ok
    assert result.devices == []
    assert result.cpu_ms > 0
    assert "no accelerator" in str(result)


def test_the_cpu_is_right():
    model, x, y = models.make("cnn")
    weights = [w.copy() for w in model.get_weights()]
    result = compare_devices(model, x, y, devices="CPU:0")
    assert "CPU:0 says nothing of another device" in str(result)
    [cpu] = result.devices
    assert cpu.ok
    assert len(cpu.verdicts) == len(model.trainable_weights)
    for before, after in zip(weights, model.get_weights()):
        np.testing.assert_array_equal(before, after)


def test_random_layers_draw_the_same_on_the_device():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    assert compare_devices(model, x, y, devices=["CPU:0"]).ok


def test_refusals():
    model, x, y = models.make("dense")
    with pytest.raises(ValueError, match=r"from: CPU:0.*Received: GPU:7"):
        compare_devices(model, x, y, devices=["GPU:7"])
    with pytest.raises(ValueError, match="repeats=0"):
        compare_devices(model, x, y, repeats=0)
