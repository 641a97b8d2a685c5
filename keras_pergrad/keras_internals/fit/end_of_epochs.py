"""A callback that tells the gradient mode when an epoch of `fit` ends."""

import contextlib

from keras_pergrad.common.callback_list import (
    InternalCallback,
    undo_at_end,
    with_first,
)


@contextlib.contextmanager
def end_of_epochs(model, callbacks):
    """Yield the callbacks for `fit`, with one that ends the mode's epochs.

    It is the first. What callbacks have changed is undone at the end, also if
    `fit` raises.
    """
    end = _EndOfEpoch()
    end.set_model(model)
    with undo_at_end(model):
        yield with_first(end, callbacks)


class _EndOfEpoch(InternalCallback):
    def __init__(self):
        super().__init__()
        self._changed_logs = {}

    def on_test_begin(self, logs=None):
        # Within fit: validation follows the last batch.
        self._end_epoch()

    def on_epoch_end(self, epoch, logs=None):
        self._end_epoch()
        logs = {} if logs is None else logs
        logs.update({k: v for k, v in self._changed_logs.items() if k in logs})
        self._changed_logs = {}

    def _end_epoch(self):
        changed = self.model.gradient_mode.end_epoch(self.model) or {}
        # As floats, before validation resets the variables behind them.
        self._changed_logs.update({k: float(v) for k, v in changed.items()})
