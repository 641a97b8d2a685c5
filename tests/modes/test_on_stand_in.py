"""Steps traced, and run where they can be, on a machine with an accelerator."""

import pytest
import tensorflow as tf

from tests.metal_stub import session
from tests.modes.stand_in_checks import MODES, STACKS

pytestmark = pytest.mark.slow
CHECKS = "tests.modes.stand_in_checks"
SETTINGS = ["TF32", "deterministic"]


@pytest.fixture(scope="module")
def traced():
    cases = {setting: {} for setting in SETTINGS}
    return session.run_each(f"{CHECKS}:traces", cases)


@pytest.fixture(scope="module")
def run():
    # Its gather knows the first axis only.
    return session.run(f"{CHECKS}:steps", DISABLE_OPS="GatherV2")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", STACKS)
def test_what_clipping_adds_runs_on_gpus(traced, name, setting):
    found = traced[setting][name]
    assert "Square" in found["more"]
    assert not any(op.startswith("Cudnn") for op in found["more"])
    if tf.test.is_built_with_cuda():
        # Other wheels do not register the kernels for GPUs.
        assert found["not for GPUs"] == []


@pytest.mark.parametrize("name", STACKS)
def test_what_clipping_adds_is_deterministic(traced, name):
    assert traced["deterministic"][name]["not deterministic"] == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_images_stay_as_the_layers_have_them(traced, setting):
    assert "NCHW" in traced[setting]["channels first"]["layouts"]
    assert traced[setting]["cnn"]["layouts"] == ["NHWC"]


def test_modes_compile_by_xla_where_keras_does():
    settings = {"as it is": {}, "deterministic": {}}
    found = session.run_each(f"{CHECKS}:jit", settings)
    for by_name in found.values():
        for choices in by_name.values():
            assert set(choices.values()) == {choices["plain"]}
    assert found["as it is"]["dense"]["plain"]
    assert not found["deterministic"]["dense"]["plain"]


@pytest.mark.parametrize(
    "name", ["dense", "cnn", "rnn", "embedding", "attention"]
)
def test_steps_of_all_modes_are_the_oracles(run, name):
    assert run[name]["clipped"] > 0
    assert set(run[name]["off"]) == set(MODES)
    assert max(run[name]["off"].values()) < 1e-6, run[name]
