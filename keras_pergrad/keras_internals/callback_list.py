"""The list of callbacks of a `fit`, and the places in it.

Keras calls callbacks in the order of their list, and each writes its figures
into the same logs. Nothing else in this package reads or changes the list:
Keras's `CallbackList`, which the user may have made and given to `fit`.
"""

import contextlib

import keras

_BATCH_BEGINS = "on_batch_begin", "on_train_batch_begin", "on_test_batch_begin"
#: They read what others have written into the logs.
_READERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


class Guest(keras.callbacks.Callback):
    """A callback of this package that the user has not put into the list."""


class PreparesFit(keras.callbacks.Callback):
    """A callback that the `fit` of a `PerGradModel` asks before it begins."""

    def prepare_fit(self, model, arguments):
        """Check the arguments of `fit`, a dict by name, and change them."""


def prepare_fit(model, arguments):
    """Have the callbacks that are given to a `fit` prepare it."""
    for callback in listed(arguments.get("callbacks")):
        if isinstance(callback, PreparesFit):
            callback.prepare_fit(model, arguments)


def listed(callbacks):
    """List what `fit` was given: None, a callback, several, or Keras's list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return keras.tree.flatten(callbacks or [])


def with_first(first, callbacks):
    """Return what to give to `fit`, so that a callback comes first."""
    in_order = [first, *(c for c in listed(callbacks) if c is not first)]
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return in_order
    callbacks.callbacks[:] = in_order
    return callbacks


@contextlib.contextmanager
def restored(callbacks):
    """Put the callbacks of a list of the user's back in order at the end."""
    before = listed(callbacks)
    place = {id(callback): k for k, callback in enumerate(before)}
    try:
        yield
    finally:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            now = callbacks.callbacks
            now.sort(key=lambda callback: place.get(id(callback), len(place)))
            # What the user has added stays.
            now[:] = [c for c in now if c in before or not isinstance(c, Guest)]


def go_before_readers(callback, callback_list):
    """Move a callback before the first that would miss what it logs.

    Called when training begins, while Keras goes through the list. What a
    `fit` that failed has left in the list is removed.
    """
    callbacks = [] if callback_list is None else callback_list.callbacks
    callbacks[:] = [c for c in callbacks if type(c) is not CalledLast]
    if callback not in callbacks:
        return
    here = callbacks.index(callback)
    for place, other in enumerate(callbacks[:here]):
        if isinstance(other, _READERS):
            callbacks.insert(place, callbacks.pop(here))
            return


def is_last(callback, callback_list):
    """Whether no other callback acts after this one as a batch begins."""
    callbacks = listed(callback_list)
    if callback not in callbacks:
        return False
    behind = callbacks[callbacks.index(callback) + 1 :]
    return not any(_acts(c, hook) for c in behind for hook in _BATCH_BEGINS)


def _acts(callback, hook):
    # A hook that is set on the object is not a method.
    function = getattr(getattr(callback, hook), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, hook)


class CalledLast(Guest):
    """Calls a function when all others have been told that a batch begins.

    It stands in the list only that long.
    """

    def __init__(self, callback_list, function):
        super().__init__()
        self._callbacks, self._function = callback_list.callbacks, function

    def join(self):
        """Stand last; called by a callback that is told of the batch."""
        if type(self._callbacks[-1]) is not CalledLast:
            self._callbacks.append(self)

    def on_train_batch_begin(self, batch, logs=None):
        self._callbacks.remove(self)
        self._function()

    on_test_batch_begin = on_train_batch_begin
