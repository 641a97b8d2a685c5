"""The report of one epoch, from the timed calls and fetches in it."""

import dataclasses
import pathlib
import time

import numpy as np

from keras_pergrad.common.arguments import named_arguments

#: A stall with a smaller share of the time is no bottleneck.
SMALL_SHARE = 0.05
# Handing a batch over takes a tenth of a millisecond (measured): a wait of
# this length leaves nothing to gain, whatever share of a short step it is.
SMALL_WAIT_MS = 0.2
#: Why fetches can be missing from the log.
TOO_MANY_FETCHES = (
    "a call of its train function fetched more batches than "
    "`steps_per_execution` says. Compile it with at least as many."
)
#: A call of a train function. The times are those of `time.time()`, the
#: processor time is that of all threads of this process, NaN where not read.
CALL = np.dtype(
    [
        ("began", "f8"),
        ("ended", "f8"),
        ("traced", "?"),
        ("fresh", "?"),  # the first on this iterator
        ("finished", "?"),  # False: no batch was left
        ("cpu_s", "f8"),
    ]
)
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
        cpu_ms: Mean processor time per batch of this process's threads. It
            covers step and loading, and with several threads may exceed the
            elapsed time. In a long epoch it is the mean of a sample of the
            batches.
        ready_ms: Mean time per batch that these threads were ready to compute
            while others had the cores; None where the system does not say.
        stall_load_fraction: The part of `data_stall_fraction` that reading and
            generating data took; None if unknown.
        stall_transform_fraction: The part that the other stages took.
        first_batch_s: From the start of the epoch to the first batch.
        tracing_s: Time of calls that traced and compiled, without their waits
            but with their own steps.
        end_of_data_s: Time of the call that only found no batch left.
        validation_s: Time of the validation inside the epoch.
        validation_stall_s: Time that this validation waited for data.
        wait_p50_ms, wait_p95_ms, wait_p99_ms, wait_longest_ms: Percentiles
            of the waits in `data_stall_s`, and the longest of them.
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
    ready_ms: float | None = None
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
        if self.first_batch_s is None:
            return None
        # The time after the first batch follows from the stall and its share;
        # without a stall it is that of the steps.
        steady = (self.steps or 0) * (self.step_ms or 0.0) / 1e3
        if self.data_stall_fraction:
            steady = (self.data_stall_s or 0.0) / self.data_stall_fraction
        total = self.first_batch_s + steady
        return self.first_batch_s / total if total else None

    @property
    def fraction_without_longest(self) -> float:
        """`data_stall_fraction` without the longest wait, or 0."""
        stall, share = self.data_stall_s or 0.0, self.data_stall_fraction
        longest = 1e-3 * (self.wait_longest_ms or 0.0)
        total = stall / share - longest if share else 0.0
        rest = stall - longest
        return max(rest, 0.0) / total if total > 0 else 0.0

    @named_arguments
    def stalls(self, above: float = SMALL_SHARE) -> bool:
        """Whether waits for data take more than this share of the time."""
        share, wait = self.data_stall_fraction, self.wait_ms
        if share is None or wait is None or share <= above:
            return False
        # A machine that pauses makes one long wait: it takes two for a stall.
        return not above or (
            wait >= SMALL_WAIT_MS and self.fraction_without_longest > above
        )

    @property
    def wait_ms(self) -> float | None:
        """Mean wait for a batch after the first, or None."""
        steps = self.steps or 0
        if self.data_stall_s is None or steps < 2:
            return None
        return 1e3 * self.data_stall_s / (steps - 1)

    @property
    def batches_per_s(self) -> float | None:
        """Rate at the mean wait and the mean step, or None."""
        wait, step = self.wait_ms, self.step_ms
        if wait is None or step is None or not wait + step > 0:
            return None
        return 1e3 / (wait + step)


def exposed_waits(fetches):
    """Return the seconds, shape (fetches,), that each step truly waited.

    `fetches` are rows of the `WaitLog`. Time while the step beside a fetch
    still ran is no wait.
    """
    requested, arrived, _, step_ended, _ = fetches.T
    return np.maximum(arrived - np.maximum(requested, step_ended), 0.0)


class Epoch:
    """The timed calls of one pass over the data, and what they fetched.

    It takes some 70 bytes a step.

    Attributes:
        slot: The one of the function whose calls it collects.
        began: When it began, a `time.time()`.
        lost: How many fetches the log had no room for.
    """

    def __init__(self, slot):
        self.slot = slot
        self.began = time.time()
        self.lost = 0
        self._threads = thread_seconds()
        self._calls = [np.zeros(0, CALL)]
        self._fetches = [np.zeros((0, 5))]

    def add(self, calls, fetches):
        """Add calls, an array of `CALL`, and rows of the `WaitLog`, in order.

        Fetches outside of these calls do not count.
        """
        self._calls.append(calls)
        self._fetches.append(fetches)

    def measure(self):
        """Return what `measure_epoch` does of the calls so far."""
        if self.lost:
            return StallReport(steps=None, not_recorded=self.lost), None
        return measure_epoch(
            np.concatenate(self._calls),
            np.concatenate(self._fetches),
            self.began,
            ready_ratio=_ready_ratio(self._threads, thread_seconds()),
        )


def measure_epoch(calls, fetches, began, *, ready_ratio=None):
    """Return the `StallReport` of an epoch and its timeline, or None.

    The timeline has shape (batches, 2): the wait for each batch and the
    compute of its step, in seconds, but for calls that traced.

    Args:
        calls: array of `CALL`, in order.
        fetches: rows of the `WaitLog`, in order.
        began: when the epoch began.
        ready_ratio: time that threads were ready without a core, over time
            that they had one; None: unknown.
    """
    if not len(calls):
        return StallReport(), None
    # The call that made each fetch: the last one that had begun.
    made_by = np.searchsorted(calls["began"], fetches[:, 0], "right") - 1
    is_inside = (made_by >= 0) & (fetches[:, 0] <= calls["ended"][made_by])
    counts = is_inside & (fetches[:, 2] > 0)
    fetches, made_by = fetches[counts], made_by[counts]
    waits = exposed_waits(fetches)
    steps = np.bincount(made_by, minlength=len(calls))  # of each call
    seconds = calls["ended"] - calls["began"]
    waited = np.bincount(made_by, waits, minlength=len(calls))
    computes = np.maximum(seconds - waited, 0.0)
    has_traced = (steps > 0) & calls["traced"]
    is_timed = (steps > 0) & ~calls["traced"]
    report = StallReport(
        steps=len(waits),
        tracing_s=_total(computes[has_traced]),
        end_of_data_s=_total(seconds[(steps == 0) & ~calls["finished"]]),
    )
    if not len(waits):
        return report, None
    # The first batch of a fresh iterator is no stall. Making the iterator is
    # in it, before the call, but not tracing, which comes first in the call.
    is_stall = np.ones(len(waits), bool)
    steady_begin = fetches[0, 0]
    if calls["fresh"][made_by].any():
        first = np.argmax(calls["fresh"][made_by])
        is_stall[first] = False
        before = calls["began"][made_by[first]] - began
        report.first_batch_s = float(before + waits[first])
        if first == 0:
            steady_begin = fetches[0, 1]
    stalls = waits[is_stall]
    report.data_stall_s = _total(stalls)
    timed_steps = steps[is_timed].sum()
    report.step_ms = _mean_ms(computes[is_timed].sum(), timed_steps)
    traced = calls["traced"][made_by]
    copied = ~traced & (fetches[:, 4] > 0)
    copies = np.maximum(fetches[copied, 4] - fetches[copied, 1], 0.0)
    report.copy_ms = _mean_ms(copies.sum(), len(copies))
    if len(stalls) and timed_steps:
        # Calls that traced lie between the first batch and the last step, and
        # are taken out again, but for their waits.
        starts = np.maximum(calls["began"][has_traced], steady_begin)
        unsteady = (calls["ended"][has_traced] - starts).sum()
        unsteady -= waits[is_stall & traced].sum()
        steady = calls["ended"][steps > 0][-1] - steady_begin - unsteady
        if steady > 0:
            report.data_stall_fraction = min(float(stalls.sum() / steady), 1.0)
            if len(copies):
                report.copy_fraction = min(float(copies.sum() / steady), 1.0)
    has_cpu = is_timed & ~np.isnan(calls["cpu_s"])
    report.cpu_ms = _mean_ms(
        calls["cpu_s"][has_cpu].sum(), steps[has_cpu].sum()
    )
    if report.cpu_ms is not None and ready_ratio is not None:
        report.ready_ms = report.cpu_ms * ready_ratio
    if len(stalls):
        middle, high, highest = 1e3 * np.percentile(
            stalls, (50, 95, 99), method="inverted_cdf"
        )
        report.wait_p50_ms = float(middle)
        report.wait_p95_ms = float(high)
        report.wait_p99_ms = float(highest)
        report.wait_longest_ms = float(1e3 * stalls.max())
        report.wait_longest_step = int(
            np.flatnonzero(is_stall)[np.argmax(stalls)]
        )
    timeline = np.column_stack([waits, computes[made_by] / steps[made_by]])
    return report, timeline[~traced]


def _total(seconds):
    """Return the sum of a one-dimensional array; None of none."""
    return float(seconds.sum()) if len(seconds) else None


def _mean_ms(seconds, count):
    """Return a mean in milliseconds, or None."""
    return float(1e3 * seconds / count) if count else None


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


def _ready_ratio(before, after):
    """Return the time in wait for a core over that on one; None: unknown."""
    if before is None or after is None:
        return None
    on_core, ready = after[0] - before[0], after[1] - before[1]
    # Threads that have ended take their seconds along.
    return max(ready, 0.0) / on_core if on_core > 0 else None
