"""check_gradients on a device whose kernels are wrong on purpose."""

import pytest

from tests.metal_stub import session

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    check = "tests.checking.stand_in_checks:check"
    return session.run_once(tmp_path_factory, check)


def test_right_kernels_are_not_accused(found):
    device = f"{session.device_type()}:0"
    # No XLA on Metal, nor for the CPU where the variables are not there.
    assert found["dense"]["rows"] == [
        [mode, place, "graph", "rounding"]
        for mode in ("batch", "vectorized")
        for place in ("CPU:0", device)
    ], found["dense"]["text"]
    assert found["dense"]["answer"].startswith("Yes: 4 of 4")


@pytest.mark.parametrize(
    ("case", "path"),
    [
        ("dense BiasAdd", "dense_1/bias"),
        ("cnn Conv2DBackpropFilter", "conv2d/kernel"),
    ],
)
def test_a_wrong_kernel_is_found_on_its_device_only(found, case, path):
    result, device = found[case], f"{session.device_type()}:0"
    verdicts = {(mode, place): v for mode, place, _, v in result["rows"]}
    assert verdicts["batch", "CPU:0"] == "rounding", result["text"]
    assert verdicts["vectorized", "CPU:0"] == "rounding"
    assert verdicts["batch", device] == "wrong"
    assert path in result["wrong"]
    assert device in result["answer"]
    assert "compare_devices" in result["answer"]


def test_what_is_wrong_only_where_it_is_fused_is_found():
    """Compiled steps are compared: op by op, all is right."""
    check = "tests.checking.stand_in_checks:check_fused"
    found, device = session.run(check, FUSE=1), f"{session.device_type()}:0"
    assert found["dense"]["answer"].startswith("Yes"), found["dense"]["text"]
    rows = found["dense _FusedMatMul"]["rows"]
    verdicts = {(mode, place, how): v for mode, place, how, v in rows}
    assert verdicts["batch", device, "graph"] == "wrong"
    assert verdicts["vectorized", device, "graph"] == "wrong"
    assert verdicts["batch", device, "eager"] == "rounding"
    assert verdicts["batch", "CPU:0", "graph"] == "rounding"
