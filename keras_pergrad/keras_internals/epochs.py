"""The end of epochs, of which gradient modes are told, and of a `fit`."""

import contextlib

from keras_pergrad.keras_internals import progress_bar
from keras_pergrad.keras_internals.callback_list import Guest, with_first
from keras_pergrad.keras_internals.fit_end import undone_at_the_end
from keras_pergrad.keras_internals.running_fit import running_fit


@contextlib.contextmanager
def end_of_epochs(model, callbacks):
    """Yield the callbacks for `fit`, with one more as the first.

    What they have changed is undone at the end, also if `fit` raises.
    """
    end = _EndOfEpoch()
    end.set_model(model)
    with undone_at_the_end(model):
        yield with_first(end, callbacks)


class _EndOfEpoch(Guest):
    def __init__(self):
        super().__init__()
        self._changed = {}

    def on_train_begin(self, logs=None):
        siblings = running_fit(self.model).callback_list
        progress_bar.leave_out(self, siblings, progress_bar.hidden_of_mode)

    def on_test_begin(self, logs=None):
        # Within fit: validation follows the last batch.
        self._end()

    def on_epoch_end(self, epoch, logs=None):
        self._end()
        logs = {} if logs is None else logs
        logs.update({k: v for k, v in self._changed.items() if k in logs})
        self._changed = {}

    def _end(self):
        changed = self.model.gradient_mode.end_epoch(self.model) or {}
        # Before validation resets them.
        self._changed.update({k: float(v) for k, v in changed.items()})
