"""Callbacks that join Keras's list for the length of one hook.

They take places that the callback itself does not have: last while a batch
begins, and around the progress bar while an epoch ends.
"""

import keras

BATCH_BEGINS = "on_batch_begin", "on_train_batch_begin", "on_test_batch_begin"


class _Hook(keras.callbacks.Callback):
    """One of the callbacks here; `remove_hooks` finds them by this class."""


class StepTimerHook(_Hook):
    """Stands last while a batch begins: no other hook runs once armed.

    Then it leaves the list, which is the user's where `fit` was given one.
    """

    def __init__(self, callbacks, stopwatch, model):
        super().__init__()
        self._callbacks, self._stopwatch = callbacks, stopwatch
        self._watched = model

    def stand_last(self, slot):
        """Arm after all other callbacks; called while a batch begins."""
        callbacks = self._callbacks
        if type(callbacks[-1]) is not StepTimerHook:
            self._slot = slot
            callbacks.append(self)

    def on_train_batch_begin(self, batch, logs=None):
        self._callbacks.remove(self)
        self._stopwatch.arm(self._watched, self._slot)

    on_test_batch_begin = on_train_batch_begin


def acts_last(callbacks, callback):
    """Whether no callback acts after this one while a batch begins."""
    if callback not in callbacks:
        return False
    behind = callbacks[callbacks.index(callback) + 1 :]
    return not any(
        _acts(other, hook) for other in behind for hook in BATCH_BEGINS
    )


def _acts(callback, hook):
    # A hook that is set on the object is not a method.
    function = getattr(getattr(callback, hook), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, hook)


class _AtEnd(_Hook):
    """Calls a function with the logs when an epoch or `evaluate` ends."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def on_epoch_end(self, epoch, logs=None):
        self._function(logs)

    def on_test_end(self, logs=None):
        self._function(logs)


def around_bar(callback_list, callback, hidden, text):
    """Hide some names of the logs from the bar alone; print a text after it.

    Called by `callback` while an epoch or `evaluate` ends.
    """
    callbacks = [] if callback_list is None else callback_list.callbacks
    bars = [
        at
        for at, other in enumerate(callbacks)
        if isinstance(other, keras.callbacks.ProgbarLogger)
    ]
    if not bars or callback not in callbacks[: bars[0]]:
        if text:
            print(text, flush=True)
        return
    taken = {}

    def hide(logs):
        for name in hidden:
            if logs and name in logs:
                taken[name] = logs.pop(name)

    def show(logs):
        if logs is not None:
            logs.update(taken)
        if text:
            print(text, flush=True)

    # Keras iterates over the list: earlier entries must keep their places.
    callbacks.insert(bars[0] + 1, _AtEnd(show))
    callbacks.insert(bars[0], _AtEnd(hide))
    callbacks.append(_AtEnd(lambda logs: remove_hooks(callback_list)))


def remove_hooks(callback_list):
    """Remove all hooks, including those that an error left behind."""
    callbacks = callback_list.callbacks
    callbacks[:] = [c for c in callbacks if not isinstance(c, _Hook)]
