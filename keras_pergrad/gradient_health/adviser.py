"""The advice of one `fit`: what it notes, and what it says at the end."""

from keras_pergrad.common.running_fit import running_fit
from keras_pergrad.common.text import reason
from keras_pergrad.gradient_health.advice import advise
from keras_pergrad.gradient_health.fit_record import FitRecorder


class Adviser:
    """Notes what advice needs during a `fit`, and gives it.

    What fails in a model is said once; then there is no advice.

    Args:
        model: the model.
        batch: the probe, (x, y, sample_weight).
        say: prints a message.
    """

    def __init__(self, model, batch, say):
        self._say, self._recorder = say, None
        if model.optimizer is not None:
            self._recorder = self._attempt(
                lambda: FitRecorder(model, batch, running_fit(model).batch_size)
            )

    def record_reading(self, reading):
        """Note what a reading says of the loss."""
        if self._recorder is not None:
            self._recorder.record_reading(reading.loss)

    def advise(self, readings):
        """Return the advice on a `fit` with these readings."""
        if self._recorder is None:
            return []
        recorder = self._recorder
        return self._attempt(lambda: advise(readings, recorder.record)) or []

    def _attempt(self, function):
        try:
            return function()
        except Exception as error:  # whatever a model may say to a call
            self._say(f"no advice, since {reason(error).rstrip('.')}.")
            return None
