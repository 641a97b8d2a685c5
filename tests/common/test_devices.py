import types

import pytest
import tensorflow as tf

from keras_pergrad.common.machine import accelerators, platform_of, short_name


def test_short_names():
    full = "/job:localhost/replica:0/task:0/device:GPU:0"
    assert short_name(full) == short_name("/GPU:0") == "GPU:0"
    assert short_name("/device:cpu:0") == "CPU:0"


@pytest.mark.parametrize(
    ("type_", "details", "cuda", "platform"),
    [
        ("GPU", {"device_name": "METAL"}, False, "Metal"),
        ("METAL", {}, True, "Metal"),
        (
            "GPU",
            {"device_name": "Tesla T4", "compute_capability": (7, 5)},
            True,
            "CUDA",
        ),
        ("GPU", {"device_name": "XPU"}, False, "XPU"),
        ("NPU", {}, False, "NPU"),
    ],
)
def test_platforms(monkeypatch, type_, details, *, cuda, platform):
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "get_device_details", lambda _: details)
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: cuda)
    device = types.SimpleNamespace(device_type=type_)
    assert platform_of(device) == platform


def test_a_cpu_is_no_accelerator():
    assert accelerators() == []
