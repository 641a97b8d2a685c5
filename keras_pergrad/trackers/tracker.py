"""The base class of trackers, and those of one `fit`."""

import contextlib
import math
from typing import Any

from keras_pergrad.common.arguments import NamedArguments
from keras_pergrad.common.text import reason
from keras_pergrad.runs.records import TRACKER_METHODS, is_tracker


class Tracker(NamedArguments):
    """Writes the readings of each `fit` to a service or a file of your choice.

    Pass trackers to `callbacks.GradientVariance(trackers=...)`, or a run of
    the past to one by `runs.export`. To write your own, override what you need
    of the methods; `numbers` names what a reading has. What a tracker
    raises is reported once: it gets no further readings; training continues.

    Example:

    >>> import keras_pergrad as kpg
    >>> class Printed(kpg.trackers.Tracker):
    ...     def write(self, reading):
    ...         for name, value in self.numbers(reading).items():
    ...             print(reading.step, name, value)
    """

    def begin(self, run: Any) -> None:
        """Begin a run: a `fit` is about to take its first step.

        Args:
            run: the `runs.RunInfo` of what is trained.
        """

    def write(self, reading: Any) -> None:
        """Write a measurement.

        Args:
            reading: a `runs.Reading`; its `step` counts the
                optimizer's updates, so a `fit` that resumes continues it.
        """

    def advise(self, advice: Any) -> None:
        """Take what a `fit` that ran to its end advises; `end` follows.

        Args:
            advice: a list of `callbacks.HealthAdvice`, which may be empty. It
                is not called where none can be given: without instruments,
                with `source="training"`, and in `runs.export`.
        """

    def interrupt(self) -> None:
        """Take note that `fit` was interrupted or failed; `end` follows."""

    def end(self) -> None:
        """Close what `begin` opened: `fit` ended, was interrupted, or failed.

        May be called again, and after a `begin` that raised.
        """

    def set_model(self, model: Any) -> None:
        """Refuse to be one of Keras's callbacks."""
        raise TypeError(
            f"{type(self).__name__} is a tracker and no callback of Keras. "
            "Expected it in GradientVariance(trackers=[...]), which is a "
            "callback. Received: it among those of fit()."
        )

    @staticmethod
    def numbers(reading: Any) -> dict[str, float]:
        """Return the numbers of a reading by name, without undefined ones.

        Args:
            reading: a `runs.Reading`.

        Returns:
            A dict of the figures by their names in the logs, and of those of
            variables by `"<instrument>/<path of the variable>"`.
        """
        numbers = dict(reading.figures)
        for instrument, values in reading.by_variable.items():
            for path, value in zip(reading.variable_names, values):
                numbers[f"{instrument}/{path}"] = value
        return {k: float(v) for k, v in numbers.items() if not math.isnan(v)}


def checked(trackers):
    """Return the trackers of an argument as a tuple."""
    if is_tracker(trackers):
        return (trackers,)
    if not isinstance(trackers, (tuple, list)) or not all(
        map(is_tracker, trackers)
    ):
        raise ValueError(
            "`trackers` expected trackers such as "
            "kpg.trackers.TensorBoard('logs'), objects with the methods "
            f"begin, write and end. Received: trackers={trackers!r}"
        )
    return tuple(trackers)


class GuardedTrackers:
    """Passes each call on to all trackers, and says once why one fails."""

    def __init__(self, trackers, report):
        self._active, self._report = list(trackers), report

    def close(self, interrupted=False):
        """End all of them; may be called again."""
        if interrupted:
            self.tell("interrupt")
        self.tell("end")
        self._active = []

    def tell(self, method, *arguments):
        """Call a method of each of them, of those that have it."""
        is_in_all = method in TRACKER_METHODS
        for tracker in list(self._active):
            if not (is_in_all or isinstance(tracker, Tracker)):
                continue  # of one's own
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:
                self._active.remove(tracker)
                self._report(
                    f"the tracker {type(tracker).__name__} failed in "
                    f"`{method}`, with {type(error).__name__}: "
                    f"{reason(error).rstrip('.')}. It gets no more readings "
                    "in this fit; training goes on."
                )
                with contextlib.suppress(Exception):
                    tracker.end()
