"""`keras-pergrad compare --fail-if`: what fails, passes, or cannot be said."""

import keras
import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.__main__ import main
from keras_pergrad.runs.recorder import Recorder
from keras_pergrad.runs.records import read_epochs
from tests.runs import made_up
from tests.trackers.fits import X, Y, make, watching


def add_epochs(log_dir, name, step_ms, *, stall):
    """Resume a run, and record how fast its epochs were."""
    with Recorder.resume(log_dir, made_up.info(name)) as recorder:
        for epoch, ms in enumerate(step_ms):
            fields = {"step_ms": ms, "data_stall_fraction": stall}
            recorder.add_epoch({"epoch": epoch, **fields})


@pytest.fixture
def log_dir(tmp_path):
    """Two equal runs of one seed; the second is newer, and 20 % slower."""
    for k, ms in enumerate((10.0, 12.0)):
        gradients = made_up.around(1.0, 8.0, 4, seed=0)
        name = f"run{k}"
        made_up.write(tmp_path, name, gradients, seed=0, created=float(k))
        add_epochs(tmp_path, name, (90.0, ms, ms), stall=0.2 * k)
    return tmp_path


@pytest.mark.parametrize(
    ("conditions", "status", "said"),
    [
        (["diverged"], 0, ""),
        (["slower=25%"], 0, ""),
        (["slower=0.25", "stall=0.2"], 0, ""),
        (["slower=15%"], 1, "a step takes 12 ms in run1, 20 % longer than 10"),
        (["stall=19%"], 1, "run1 waits for data 20 % of the time; 19 % are"),
        (["slower=5%", "stall=5%"], 1, "FAILED stall"),
    ],
)
def test_the_newest_run_is_judged_by_the_others(
    log_dir, conditions, status, *, said, capsys
):
    command = ["compare", str(log_dir), "--fail-if", *conditions]
    assert main(command) == status
    assert said in capsys.readouterr().err


def test_the_last_directory_is_judged_by_the_first(log_dir, tmp_path):
    slow = tmp_path / "slow"
    made_up.write(slow, "other", made_up.around(1.0, 8.0, 4, seed=0), seed=0)
    add_epochs(slow, "other", (13.0,), stall=0.0)
    both = [str(log_dir), str(slow)]
    assert main(["compare", *both, "--fail-if", "slower=17%"]) == 1
    assert main(["compare", *both, "--fail-if", "slower=19%"]) == 0
    # As its own baseline it would pass either way.
    assert main(["compare", *both[::-1], "--fail-if", "slower=0%"]) == 0


def test_runs_of_one_seed_that_differ_or_are_not_finite(tmp_path, capsys):
    gradients = made_up.around(1.0, 8.0, 4, seed=0)
    made_up.write(tmp_path / "a", "one", gradients, seed=0)
    other = np.array(gradients)
    other[2:, :5] += 1.0
    made_up.write(tmp_path / "a", "two", other, seed=0)
    command = ["compare", str(tmp_path / "a"), "--fail-if", "diverged"]
    assert main(command) == 1
    said = (
        "one and two differ by more than 0.001 from step 2 on, first in first"
    )
    assert said in capsys.readouterr().err
    assert main([*command, "--tolerance", "1"]) == 0
    other[3] = np.nan
    made_up.write(tmp_path / "b", "one", gradients, seed=0)
    made_up.write(tmp_path / "b", "two", gradients + 1, seed=1)
    command = ["compare", str(tmp_path / "b"), "--fail-if", "diverged"]
    assert main(command) == 2
    assert "two runs or more of one seed" in capsys.readouterr().err
    made_up.write(tmp_path / "b", "three", other, seed=2)
    assert main(command) == 1
    assert "of seed 2 is not finite at step 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("faster=5%", "diverged, slower=5% or stall=10%"),
        ("slower", "Received: 'slower'"),
        ("slower=-1%", "Received: 'slower=-1%'"),
        ("diverged=5%", "Received: 'diverged=5%'"),
        ("stall=nan", "Received: 'stall=nan'"),
        ("slower=5%", "with the figures of DataStall. Received: none in"),
        ("stall=5%", "callbacks=[GradientVariance(..., log_dir=...)"),
    ],
)
def test_what_cannot_be_judged_is_said(tmp_path, condition, said, *, capsys):
    made_up.write_seeds(tmp_path, 2, 3)
    command = ["compare", str(tmp_path), "--fail-if", condition]
    assert main(command) == 2
    assert said in capsys.readouterr().err


@pytest.mark.quick
@pytest.mark.parametrize("order", [1, -1])
def test_a_fit_records_how_fast_its_epochs_were(tmp_path, order):
    """Wherever the callbacks stand in the list."""
    watch = watching((), log_dir=tmp_path)
    callbacks = [watch, kpg.callbacks.DataStall()][::order]
    model = make(keras.Model)
    logs = model.fit(X, Y, 8, epochs=3, verbose=0, callbacks=callbacks).history
    found = read_epochs(watch.run_directory)
    assert [fields.pop("epoch") for fields in found] == [0, 1, 2]
    for name in ("step_ms", "data_stall_fraction"):
        assert [fields[name] for fields in found] == logs[name]
    alone = watching((), log_dir=tmp_path)
    model.fit(X, Y, 8, verbose=0, callbacks=[alone])
    assert read_epochs(alone.run_directory) == []
