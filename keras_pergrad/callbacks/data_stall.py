"""How long training waits for data, and why."""

import numbers
import time
import weakref

import keras

from keras_pergrad.pipelines.account import Account, StallReport
from keras_pergrad.pipelines.armer import arm_last, remove_armers
from keras_pergrad.pipelines.diagnosis import diagnose
from keras_pergrad.pipelines.fit_frame import running_fit
from keras_pergrad.pipelines.stopwatch import Stopwatch

TRAIN, TEST = "train_function", "test_function"
LOGGED = ("data_stall_s", "data_stall_fraction", "step_ms")


class DataStall(keras.callbacks.Callback):
    """Measures how long each step waits for its batch.

    Works with `fit` and `evaluate` of any compiled model and any kind of
    data. Every epoch's `logs` get `data_stall_s`, `data_stall_fraction` and
    `step_ms`; put the callback before a `CSVLogger` that shall see them. The
    first batch, tracing and validation are kept apart: see `reports`.

    What is measured is the wait of the host. On an accelerator that runs
    behind the host, the device's idle time can be shorter.

    Args:
        warn_above: Share of the time, 0 to 1. After the first epoch that
            waits longer, one message is printed.
        per_batch: Also report percentiles of the wait and keep a timeline
            for `plot`. Memory stays constant.
        advise: Say in the message why, and what to change.

    Attributes:
        reports: One `StallReport` an epoch of the last `fit`, or one of the
            last `evaluate`.
        message: The message that was printed, or None.

    Raises:
        ValueError: If `warn_above` is not a number from 0 to 1.

    Example:

    ```python
    stall = kpg.callbacks.DataStall()
    history = model.fit(dataset, epochs=3, callbacks=[stall])
    history.history["data_stall_fraction"]
    ```
    """

    def __init__(self, warn_above=0.05, per_batch=False, advise=True):
        super().__init__()
        number = isinstance(warn_above, numbers.Real)
        if (
            not number
            or isinstance(warn_above, bool)
            or not (0 <= warn_above <= 1)
        ):
            raise ValueError(
                "`warn_above` is a share of the time; expected a number from "
                f"0 to 1. Received: warn_above={warn_above!r}"
            )
        self.warn_above = float(warn_above)
        self.per_batch = per_batch
        self.advise = advise
        self.reports: list[StallReport] = []
        self.message: str | None = None
        self._stopwatch = None
        self._accounts: dict[str, Account] = {}
        self._data = None
        self._callbacks = self._fit_callbacks = _nothing
        self._passes = None
        self._validation = None
        self._timeline = None

    # Hooks, in the order in which Keras calls them.

    def on_train_begin(self, logs=None):
        self._enter()
        self._fit_callbacks = self._callbacks

    def on_epoch_begin(self, epoch, logs=None):
        epochs = (self.params or {}).get("epochs")
        self._passes = None if epochs is None else epochs - epoch
        self._validation = None
        self._open(TRAIN)

    def on_train_batch_begin(self, batch, logs=None):
        self._arm(TRAIN)

    def on_test_begin(self, logs=None):
        if not self._is_validation():
            self._enter()
            self._passes = 1
        self._open(TEST)

    def on_test_batch_begin(self, batch, logs=None):
        self._arm(TEST)

    def on_test_end(self, logs=None):
        self._stopwatch.drain()
        account = self._accounts.pop(TEST)
        report = account.report()
        if self._is_validation():
            seconds = time.time() - account.began
            waits = [report.first_batch_s, report.data_stall_s]
            self._validation = seconds, sum(w for w in waits if w is not None)
            return
        self._publish(report, account, TEST, logs)
        self._leave()

    def on_epoch_end(self, epoch, logs=None):
        self._stopwatch.drain()
        account = self._accounts.pop(TRAIN)
        report = account.report()
        if self._validation is not None:
            report.validation_s, report.validation_stall_s = self._validation
        self._publish(report, account, TRAIN, logs)

    def on_train_end(self, logs=None):
        self._leave()
        self._fit_callbacks = _nothing

    # What the stopwatch tells.

    def calls_done(self, calls, rows):
        for slot, account in self._accounts.items():
            mine = [pair for pair in zip(calls, rows) if pair[0].slot == slot]
            if mine:
                account.add_calls(*zip(*mine))

    def rows_lost(self, count):
        for account in self._accounts.values():
            account.lost += count

    def call_failed(self):
        """An error passes through the train function: report what there is."""
        accounts = [s for s in (TRAIN, TEST) if s in self._accounts]
        for slot in accounts:
            account = self._accounts.pop(slot)
            if account.steps or account.lost:
                self._publish(account.report(), account, slot, None)
        self._leave()

    def plot(self, ax=None):
        """Draws wait and compute of the batches of the last epoch.

        Args:
            ax: Matplotlib axes to draw on; by default new ones.

        Returns:
            The axes.

        Raises:
            ValueError: If nothing was recorded, which needs
                `per_batch=True` and a `fit` or `evaluate`.
            ImportError: If matplotlib is not installed.
        """
        from keras_pergrad.pipelines.stall_plot import plot_timeline

        if self._timeline is None:
            raise ValueError(
                "`plot` draws single batches; expected a callback with "
                "`per_batch=True` that a `fit` or `evaluate` has used. "
                f"Received: per_batch={self.per_batch}, "
                f"epochs measured={len(self.reports)}"
            )
        return plot_timeline(self._timeline, ax)

    # Inner workings.

    def _enter(self):
        self.reports, self.message = [], None
        self._accounts, self._timeline = {}, None
        self._stopwatch = Stopwatch.of(self.model)
        self._stopwatch.disarm()
        self._stopwatch.drain()
        self._stopwatch.listeners.add(self)
        running = running_fit(self.model)
        self._data = running.data
        self._callbacks = _nothing
        if running.callbacks is not None:
            self._callbacks = weakref.ref(running.callbacks)
            remove_armers(running.callbacks)

    def _arm(self, slot):
        callbacks = self._callbacks()
        if callbacks is None:
            self._stopwatch.arm(self.model, slot)
        else:
            arm_last(callbacks, self._stopwatch, self.model, slot)

    def _open(self, slot):
        self._accounts[slot] = Account(time.time())

    def _is_validation(self):
        fit_callbacks = self._fit_callbacks()
        if fit_callbacks is None:
            return False
        return running_fit(self.model).callbacks is fit_callbacks

    def _publish(self, report, account, slot, logs):
        self._timeline = account.timeline if self.per_batch else None
        if logs is not None:
            for key in LOGGED:
                value = getattr(report, key)
                if value is not None:
                    logs[key] = value
        if self.message is None:
            self.message = diagnose(
                report,
                self.warn_above,
                data=self._data if self.advise else None,
                iterator=self._stopwatch.iterator(slot),
                advise=self.advise,
                passes=self._passes,
            )
            if self.message is not None:
                print(f"\n{self.message}", flush=True)
        if not self.per_batch:
            report.hide_batches()
        self.reports.append(report)

    def _leave(self):
        self._stopwatch.disarm()
        self._stopwatch.listeners.discard(self)
        self._accounts, self._data = {}, None


def _nothing():
    return None
