"""Reports of made-up calls, by hand."""

import numpy as np
import pytest

from keras_pergrad.stalls import accounting
from keras_pergrad.stalls.accounting import (
    CALL,
    Epoch,
    StallReport,
    exposed_waits,
    measure_epoch,
)
from keras_pergrad.stalls.drawing import grouped_means


def call(began, ended, traced=False, fresh=False, finished=True, cpu=np.nan):
    return began, ended, traced, fresh, finished, cpu


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


def measured(steps, began=0.0):
    """The report of calls with their fetches, and the timeline."""
    steps = list(steps)
    fetches = [fetch for _, fetched in steps for fetch in fetched]
    calls = np.array([call for call, _ in steps], CALL)
    return measure_epoch(calls, rows(*fetches), began)


@pytest.mark.parametrize("name", EPOCHS)
def test_an_epoch_is_reported(name):
    steps, expected = EPOCHS[name]
    report, _ = measured(steps)
    found = {figure: getattr(report, figure) for figure in expected}
    assert found == pytest.approx(expected)


def test_no_share_where_every_step_traced():
    """An epoch of one call: nothing was timed that it could be a share of."""
    assert measured([]) == (StallReport(steps=0), None)
    fetches = [(100.0, 100.1), (101.0, 101.2), (102.0, 102.1)]
    steps = [(call(100.0, 103.0, traced=True, fresh=True), fetches)]
    report, timeline = measured(steps, 100.0)
    assert report.data_stall_s == pytest.approx(0.3)
    assert report.data_stall_fraction is None
    assert report.copy_fraction is None
    assert timeline.shape == (0, 2)
    steps.append((call(103.0, 104.0), [(103.0, 103.5)]))
    report, timeline = measured(steps, 100.0)
    assert report.data_stall_fraction == pytest.approx(0.8 / 1.3)
    np.testing.assert_allclose(timeline, [[0.5, 0.5]])


def test_fetches_outside_of_the_calls_do_not_count():
    epoch = Epoch("train_function")
    epoch.add(
        np.array([call(1.0, 2.0), call(4.0, 5.0)], CALL),
        rows((0.5, 0.9), (1.0, 1.5), (3.0, 3.9), (4.0, 4.25), (6.0, 7.0)),
    )
    epoch.add(np.array([call(8.0, 9.0)], CALL), rows((8.0, 8.5)))
    report, timeline = epoch.measure()
    assert (report.steps, report.data_stall_s) == (3, 1.25)
    np.testing.assert_allclose(timeline, [[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
    epoch.lost += 4
    assert epoch.measure() == (StallReport(steps=None, not_recorded=4), None)


def test_time_without_a_core_is_what_the_system_says(monkeypatch):
    for seconds, ready_ms in (([(1, 4), (3, 5)], 500), ([None, None], None)):
        monkeypatch.setattr(accounting, "thread_seconds", seconds.pop)
        seconds.reverse()
        epoch = Epoch("train_function")
        epoch.add(np.array([call(0.0, 2.0, cpu=1.0)], CALL), rows((1.0, 1.5)))
        report, _ = epoch.measure()
        assert (report.cpu_ms, report.ready_ms) == (1e3, ready_ms)


def test_percentiles_are_those_of_the_waits():
    waits = np.random.default_rng(0).lognormal(-6, 1.5, 5000)
    ends = np.cumsum(waits + 1.0)
    report, _ = measured(
        (call(end - wait, end + 0.5), [(end - wait, end)])
        for end, wait in zip(ends, waits)
    )
    for percent in (50, 95, 99):
        exact = 1e3 * np.percentile(waits, percent, method="inverted_cdf")
        found = getattr(report, f"wait_p{percent}_ms")
        assert found == pytest.approx(exact, abs=1e-6)
    assert report.wait_longest_step == waits.argmax()


def test_neighbours_are_drawn_by_their_mean():
    timeline = np.column_stack([np.arange(8.0), np.full(8, 2.0)])
    first, (wait, compute), size = grouped_means(timeline, most=4)
    assert size == 2
    np.testing.assert_array_equal(first, [0, 2, 4, 6])
    np.testing.assert_array_equal(wait, [0.5, 2.5, 4.5, 6.5])
    np.testing.assert_array_equal(compute, [2, 2, 2, 2])
    first, (wait, _), _ = grouped_means(
        np.append(timeline, [[10, 1]], 0), most=4
    )
    np.testing.assert_array_equal(first, [0, 4, 8])
    np.testing.assert_array_equal(wait, [1.5, 5.5, 10.0])
