"""Reports of made-up calls, by hand."""

import numpy as np
import pytest

from keras_pergrad.stalls.accounting import (
    EpochTimer,
    StallReport,
    Timeline,
    WaitHistogram,
    exposed_waits,
)
from keras_pergrad.stalls.stopwatch import Call


def call(began, ended, traced=False, fresh=False, finished=True, cpu=None):
    return Call("train_function", began, ended, traced, fresh, finished, cpu)


def rows(*fetches):
    """Of (asked, arrived), and, if given, had a batch, step's end, copied."""
    filled = [(*f, *(1.0, 0.0, 0.0)[len(f) - 2 :]) for f in fetches]
    return np.array(filled, float).reshape(-1, 5)


def test_a_wait_is_what_goes_beyond_the_step_beside_it():
    found = exposed_waits(
        rows(
            (1.0, 3.0),  # no step beside it
            (1.0, 3.0, 1.0, 2.5),  # the step ended within
            (1.0, 3.0, 1.0, 9.0),  # the step took longer
            (1.0, 3.0, 1.0, 0.5),  # the step had ended before
        )
    )
    np.testing.assert_allclose(found, [2.0, 0.5, 0.0, 2.0])
    assert exposed_waits(rows()).shape == (0,)


#: Calls with what they fetched, and what is reported of such an epoch.
EPOCHS = {
    "plain calls": (
        [
            (call(1.0, 5.0, fresh=True, cpu=0.5), [(1.0, 3.0)]),
            (call(5.0, 8.0, cpu=1.5), [(5.0, 6.0)]),
            (call(8.0, 10.0, cpu=1.0), [(8.0, 8.5)]),
        ],
        {
            "steps": 3,
            "first_batch_s": 3.0,
            "data_stall_s": 1.5,
            # From the first batch's arrival at 3 to the end at 10.
            "data_stall_fraction": 1.5 / 7,
            "step_fraction": 5.5 / 7,
            "first_batch_fraction": 3 / 10,
            "step_ms": 1e3 * (2 + 2 + 1.5) / 3,
            "cpu_ms": 1e3,
            "wait_ms": 750,
            "wait_longest_step": 1,
            "wait_longest_ms": 1e3,
        },
    ),
    "tracing and the end of the data": (
        [
            (call(0.0, 10.0, traced=True, fresh=True), [(8.0, 9.0)]),
            (call(10.0, 12.0), [(10.0, 11.0)]),
            (call(12.0, 12.5, finished=False), []),
        ],
        {
            "steps": 2,
            "tracing_s": 9.0,
            "end_of_data_s": 0.5,
            "first_batch_s": 1.0,
            "data_stall_s": 1.0,
            # The second call alone is steady.
            "data_stall_fraction": 0.5,
            "step_ms": 1e3,
            "cpu_ms": None,
        },
    ),
    "many steps in one call, the last of which found the end": (
        [
            (call(0.0, 1.0, fresh=True), [(0.0, 0.5)]),
            (
                call(1.0, 9.0),
                [(1.0, 2.0), (2.0, 5.0, 1.0, 4.0), (5.0, 6.0, 0.0, 0.0)],
            ),
        ],
        {
            "steps": 3,
            "data_stall_s": 1.0 + 1.0,
            "step_ms": 1e3 * (0.5 + 6.0) / 3,
        },
    ),
    "copies to an accelerator, which are a part of their steps": (
        [
            (
                call(0.0, 4.0, traced=True, fresh=True),
                [(0.0, 1.0, 1.0, 0.0, 3.5)],  # not counted
            ),
            (call(4.0, 7.0), [(4.0, 5.0, 1.0, 0.0, 5.5)]),
            (call(7.0, 10.0), [(7.0, 8.0, 1.0, 0.0, 9.0)]),
        ],
        {
            "step_ms": 2e3,
            "copy_ms": 750,
            # Of 6 s from the end of tracing.
            "copy_fraction": 1.5 / 6,
            "data_stall_fraction": 2 / 6,
            "step_fraction": 2.5 / 6,
        },
    ),
    "no steps": (
        [],
        {"steps": 0, "step_fraction": None, "first_batch_fraction": None},
    ),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_an_epoch_is_reported(name):
    steps, expected = EPOCHS[name]
    timer = EpochTimer(began=0.0)
    timer.add_calls([c for c, _ in steps], [rows(*f) for _, f in steps])
    timer.threads_before = None  # no account of the machine's other work
    report = timer.report()
    found = {figure: getattr(report, figure) for figure in expected}
    assert found == pytest.approx(expected)


def test_no_share_where_every_step_traced():
    """An epoch of one call: nothing was timed that it could be a share of."""
    timer = EpochTimer(began=100.0)
    assert timer.report() == StallReport(steps=0)
    timer.add_calls(
        [call(100.0, 103.0, traced=True, fresh=True)],
        [rows((100.0, 100.1), (101.0, 101.2), (102.0, 102.1))],
    )
    report = timer.report()
    assert report.data_stall_s == pytest.approx(0.3)
    assert report.data_stall_fraction is None
    assert report.copy_fraction is None
    timer.add_calls([call(103.0, 104.0)], [rows((103.0, 103.5))])
    assert timer.report().data_stall_fraction == pytest.approx(0.8 / 1.3)


def test_lost_rows_leave_no_figures():
    timer = EpochTimer(began=0.0)
    timer.add_calls([call(0.0, 1.0, fresh=True)], [rows((0.0, 0.5))])
    timer.lost_rows += 4
    assert timer.report() == StallReport(steps=None, not_recorded=4)
    assert timer.report().wait_ms is None


def test_percentiles_are_right_to_one_per_cent():
    waits = np.random.default_rng(0).lognormal(-6, 1.5, 5000)
    histogram = WaitHistogram()
    for part in np.split(waits, 10):
        histogram.add(part)
    for percent in (50, 95, 99):
        exact = np.percentile(waits, percent, method="inverted_cdf")
        assert histogram.percentile(percent) == pytest.approx(exact, rel=0.01)
    assert histogram.longest == waits.max()
    assert histogram.longest_step == waits.argmax()


def test_waits_of_nothing_are_zero_and_none_are_none():
    histogram = WaitHistogram()
    assert histogram.percentile(50) is None
    histogram.add(np.zeros(3))
    assert histogram.percentile(99) == 0.0
    assert histogram.longest_step == 0


def test_a_full_timeline_joins_neighbours():
    timeline = Timeline(size=4)
    timeline.add(np.arange(8.0), np.full(8, 2.0))
    first, wait, compute = timeline.arrays()
    assert timeline.group_size == 2
    np.testing.assert_array_equal(first, [0, 2, 4, 6])
    np.testing.assert_array_equal(wait, [0.5, 2.5, 4.5, 6.5])
    np.testing.assert_array_equal(compute, [2, 2, 2, 2])
    timeline.add(np.array([10.0]), np.array([1.0]))
    first, wait, _ = timeline.arrays()
    np.testing.assert_array_equal(first, [0, 4, 8])
    np.testing.assert_array_equal(wait, [1.5, 5.5, 10.0])
