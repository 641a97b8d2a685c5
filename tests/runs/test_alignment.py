import re

import numpy as np
import pytest

from keras_pergrad.runs import RunRecordWarning
from keras_pergrad.runs.alignment import align
from tests.runs import made_up


def _some(count):
    return np.ones((count, made_up.SIZE))


def test_runs_of_different_length_meet_at_common_steps(tmp_path):
    made_up.write(tmp_path, "a", _some(5), steps=[0, 10, 20, 30, 40])
    made_up.write(tmp_path, "b", _some(3), steps=[0, 20, 40])
    made_up.write(tmp_path, "c", _some(2), steps=[20, 50])
    aligned = align(tmp_path, 512)
    assert aligned.names == ["a", "b", "c"]
    np.testing.assert_array_equal(aligned.steps, [0, 20, 40])
    np.testing.assert_array_equal(
        aligned.rows, [[0, 0, -1], [2, 1, 0], [4, 2, -1]]
    )
    steps, rows = aligned.shared_rows([0, 2])
    np.testing.assert_array_equal(steps, [20])
    np.testing.assert_array_equal(rows, [[2, 0]])
    steps, rows = aligned.shared_rows([0, 1, 2])
    np.testing.assert_array_equal(steps, [0, 20, 40])
    np.testing.assert_array_equal(rows, aligned.rows)


@pytest.mark.parametrize(
    ("counts", "steps", "said"),
    [
        ((21, 21), [0, 5, 10, 15, 20], "5 of 21 common steps are compared."),
        ((2, 2, 0), [0, 1], "Without any record: c."),
        ((1, 1), [0], "one step only.*GradientVariance\\(every=10\\)"),
    ],
    ids=["thinned evenly", "without records", "no curve"],
)
def test_what_is_compared_is_noted(tmp_path, counts, steps, *, said):
    for name, count in zip("abc", counts):
        made_up.write(tmp_path, name, _some(count))
    aligned = align(tmp_path, 5)
    np.testing.assert_array_equal(aligned.steps, steps)
    assert aligned.names == ["a", "b"]
    (note,) = aligned.notes
    assert re.search(said, note)


def test_directories_are_joined(tmp_path):
    for machine in ("mac", "linux"):
        made_up.write(tmp_path / machine, "a", _some(2))
    aligned = align([tmp_path / "mac", str(tmp_path / "linux")], 9)
    assert aligned.names == ["mac/a", "linux/a"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architecture", "other"),
        ("loss", [{"loss": "mean_absolute_error"}]),
        ("probe", "other"),
        ("probe_samples", 9),
        ("sketch_size", 128),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(tmp_path, field, value):
    loss = [{"loss": "mean_squared_error"}]
    for name, other in (("a", {}), ("b", {}), ("odd", {field: value})):
        made_up.write(tmp_path, name, _some(1), **{"loss": loss, **other})
    said = re.escape(f"same `{field}`. Received: {value!r} in run 'odd'")
    said += ".*2 of 3 runs"
    with pytest.raises(ValueError, match=said) as error:
        align(tmp_path, 9)
    assert ("GradientVariance(probe=" in str(error.value)) == (field == "probe")


def test_layer_settings_that_differ_are_noted(tmp_path):
    """Of those that both runs know: versions of Keras have others."""
    for name, activation in (("a", "tanh"), ("b", "relu"), ("c", "relu")):
        settings = {"0 Dense activation": activation, "0 Dense units": 3}
        settings |= {"0 Dense new": 1} if name == "a" else {}
        made_up.write(tmp_path, name, _some(2), settings=settings)
    said = "The models differ: 0 Dense activation is tanh in a, but relu in b."
    assert align(tmp_path, 9).notes == [said]


def test_a_damaged_run_is_left_out_with_a_warning(tmp_path):
    for name in "abc":
        made_up.write(tmp_path, name, _some(2))
    (tmp_path / "b" / "readings.jsonl").write_bytes(b"x" * 999 + b"\n")
    with pytest.warns(RunRecordWarning, match=r"b/readings\.jsonl.* left out"):
        assert align(tmp_path, 9).names == ["a", "c"]


def test_too_few_runs(tmp_path):
    made_up.write(tmp_path / "one", "lonely", _some(3))
    one = re.escape(str(tmp_path / "one"))
    for where, error, said in (
        (tmp_path / "none", FileNotFoundError, "is not a directory"),
        (tmp_path, ValueError, "with 0 runs and no record"),
        ([], ValueError, "an empty list"),
        (tmp_path / "one", ValueError, "two or more.*one, 'lonely'"),
        (tmp_path / "one/lonely", ValueError, f"is one run. Pass '{one}'"),
    ):
        with pytest.raises(error, match=said):
            align(where, 9)


def test_no_common_step(tmp_path):
    made_up.write(tmp_path, "a", _some(4), steps=[0, 2, 4, 6])
    made_up.write(tmp_path, "b", _some(2), steps=[1, 3])
    said = r"'a' at 0, 2, 4, …; 'b' at 1, 3\. Give .* same number"
    with pytest.raises(ValueError, match=said):
        align(tmp_path, 9)
