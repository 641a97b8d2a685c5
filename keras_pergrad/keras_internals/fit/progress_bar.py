"""The progress bar of a `fit`, and the end of its epochs."""

import contextlib
import functools
import types

import keras

from keras_pergrad.common.callback_list import (
    InternalCallback,
    as_callback_list,
    at_end_of_fit,
    running_fit,
    undo_at_end,
    with_first,
)
from keras_pergrad.common.patching import patched_attribute

_HOOKS = "on_train_batch_end", "on_epoch_end", "on_test_end"


def leave_out(callback, callback_list, hidden):
    """Keep names out of the progress bar until the running `fit` ends.

    They stay in the logs for other callbacks and the history.
    `hidden(name, value)` tells which names these are.
    """
    for bar in _bars(callback_list):
        bar_filter = _filter_of(bar) or _FilteredBar(bar)
        request = types.SimpleNamespace(hidden=hidden, text=None)
        bar_filter.requests[callback] = request
        undo = functools.partial(bar_filter.forget, callback, request)
        at_end_of_fit(callback.model, callback_list, undo)


def print_below(callback, callback_list, text):
    """Print a text once the bar has shown what the callback logs now."""
    # If the callback comes before the bar, the bar's hook prints the text. If
    # it comes after, the bar is on the screen already.
    callbacks, bars = as_callback_list(callback_list), _bars(callback_list)
    if bars and callback in callbacks[: callbacks.index(bars[0])]:
        _filter_of(bars[0]).requests[callback].text = text
    elif text:
        print(text, flush=True)


def is_hidden_figure(name, value):
    """Whether the bar leaves out a figure that a gradient mode logs."""
    if name.endswith("nonfinite_samples"):
        return not float(value)
    return name.endswith("gradient_variance")


def _bars(callback_list):
    logger_class = keras.callbacks.ProgbarLogger
    return [
        c
        for c in as_callback_list(callback_list)
        if isinstance(c, logger_class)
    ]


def _filter_of(bar):
    return getattr(bar.on_epoch_end, "told_less", None)


class _FilteredBar:
    """The hooks of one bar, which leave out what callbacks ask for."""

    def __init__(self, bar):
        self.requests = {}
        self._hooks = contextlib.ExitStack()
        for name in _HOOKS:
            hook = self._hook(getattr(bar, name))
            self._hooks.enter_context(patched_attribute(bar, name, hook))

    def forget(self, callback, request):
        """Drop a request; after the last one restore the bar."""
        if self.requests.get(callback) is request:
            del self.requests[callback]
        if not self.requests:
            self._hooks.close()

    def _hook(self, method):
        @functools.wraps(method)
        def hook(*args, **kwargs):
            *leading, logs = *args, *kwargs.values()
            requests = list(self.requests.values())
            for request in requests if logs else ():
                items = logs.items()
                logs = {k: v for k, v in items if not request.hidden(k, v)}
            method(*leading, logs)
            for request in requests:
                if request.text:
                    print(request.text, flush=True)
                request.text = None

        hook.told_less = self
        return hook


# A callback that tells the gradient mode when an epoch ends.


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

    def on_train_begin(self, logs=None):
        siblings = running_fit(self.model).callback_list
        leave_out(self, siblings, is_hidden_figure)

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
