"""The report of one epoch, from its timed calls."""

import dataclasses
import math
import pathlib

import numpy as np

from keras_pergrad.stalls.verdicts import SMALL_SHARE, stalls

#: Why fetches can be missing from the log.
TOO_MANY_FETCHES = (
    "a call of its train function fetched more batches than "
    "`steps_per_execution` says. Compile it with at least as many."
)
# The bins of waits: each a per cent wider than the one before.
SHORTEST_WAIT, BIN_RATIO = 1e-6, 1.01
BINS = 2400  # up to about 2e4 seconds
# Threads that wake up often wait longer for a core than they use it: a larger
# ratio says nothing about what they compute.
MAX_CONTENTION = 2.0
_THREADS = pathlib.Path("/proc/self/task")


@dataclasses.dataclass
class StallReport:
    """What one pass over the data cost; seconds unless the name says ms.

    What could not be measured is None, never 0.

    Attributes:
        steps: Batches trained on.
        data_stall_s: Time the steps waited for their batch, without the
            first batch of a fresh iterator.
        data_stall_fraction: `data_stall_s` over the time from the first
            batch's arrival to the end of the last step, tracing left out.
        step_ms: Mean time of a step without its wait, but with the copy of its
            batch to an accelerator.
        copy_ms: Mean time of that copy; None where none was timed.
        copy_fraction: The same as a share of the time of
            `data_stall_fraction`.
        cpu_ms: Mean time per batch that this process's threads computed, or
            were ready while others had the cores. It covers step and loading,
            and with several threads may exceed the elapsed time. In a long
            epoch it is the mean of a sample of the batches.
        stall_load_fraction: The part of `data_stall_fraction` that reading and
            generating data took; None if unknown.
        stall_transform_fraction: The part that the other stages took.
        first_batch_s: From the start of the epoch to the first batch.
        tracing_s: Time of calls that traced and compiled, without their waits
            but with their own steps.
        end_of_data_s: Time of the call that only found no batch left.
        validation_s: Time of the validation inside the epoch.
        validation_stall_s: Time that this validation waited for data.
        wait_p50_ms, wait_p95_ms, wait_p99_ms, wait_longest_ms: With
            `per_batch=True`; percentiles are accurate to one per cent.
        wait_longest_step: The step (from 0) of the longest wait.
        not_recorded: Fetches for which the log had no room. Unless it is 0,
            everything else is None.
    """

    steps: int | None = 0
    data_stall_s: float | None = None
    data_stall_fraction: float | None = None
    step_ms: float | None = None
    copy_ms: float | None = None
    copy_fraction: float | None = None
    cpu_ms: float | None = None
    stall_load_fraction: float | None = None
    stall_transform_fraction: float | None = None
    first_batch_s: float | None = None
    tracing_s: float | None = None
    end_of_data_s: float | None = None
    validation_s: float | None = None
    validation_stall_s: float | None = None
    wait_p50_ms: float | None = None
    wait_p95_ms: float | None = None
    wait_p99_ms: float | None = None
    wait_longest_ms: float | None = None
    wait_longest_step: int | None = None
    not_recorded: int = 0

    @property
    def step_fraction(self) -> float | None:
        """Share of the time that was neither stall nor copy, or None."""
        stall = self.data_stall_fraction
        if stall is None:
            return None
        return max(1.0 - stall - (self.copy_fraction or 0.0), 0.0)

    @property
    def first_batch_fraction(self) -> float | None:
        """Share of the epoch, without tracing, before its first batch."""
        # The time after the first batch follows from the stall and its share;
        # without a stall it is that of the steps.
        if self.first_batch_s is None or not self.data_stall_fraction:
            steady = (self.steps or 0) * (self.step_ms or 0.0) / 1e3
        else:
            steady = (self.data_stall_s or 0.0) / self.data_stall_fraction
        total = (self.first_batch_s or 0.0) + steady
        if self.first_batch_s is None or not total:
            return None
        return self.first_batch_s / total

    @property
    def fraction_without_longest(self) -> float:
        """`data_stall_fraction` but for the longest wait, or 0."""
        stall, share = self.data_stall_s or 0.0, self.data_stall_fraction
        longest = 1e-3 * (self.wait_longest_ms or 0.0)
        total = stall / share - longest if share else 0.0
        rest = stall - longest
        return max(rest, 0.0) / total if total > 0 else 0.0

    def stalls(self, above: float = SMALL_SHARE) -> bool:
        """Whether waits for data take more than this share of the time."""
        return stalls(
            self.data_stall_fraction,
            self.wait_ms,
            self.fraction_without_longest,
            above,
        )

    def hide_batches(self) -> None:
        """Forget what only `per_batch=True` asks for."""
        for field in dataclasses.fields(self):
            if field.name.startswith(("wait_p", "wait_longest")):
                setattr(self, field.name, None)

    @property
    def wait_ms(self) -> float | None:
        """Mean wait for a batch after the first, or None."""
        steps = self.steps or 0
        if self.data_stall_s is None or steps < 2:
            return None
        return 1e3 * self.data_stall_s / (steps - 1)


def exposed_waits(rows):
    """Return the seconds, shape (steps,), that each step truly waited.

    `rows` are those of the `WaitLog`. Time while the step beside a fetch
    still ran is no wait.
    """
    requested, arrived, _, step_ended, _ = rows.T
    return np.maximum(arrived - np.maximum(requested, step_ended), 0.0)


def copy_times(rows):
    """Return the seconds of the copies to an accelerator that were timed."""
    timed = rows[rows[:, 4] > 0]
    return np.maximum(timed[:, 4] - timed[:, 1], 0.0)


class EpochTimer:
    """Adds up the timed calls of one epoch, which `began` at a `time.time()`.

    The caller adds to `lost_rows` how many rows are missing.
    """

    def __init__(self, began):
        self.began = began
        self.lost_rows = 0
        self.steps = 0
        self.stall_seconds = 0.0
        self.wait_count = 0
        self.compute_seconds = 0.0
        self.copy_seconds = 0.0
        self.copy_count = 0
        self.threads_before = thread_seconds()
        self.cpu = 0.0
        self.cpu_steps = 0
        self.timed_steps = 0
        # From the arrival of the first batch to the end of the last step. Calls
        # that trace are in between, and are taken out again.
        self.steady_begin = None
        self.steady_end = None
        self.unsteady_seconds = 0.0
        self.first_batch = None
        self.tracing = None
        self.end_of_data = None
        self.histogram = WaitHistogram()
        self.timeline = Timeline()

    def add_calls(self, calls, rows):
        """Add `Call`s in order, and for each its rows of the `WaitLog`."""
        ordinary_calls = []
        for call, call_rows in zip(calls, rows):
            is_ordinary = call.finished and not (call.traced or call.fresh)
            if is_ordinary and self.steady_begin is not None and len(call_rows):
                ordinary_calls.append((call, call_rows))
                continue
            self._add_ordinary(ordinary_calls)
            ordinary_calls = []
            self._add_single(call, call_rows)
        self._add_ordinary(ordinary_calls)

    def _add_ordinary(self, pairs):
        """Add many calls at once: one by one costs 15 us each (measured)."""
        if not pairs:
            return
        # All rows in one array, and for each row the number of its call.
        rows = np.concatenate([rows for _, rows in pairs])
        call_numbers = np.repeat(
            np.arange(len(pairs)), [len(r) for _, r in pairs]
        )
        has_batch = rows[:, 2] > 0
        rows, call_numbers = rows[has_batch], call_numbers[has_batch]
        waits = exposed_waits(rows)
        seconds = np.array([call.ended - call.began for call, _ in pairs])
        steps = np.bincount(call_numbers, minlength=len(pairs))
        call_waits = np.bincount(call_numbers, waits, minlength=len(pairs))
        computes = np.maximum(seconds - call_waits, 0.0)
        self.stall_seconds += waits.sum()
        self.wait_count += len(waits)
        self.compute_seconds += computes[steps > 0].sum()
        self._add_copies(rows)
        for (call, _), count in zip(pairs, steps):
            self._add_cpu(call, count)
        self.timed_steps += len(waits)
        self.steps += len(waits)
        self.steady_end = pairs[-1][0].ended
        self.histogram.add(waits)
        self.timeline.add(
            waits, (computes / np.maximum(steps, 1))[call_numbers]
        )

    def _add_single(self, call, rows):
        rows = rows[(rows[:, 2] > 0) & (rows[:, 0] <= call.ended)]
        if not len(rows):
            if not call.finished:
                seconds = call.ended - call.began
                self.end_of_data = (self.end_of_data or 0.0) + seconds
            return
        waits = exposed_waits(rows)
        compute = max(call.ended - call.began - waits.sum(), 0.0)
        is_first = call.fresh and self.first_batch is None
        if is_first:
            # This includes making the iterator, before the call, but not
            # tracing, which came first in the call.
            self.first_batch = call.began - self.began + waits[0]
        if self.steady_begin is None:
            self.steady_begin = rows[0, 1] if is_first else rows[0, 0]
        self.steady_end = call.ended
        counted_waits = waits[1:] if is_first else waits
        self.stall_seconds += counted_waits.sum()
        self.wait_count += len(counted_waits)
        if call.traced:
            self.tracing = (self.tracing or 0.0) + compute
            start = max(call.began, self.steady_begin)
            self.unsteady_seconds += call.ended - start - counted_waits.sum()
        else:
            self.compute_seconds += compute
            self._add_copies(rows)
            self.timed_steps += len(rows)
            self._add_cpu(call, len(rows))
        self.histogram.add(counted_waits)
        if not call.traced:
            self.timeline.add(waits, np.full(len(rows), compute / len(rows)))
        self.steps += len(rows)

    def _add_cpu(self, call, steps):
        if call.cpu is not None:
            self.cpu += call.cpu
            self.cpu_steps += int(steps)

    def _add_copies(self, rows):
        times = copy_times(rows)
        self.copy_seconds += times.sum()
        self.copy_count += len(times)

    def report(self):
        """Return the `StallReport` of the calls so far."""
        if self.lost_rows:
            return StallReport(steps=None, not_recorded=self.lost_rows)
        report = StallReport(
            steps=self.steps,
            first_batch_s=_seconds(self.first_batch),
            tracing_s=_seconds(self.tracing),
            end_of_data_s=_seconds(self.end_of_data),
        )
        if self.wait_count:
            report.data_stall_s = float(self.stall_seconds)
            steady = (self.steady_end or 0.0) - (self.steady_begin or 0.0)
            steady -= self.unsteady_seconds
            # Where every step traced, nothing is left to divide by.
            if steady > 0 and self.timed_steps:
                share = float(self.stall_seconds / steady)
                report.data_stall_fraction = min(share, 1.0)
                if self.copy_count:
                    copies = float(self.copy_seconds / steady)
                    report.copy_fraction = min(copies, 1.0)
        if self.timed_steps:
            report.step_ms = float(
                1e3 * self.compute_seconds / self.timed_steps
            )
        if self.copy_count:
            report.copy_ms = float(1e3 * self.copy_seconds / self.copy_count)
        if self.cpu_steps:
            cpu = self.cpu * cpu_contention(
                self.threads_before, thread_seconds()
            )
            report.cpu_ms = float(1e3 * cpu / self.cpu_steps)
        if self.histogram.total:
            for percent in (50, 95, 99):
                wait = self.histogram.percentile(percent)
                setattr(report, f"wait_p{percent}_ms", 1e3 * (wait or 0.0))
            report.wait_longest_ms = 1e3 * self.histogram.longest
            first = self.steps - self.histogram.total
            report.wait_longest_step = (
                self.histogram.longest_step or 0
            ) + first
        return report


def _seconds(value):
    return None if value is None else float(value)


class WaitHistogram:
    """Percentiles of the waits, to one per cent of their value."""

    def __init__(self):
        self.counts = np.zeros(BINS, np.int64)
        self.longest = 0.0
        self.longest_step = None
        self.total = 0

    def add(self, waits):
        scaled = np.log(np.maximum(waits, SHORTEST_WAIT) / SHORTEST_WAIT)
        bins = np.minimum(scaled / math.log(BIN_RATIO), BINS - 1).astype(int)
        np.add.at(self.counts, bins, 1)
        if len(waits):
            place = int(np.argmax(waits))
            if self.longest_step is None or waits[place] > self.longest:
                self.longest = float(waits[place])
                self.longest_step = self.total + place
        self.total += len(waits)

    def percentile(self, percent):
        """Return the wait that `percent` of the batches do not exceed, in s."""
        if not self.total:
            return None
        rank = max(1, math.ceil(self.total * percent / 100))
        bin_number = int(np.searchsorted(np.cumsum(self.counts), rank))
        middle = SHORTEST_WAIT * BIN_RATIO ** (bin_number + 0.5)
        # The first bin has all waits that are too short to measure.
        return 0.0 if bin_number == 0 else float(min(middle, self.longest))


class Timeline:
    """Mean wait and compute of neighbouring batches, for drawing.

    When `size` groups are full, neighbours are joined.
    """

    def __init__(self, size=512):
        self.size = size
        self.group_size = 1  # batches in a group
        self._sums = np.zeros((size, 2))
        self._batch_count = 0

    def add(self, waits, computes):
        pairs = np.column_stack([waits, computes])
        while len(pairs):
            room = self.size * self.group_size - self._batch_count
            if not room:
                joined = self._sums[0::2] + self._sums[1::2]
                self._sums[:] = 0
                self._sums[: self.size // 2] = joined
                self.group_size *= 2
                continue
            fitting, pairs = pairs[:room], pairs[room:]
            batches = self._batch_count + np.arange(len(fitting))
            np.add.at(self._sums, batches // self.group_size, fitting)
            self._batch_count += len(fitting)

    def arrays(self):
        """Return each group's first batch, mean wait and mean compute (s)."""
        groups = math.ceil(self._batch_count / self.group_size)
        first = np.arange(groups) * self.group_size
        sizes = np.minimum(self.group_size, self._batch_count - first)
        means = self._sums[:groups] / np.maximum(sizes, 1)[:, None]
        return first, means[:, 0], means[:, 1]


def thread_seconds():
    """Return the threads' seconds on a core and in wait for one (on Linux)."""
    on_core = ready = 0
    try:
        threads = list(_THREADS.iterdir())
    except OSError:
        return None
    for thread in threads:
        try:
            times = (thread / "schedstat").read_text().split()
        except OSError:
            continue  # it has just ended, or the system keeps no account
        on_core += int(times[0])
        ready += int(times[1])
    return on_core * 1e-9, ready * 1e-9


def cpu_contention(before, after):
    """Return how much longer computing took for lack of cores, 1.0 to 2.0."""
    if before is None or after is None:
        return 1.0
    on_core, ready = after[0] - before[0], after[1] - before[1]
    if on_core <= 0 or ready <= 0:
        return 1.0
    return min(1.0 + ready / on_core, MAX_CONTENTION)
