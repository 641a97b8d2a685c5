import keras
import pytest

from keras_pergrad.placement.comparison import compare_devices
from tests.metal_stub import models, session
from tests.models.making import unchanged
from tests.placement import stand_in_checks

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
    check = "tests.placement.stand_in_checks:compare"
    return session.run_once(tmp_path_factory, check)


@pytest.mark.parametrize("name", stand_in_checks.RIGHT)
def test_right_kernels_are_not_accused(found, name):
    assert found[name]["ok"], found[name]["text"]
    assert found[name]["agreement"] < 1e-4
    assert found[name]["op"] is None


@pytest.mark.parametrize(
    ("model", "op"), [case[:2] for case in stand_in_checks.DAMAGE]
)
def test_a_wrong_kernel_is_named_with_its_layer(found, model, op):
    result = found[f"{model} {op}"]
    assert not result["ok"]
    assert result["op"] == op
    assert result["layer"].startswith(LAYERS[model])
    assert "not rounding" in result["text"]
    assert f"{op} in layer {result['layer']} is wrong" in result["text"]


def test_ops_that_are_wrong_only_where_they_are_fused_are_named():
    check = "tests.placement.stand_in_checks:compare_fused"
    found = session.run(check, FUSE=1)
    assert found["kernels"]["_FusedMatMul"] > 0
    assert found["dense"]["ok"], found["dense"]["text"]
    result = found["dense _FusedMatMul"]
    assert not result["ok"]
    assert result["op"] == "MatMul + BiasAdd + Relu"
    assert result["layer"] == "dense"
    assert "are wrong where they are fused" in result["text"]


def test_without_an_accelerator_the_cpu_is_timed():
    model, x, y = models.make("dense")
    result = compare_devices(model, x, y)
    assert result.ok
    assert result.devices == []
    assert result.cpu_ms > 0
    assert "no accelerator" in str(result)


def test_the_cpu_is_right():
    model, x, y = models.make("cnn")
    with unchanged(model):
        result = compare_devices(model, x, y, devices="CPU:0")
    assert "CPU:0 says nothing of another device" in str(result)
    [cpu] = result.devices
    assert cpu.ok
    assert len(cpu.verdicts) == len(model.trainable_weights)


def test_random_layers_draw_the_same_on_the_device():
    step = models.stack(keras.layers.Dropout(0.5))
    assert compare_devices(*step, devices=["CPU:0"]).ok


def test_refusals():
    model, x, y = models.make("dense")
    with pytest.raises(ValueError, match=r"from: CPU:0.*Received: GPU:7"):
        compare_devices(model, x, y, devices=["GPU:7"])
    with pytest.raises(ValueError, match="repeats=0"):
        compare_devices(model, x, y, repeats=0)
