"""The vectorized step where there is a device beside the CPU."""

import pytest

from tests.metal_stub import session

pytestmark = pytest.mark.slow

CHECK = "tests.modes.stand_in_checks:steps"
MODELS = ("cnn", "embedding")


@pytest.fixture(scope="module", params=MODELS)
def found(request, tmp_path_factory):
    # The stand-in gathers along the first axis only.
    return session.run_once(
        tmp_path_factory, CHECK, request.param, DISABLE_OPS="GatherV2"
    )


def test_auto_means_xla_where_keras_says_so(found):
    # Keras does without XLA where ops are deterministic.
    for setting, results in found.items():
        assert results["xla"] == [setting != "deterministic"] * 3, setting


@pytest.mark.parametrize("setting", ["TF32", "no TF32", "deterministic"])
def test_the_step_is_that_of_single_samples(found, setting):
    assert found[setting]["moved"] > 1e-4
    assert found[setting]["apart"] < 1e-6


@pytest.mark.parametrize("setting", ["TF32", "no TF32", "deterministic"])
def test_channels_stay_last(found, setting):
    # A CPU has no kernels for channels in front.
    assert "NCHW" not in found[setting]["layouts"]
