"""The advice on one `fit`, which cannot stop its training."""

from keras_pergrad.analysis.health.advice import advise
from keras_pergrad.analysis.health.fit_recorder import FitRecorder
from keras_pergrad.common.error_text import reason
from keras_pergrad.keras_internals.running_fit import running_fit


class GradientAdvice:
    """Notes what advice needs during a `fit`, and gives it."""

    def __init__(self, watch, batch, say):
        self._say, self._recorder = say, None
        if watch.model.optimizer is None:
            return
        size = running_fit(watch.model).batch_size
        self._recorder = self._attempt(
            lambda: FitRecorder(watch.model, batch, size)
        )

    def note(self, loss):
        """Note the probe's loss at a reading."""
        if self._recorder is not None:
            self._recorder.reading(loss)

    def given(self, readings):
        """Return what the readings advise."""
        if self._recorder is None:
            return []
        record = self._recorder.record
        return self._attempt(lambda: advise(readings, record())) or []

    def _attempt(self, function):
        try:
            return function()
        except Exception as error:  # whatever a model may say to a call
            self._say(f"no advice, since {reason(error).rstrip('.')}.")
            return None
