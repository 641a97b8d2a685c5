"""Three sure cases of the stall's truth, on a machine that does other work.

The exact ones, in `test_data_stall.py`, need a quiet machine. Here so much is
allowed that none of it matters, and still less than what the steps take or
the loader keeps them waiting: a stall that is missed fails, and so does
compute that is counted as stall.
"""

import pytest

from tests.callbacks.test_data_stall import N, assert_true_stall, fit_stall

LOAD, STEP = 0.04, 0.02
ALLOWED = 0.006  # seconds a batch

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


@pytest.mark.parametrize(
    ("kind", "steps_per_execution"), [("map", 1), ("prefetch", 1), ("map", 8)]
)
def test_the_stall_is_what_the_steps_waited(kind, steps_per_execution):
    run = fit_stall(kind, [LOAD] * N, steps_per_execution, STEP)
    assert_true_stall(run, allowed=ALLOWED)
