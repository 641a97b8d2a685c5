"""The progress bar of a `fit`, and the end of its epochs."""

import contextlib
import functools
import types

import keras

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.fit.callback_list import (
    Guest,
    at_end_of_fit,
    listed,
    running_fit,
    undone_at_the_end,
    with_first,
)

_HOOKS = "on_train_batch_end", "on_epoch_end", "on_test_end"


def leave_out(callback, callback_list, hidden):
    """Keep names out of the progress bar until the running `fit` ends.

    They stay in the logs, which other callbacks and the history get.
    `hidden(name, value)` tells which.
    """
    for bar in _bars(callback_list):
        told = _told_less(bar) or _ToldLess(bar)
        wish = types.SimpleNamespace(hidden=hidden, text=None)
        told.wishes[callback] = wish
        undo = functools.partial(told.forget, callback, wish)
        at_end_of_fit(callback.model, callback_list, undo)


def print_below(callback, callback_list, text):
    """Print a text once the bar has shown what the callback logs now."""
    callbacks, bars = listed(callback_list), _bars(callback_list)
    if bars and callback in callbacks[: callbacks.index(bars[0])]:
        _told_less(bars[0]).wishes[callback].text = text
    elif text:
        print(text, flush=True)


def hidden_of_mode(name, value):
    """Whether a figure that a gradient mode logs is left out."""
    if name.endswith("nonfinite_samples"):
        return not float(value)
    return name.endswith("gradient_variance")


def _bars(callback_list):
    kind = keras.callbacks.ProgbarLogger
    return [c for c in listed(callback_list) if isinstance(c, kind)]


def _told_less(bar):
    return getattr(bar.on_epoch_end, "told_less", None)


class _ToldLess:
    """The hooks of one bar, which leave out what callbacks wish."""

    def __init__(self, bar):
        self.wishes = {}
        self._hooks = contextlib.ExitStack()
        for name in _HOOKS:
            hook = self._hook(getattr(bar, name))
            self._hooks.enter_context(attribute(bar, name, hook))

    def forget(self, callback, wish):
        """End a wish; after the last one the bar is as it was."""
        if self.wishes.get(callback) is wish:
            del self.wishes[callback]
        if not self.wishes:
            self._hooks.close()

    def _hook(self, method):
        @functools.wraps(method)
        def hook(*given, **named):
            *number, logs = *given, *named.values()
            wishes = list(self.wishes.values())
            for wish in wishes if logs else ():
                items = logs.items()
                logs = {k: v for k, v in items if not wish.hidden(k, v)}
            method(*number, logs)
            for wish in wishes:
                if wish.text:
                    print(wish.text, flush=True)
                wish.text = None

        hook.told_less = self
        return hook


# The end of epochs, of which gradient modes are told, and of a `fit`.


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
        leave_out(self, siblings, hidden_of_mode)

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
