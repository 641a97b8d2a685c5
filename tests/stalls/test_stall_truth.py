"""Bounds of the stall that hold whatever else the machine does.

The exact ones, in `test_data_stall.py`, need a quiet machine. These compare
events of one training with each other: what is measured lies between two
readings of a clock, and a thread that is held up only moves them apart.
"""

import pytest

from keras_pergrad.callbacks import DataStall
from tests.stalls.stall_truth import Clock, sleeper
from tests.stalls.test_data_stall import KINDS, N, compiled

LOAD, STEP = 0.02, 0.01

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def trained(kind, steps_per_execution):
    """The report, and the clock of loader and steps."""
    clock, stall = Clock(), DataStall(warn_above=1)
    model = compiled(clock, STEP, steps_per_execution=steps_per_execution)
    data = KINDS[kind](sleeper(clock, [LOAD] * N))
    model.fit(data, verbose=0, callbacks=[stall, clock])
    (report,) = stall.reports
    assert report.steps == len(clock.step_ends) == N
    return report, clock


@pytest.mark.parametrize(
    ("kind", "steps_per_execution"), [("map", 1), ("prefetch", 1), ("map", 8)]
)
def test_no_step_is_counted_as_stall(kind, steps_per_execution):
    report, clock = trained(kind, steps_per_execution)
    assert report.data_stall_s <= clock.bounds()[1]


@pytest.mark.parametrize("steps_per_execution", [1, 8])
def test_no_wait_is_missed(steps_per_execution):
    """What is loaded when a call begins, no step can hide."""
    report, clock = trained("map", steps_per_execution)
    firsts = range(steps_per_execution, N, steps_per_execution)
    waits = (clock.ready[k] - clock.begun[k] for k in firsts)
    assert report.data_stall_s >= sum(waits)
