"""The trackers of one `fit`, none of which can stop the training."""

import contextlib

from keras_pergrad.common.error_text import reason
from keras_pergrad.trackers.tracker import Tracker


def checked(trackers):
    """Return the trackers of an argument as a tuple."""
    if _is_tracker(trackers):
        return (trackers,)
    if not isinstance(trackers, (tuple, list)) or not all(
        map(_is_tracker, trackers)
    ):
        raise ValueError(
            "`trackers` expected trackers such as "
            "kpg.trackers.TensorBoard('logs'), objects with the methods "
            f"begin, write and end. Received: trackers={trackers!r}"
        )
    return tuple(trackers)


class Guarded:
    """Passes on what trackers are told, and says once why one fails."""

    def __init__(self, trackers, say):
        self._open, self._say = list(trackers), say

    def begin(self, run):
        """Begin a run in all of them."""
        self._each("begin", run)

    def write(self, reading):
        """Pass on a reading."""
        self._each("write", reading)

    def advise(self, advice):
        """Pass on what the `fit` advises."""
        self._each("advise", advice, optional=True)

    def close(self, interrupted=False):
        """End all of them; may be called again."""
        if interrupted:
            self._each("interrupt", optional=True)
        self._each("end")
        self._open = []

    def _each(self, method, *arguments, optional=False):
        for tracker in list(self._open):
            if optional and not isinstance(tracker, Tracker):
                continue  # of one's own, with the three methods
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:
                self._open.remove(tracker)
                self._say(
                    f"the tracker {type(tracker).__name__} failed in "
                    f"`{method}`, with {type(error).__name__}: "
                    f"{reason(error).rstrip('.')}. It gets no more readings "
                    "in this fit; training goes on."
                )
                with contextlib.suppress(Exception):
                    tracker.end()


def _is_tracker(thing):
    methods = ("begin", "write", "end")
    return not isinstance(thing, type) and all(
        callable(getattr(thing, name, None)) for name in methods
    )
