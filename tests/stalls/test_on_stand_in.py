"""The copy of batches to a device whose copies are slow on purpose."""

import pytest

from tests.metal_stub import session

pytestmark = pytest.mark.slow

COPY_MS = 15


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    check = "tests.stalls.stand_in_checks:copies"
    slow = {"SLOW_COPY_US": 1000 * COPY_MS, "SLOW_US": 2000}
    return session.run_once(tmp_path_factory, check, **slow)


def test_the_copy_is_told_apart_from_the_step(found):
    before = found["before"]
    assert COPY_MS <= before["copy_ms"] < before["step_ms"]
    shares = ("step_fraction", "copy_fraction", "data_stall_fraction")
    assert sum(before[share] for share in shares) == pytest.approx(1)
    copy_ms, _, text = found["profile"]
    assert copy_ms >= COPY_MS
    assert "copy to device" in text


def test_prefetch_to_device_hides_it_as_printed(found):
    _, what_if, _ = found["profile"]
    if session.device_type() != "GPU":
        # TensorFlow's iterators are for the CPU and for "GPU".
        assert found["code"] is None
        assert "prefetch to device" not in what_if
        return
    assert found["advice"] == ["prefetch to device"]
    assert found["after"]["copy_ms"] is None
    assert found["advice after"] == []
    assert "prefetch to device" in what_if


@pytest.mark.parametrize("how", ["several steps", "eager", "on the CPU"])
def test_where_it_is_not_timed_nothing_is_said(found, how):
    assert found[how]["steps"] == 12
    assert found[how]["copy_ms"] is None
    assert found[how]["copy_fraction"] is None


def test_timing_it_leaves_the_training_as_it_was(found):
    assert found["weights"] == found["weights timed"]
