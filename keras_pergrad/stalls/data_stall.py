"""The callback that measures how long training waits for its data, and why."""

import functools
import time
import weakref
from typing import Any, Literal

import keras

from keras_pergrad.common import callback_list
from keras_pergrad.common.arguments import (
    NamedArguments,
    named_arguments,
    number_from,
    require_one_of,
)
from keras_pergrad.common.callback_list import at_end_of_fit
from keras_pergrad.common.running_fit import running_fit
from keras_pergrad.keras_internals.fit.train_function import TEST, TRAIN
from keras_pergrad.keras_internals.models.parts import require_free_names
from keras_pergrad.stalls.accounting import Epoch, StallReport
from keras_pergrad.stalls.advice import Advice
from keras_pergrad.stalls.diagnosis import diagnose
from keras_pergrad.stalls.drawing import plot_epochs, plot_timeline
from keras_pergrad.stalls.facts import Facts
from keras_pergrad.stalls.running import PipelineSamples
from keras_pergrad.stalls.stages import StageRow, stage_table, work_shares
from keras_pergrad.stalls.stopwatch import Stopwatch

LOGS = (
    "data_stall_fraction",
    "step_ms",
    "data_stall_s",
    "stall_load_fraction",
    "stall_transform_fraction",
    "copy_fraction",
    "step_fraction",
)


class DataStall(NamedArguments, keras.callbacks.Callback):
    """Measures how long each step waits for its batch.

    Works with `fit` and `evaluate` of any compiled model and any kind of
    data. Every epoch's `logs` get `data_stall_fraction`, `step_ms`,
    `data_stall_s` and the shares of the time, which sum to 1: `step_fraction`,
    `copy_fraction` (to an accelerator, where there is one),
    `stall_load_fraction` (reading and generating) and
    `stall_transform_fraction` (all other stages). The last two exist only
    where TensorFlow measures the pipeline. The order of the callbacks does not
    matter: this one moves before the first that reads the logs. The first
    batch, tracing and validation are counted separately: see `reports`.

    It measures the wait of the host. If an accelerator runs behind the host,
    the device's idle time can be shorter.

    Args:
        warn_above: Share of the time, 0 to 1. After the first epoch that waits
            longer, one message is printed, after the progress bar. Waits below
            0.2 ms a batch and a single long one cause none, unless this is 0.
        per_batch: Keep wait and compute of each batch of the last epoch, for
            `plot`.
        advise: Name the cause in the message, and what to change.
        verbose: 0: print nothing; 1: message and verdict; 2: also, after every
            epoch, a table of the pipeline's stages with what TensorFlow's
            AUTOTUNE has chosen for each.

    Attributes:
        reports: One `StallReport` per epoch of the last `fit`, or one for the
            last `evaluate`.
        verdict: One line on the last epoch: whether the data was the
            bottleneck. It ends the message. A `fit` or `evaluate` that prints
            a progress bar ends with it in any case.
        message: The message that was printed, or None.
        advice: List of `Advice` in the message, the most useful first: each
            has a `name`, a `cause`, the `code` to write and `gain_ms`, the
            most time that it can save, if that was measured.
        stages: List of `StageRow` of the last epoch, the source first; empty
            where TensorFlow does not measure them.

    Raises:
        ValueError: If `warn_above` is not a number from 0 to 1, or `verbose`
            not 0, 1 or 2.

    Example:

    ```python
    stall = kpg.callbacks.DataStall()
    history = model.fit(dataset, epochs=3, callbacks=[stall])
    history.history["data_stall_fraction"]
    ```
    """

    def __init__(
        self,
        warn_above: float = 0.05,
        *,
        per_batch: bool = False,
        advise: bool = True,
        verbose: int = 1,
    ):
        super().__init__()
        share = number_from("warn_above", warn_above, 0, high=1)
        self.warn_above: float = share
        self.verbose: int = int(verbose)
        self.per_batch: bool = bool(per_batch)
        self.advise: bool = bool(advise)
        self.reports: list[StallReport] = []
        self.message: str | None = None
        self.verdict: str | None = None
        self._has_spoken = False
        self.advice: list[Advice] = []
        self.stages: list[StageRow] = []
        self._samples, self._calls = PipelineSamples(), 0
        self._stopwatch = None
        self._epochs: dict[str, Epoch] = {}
        self._data = None
        self._callbacks = self._fit_callbacks = _no_callbacks
        self._last_hook = None
        self._passes_left = None
        self._validation = None
        self._timeline = None
        self._run_token = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        require_free_names(self.model, LOGS, "DataStall")
        self._begin_run()
        self._fit_callbacks = self._callbacks

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        epochs = (self.params or {}).get("epochs")
        self._passes_left = None if epochs is None else epochs - epoch
        self._validation = None
        self._open_epoch(TRAIN)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._arm(TRAIN)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self._is_validation():
            self._begin_run()
            self._passes_left = 1
        self._open_epoch(TEST)

    def on_test_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._arm(TEST)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._stopwatch.drain()
        epoch = self._epochs.pop(TEST)
        if self._is_validation():
            seconds = time.time() - epoch.began
            report, _ = epoch.measure()
            waits = [report.first_batch_s, report.data_stall_s]
            self._validation = seconds, sum(w for w in waits if w is not None)
            return
        self._publish(epoch, logs)
        self._end_run()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._stopwatch.drain()
        self._publish(self._epochs.pop(TRAIN), logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._prints_verdict():
            print(self._last_line(), flush=True)
        self._end_run()
        self._fit_callbacks = _no_callbacks

    def call_failed(self) -> None:
        """Report what was measured before the train function raised."""
        for slot in [s for s in (TRAIN, TEST) if s in self._epochs]:
            epoch = self._epochs.pop(slot)
            report, _ = epoch.measure()
            if report.steps or report.not_recorded:
                self._publish(epoch, None)
        self._end_run()

    @named_arguments
    def plot(
        self, ax: Any = None, by: Literal["epoch", "batch"] | None = None
    ) -> Any:
        """Draw where the time of the run went.

        Args:
            ax: Matplotlib axes to draw on; by default new ones.
            by: "epoch": for each epoch the shares of the step, of the copy
                to an accelerator, of loading and of transforming.
                "batch": wait and compute of the batches of the last epoch,
                which needs `per_batch=True`. By default batches if they were
                recorded, else epochs.

        Returns:
            The axes.

        Raises:
            ValueError: If `by` is something else, or nothing was recorded.
            ImportError: If matplotlib is not installed.
        """
        by = by or ("batch" if self.per_batch else "epoch")
        require_one_of("by", by, ("epoch", "batch"))
        if by == "epoch" and self.reports:
            return plot_epochs(self.reports, ax)
        if by == "epoch" or self._timeline is None:
            raise ValueError(
                "`plot` expected a callback that a `fit` or `evaluate` has "
                "used, for single batches with `per_batch=True`. "
                f"Received: by={by!r}, per_batch={self.per_batch}, "
                f"epochs measured={len(self.reports)}"
            )
        return plot_timeline(self._timeline, ax)

    def _begin_run(self):
        self.reports, self.message, self.verdict = [], None, None
        self.advice, self.stages = [], []
        self._epochs, self._timeline = {}, None
        self._stopwatch = Stopwatch.of(self.model)
        self._stopwatch.disarm()
        self._stopwatch.drain()
        self._stopwatch.listeners.add(self)
        running = running_fit(self.model)
        self._data = running.data
        self._callbacks, callbacks = _no_callbacks, running.callback_list
        if callbacks is not None:
            self._callbacks = weakref.ref(callbacks)
        at_end_of_fit(self.model, callbacks, self._make_end_hook())
        callback_list.go_before_readers(self, callbacks)

    def _arm(self, slot):
        # Between two steps nothing that this needs is in the caches: Python
        # takes ten times as long as in a loop.
        self._calls += 1
        if self._calls == self._samples.due:
            self._samples.take(self._stopwatch.iterators[slot]())
        if self._last_hook is None:
            self._stopwatch.hooks[slot].arm(self.model)
        else:
            self._last_hook.join()

    def _open_epoch(self, slot):
        self._epochs[slot] = self._stopwatch.begin_epoch(slot)
        self._samples, self._calls = PipelineSamples(), 0
        self._last_hook, callbacks = None, self._callbacks()
        if callbacks is not None and not callback_list.is_last(self, callbacks):
            arm = functools.partial(self._stopwatch.hooks[slot].arm, self.model)
            self._last_hook = callback_list.CalledLast(callbacks, arm)

    def _is_validation(self):
        fit_callbacks = self._fit_callbacks()
        if fit_callbacks is None:
            return False
        return running_fit(self.model).callback_list is fit_callbacks

    def _publish(self, epoch, logs):
        report, timeline = epoch.measure()
        self._timeline = timeline if self.per_batch else None
        if epoch.slot == TRAIN and self._validation is not None:
            report.validation_s, report.validation_stall_s = self._validation
        running = self._samples.summary(self._stopwatch.iterators[epoch.slot]())
        facts = Facts(report, self._data, running, passes=self._passes_left)
        self.stages = facts.rows
        _split_stall(report, facts.rows)
        self.reports.append(report)
        if logs is not None:
            values = {name: getattr(report, name) for name in LOGS}
            logs.update({k: v for k, v in values.items() if v is not None})
        self.verdict, self._has_spoken = facts.verdict.text, False
        texts = []
        if self.verbose == 2 and self.stages:
            cores, memory = running.cpu_budget, running.ram_budget
            texts.append(stage_table(self.stages, cores, memory))
        if self.message is None:
            self.message, self.advice = diagnose(
                facts, self.warn_above, with_advice=self.advise
            )
            self._has_spoken = self.message is not None
            texts += [self.message] if self.message else []
        is_evaluation = epoch.slot == TEST and logs is not None
        if is_evaluation and self._prints_verdict():
            texts.append(self._last_line())
        text = "\n".join(texts) if self.verbose else None
        if logs is None:  # an error is being raised: no bar follows
            if text:
                print(f"\n{text}", flush=True)
        elif text:
            callback_list.print_last(self._callbacks(), text)

    def _prints_verdict(self):
        """Whether to print the verdict: `fit` prints, and no message had it."""
        prints = self.verbose and (self.params or {}).get("verbose", 0)
        return bool(prints and self.verdict and not self._has_spoken)

    def _last_line(self):
        return f"DataStall: {self.verdict}."

    def _make_end_hook(self):
        """Return a function that ends this `fit`, but no later one."""
        self._run_token = token = object()

        def end_run():
            if self._run_token is token:
                self._end_run()
                self._fit_callbacks = _no_callbacks

        return end_run

    def _end_run(self):
        self._stopwatch.disarm()
        self._stopwatch.listeners.discard(self)
        self._epochs, self._data, self._last_hook = {}, None, None


def _split_stall(report, rows):
    """Split the stall of a report into loading and all else, if known."""
    shares = work_shares(rows)
    if shares is not None and report.data_stall_fraction is not None:
        load, transform = shares
        report.stall_load_fraction = report.data_stall_fraction * load
        report.stall_transform_fraction = report.data_stall_fraction * transform


def _no_callbacks():
    return None
