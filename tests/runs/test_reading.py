"""Reading a part of the records into memory, and how much memory it takes."""

import tracemalloc
import warnings

import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.runs import RunRecordWarning, read_run
from tests.runs import made_up


@pytest.mark.parametrize(
    "records", [[0], [8], [0, 1, 2], [1, 4, 5, 6, 8], [], list(range(9))]
)
def test_a_part_is_read(tmp_path, records):
    made_up.write(tmp_path, "a", made_up.around(1, 5, 9, 0))
    run = read_run(tmp_path / "a")
    part = run.read(records)
    assert not isinstance(part, np.memmap)
    for name in ("sketches", "variable_sketches", "norms", "variances"):
        field = "sketch" if name == "sketches" else name
        expected = getattr(run, name)[np.array(records, int)]
        np.testing.assert_array_equal(part[field], expected)


def test_damaged_records_are_passed_over(tmp_path):
    made_up.write(tmp_path, "a", made_up.around(1, 5, 4, 0))
    whole = np.array(read_run(tmp_path / "a").sketches)
    with open(tmp_path / "a" / "vectors.f32", "r+b") as file:
        file.seek(file.seek(0, 2) // 4 + 40)
        file.write(b"\xff\xff")
    with pytest.warns(RunRecordWarning, match="damaged"):
        run = read_run(tmp_path / "a")
    np.testing.assert_array_equal(run.read([1, 2])["sketch"], whole[2:])


def test_memory_stays_bounded(tmp_path, monkeypatch):
    """Records of 26 MB in blocks that hold 1 MB of doubles."""
    gradients = made_up.around(1, 5, 400, 0)
    for k in range(4):
        made_up.write(
            tmp_path,
            f"{k}",
            gradients * (1 + 1e-6 * k),
            seed=k // 2,
            sketch_size=4096,
        )
    for module in ("spread", "divergence"):
        name = f"keras_pergrad.runs.{module}._NUMBERS_AT_ONCE"
        monkeypatch.setattr(name, 2**17)
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            comparison = kpg.compare_runs(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(comparison.data["step"]) == 400
    assert peak < 6e6
