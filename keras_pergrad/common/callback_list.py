"""The callbacks of a running `fit`, and its end.

Keras calls callbacks in the order of their list, and each writes its figures
into the same logs. Nothing else in this package reads or changes the list:
Keras's `CallbackList`, which the user may have made and given to `fit`.
"""

import contextlib
import weakref
from typing import Any

import keras

_BATCH_BEGINS = "on_batch_begin", "on_train_batch_begin", "on_test_batch_begin"
#: Callbacks of Keras that read what others have written into the logs.
_READERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


class InternalCallback(keras.callbacks.Callback):
    """A callback that this package, not the user, puts into the list."""


class PreparesFit:
    """What the `fit` of a `PerGradModel` asks before it begins.

    Data, the aggregation of the mode, callbacks.
    """

    def prepare_fit(
        self, model: keras.Model, arguments: dict[str, Any]
    ) -> None:
        """Check and change the arguments of a `fit` before it begins.

        Args:
            model: the compiled model.
            arguments: the given arguments, name to value.
        """


def prepare_fit(model, arguments, *participants):
    """Have those of the participants in a `fit` prepare it that want to."""
    for participant in participants:
        if isinstance(participant, PreparesFit):
            participant.prepare_fit(model, arguments)


def as_callback_list(callbacks):
    """List the callbacks given to `fit`: none, one, several or Keras's list."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return keras.tree.flatten(callbacks or [])


def with_first(first, callbacks):
    """Return callbacks for `fit` of which a given one comes first."""
    in_order = [
        first,
        *(c for c in as_callback_list(callbacks) if c is not first),
    ]
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return in_order
    callbacks.callbacks[:] = in_order
    return callbacks


def _restore_order(callback_list, original):
    """Put a user's list back in its order; what the user has added stays."""
    positions = {id(callback): k for k, callback in enumerate(original)}
    current = callback_list.callbacks
    current.sort(
        key=lambda callback: positions.get(id(callback), len(positions))
    )
    current[:] = [
        c
        for c in current
        if c in original or not isinstance(c, InternalCallback)
    ]


class EndOfEpochs(InternalCallback):
    """A callback that tells the gradient mode when an epoch of `fit` ends."""

    def __init__(self, model):
        super().__init__()
        self.set_model(model)
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


def go_before_readers(callback, callback_list):
    """Move a callback before the first that would miss what it logs.

    Call it when training begins, while Keras goes through the list. It also
    removes what a failed `fit` has left in the list.
    """
    callbacks = [] if callback_list is None else callback_list.callbacks
    # In place: Keras is iterating over this list.
    callbacks[:] = [c for c in callbacks if type(c) not in _FOR_ONE_HOOK]
    if callback not in callbacks:
        return
    position = callbacks.index(callback)
    for index, other in enumerate(callbacks[:position]):
        if isinstance(other, _READERS):
            callbacks.insert(index, callbacks.pop(position))
            return


def is_last(callback, callback_list):
    """Whether no other callback acts after this one as a batch begins."""
    callbacks = as_callback_list(callback_list)
    if callback not in callbacks:
        return False
    later = callbacks[callbacks.index(callback) + 1 :]
    return not any(
        _overrides_hook(c, hook) for c in later for hook in _BATCH_BEGINS
    )


def _overrides_hook(callback, hook):
    # A hook that is set on the object itself has no `__func__`: it acts.
    function = getattr(getattr(callback, hook), "__func__", None)
    return function is not getattr(keras.callbacks.Callback, hook)


class CalledLast(InternalCallback):
    """A callback that calls a function after all others, as a batch begins.

    It is in the list for this one batch only.
    """

    def __init__(self, callback_list, function):
        super().__init__()
        self._callbacks, self._function = callback_list.callbacks, function

    def join(self):
        """Go to the end of the list; call it in a hook for the same batch."""
        if type(self._callbacks[-1]) is not CalledLast:
            self._callbacks.append(self)

    def on_train_batch_begin(self, batch, logs=None):
        self._callbacks.remove(self)
        self._function()

    on_test_batch_begin = on_train_batch_begin


def print_last(callback_list, text):
    """Print a text after all callbacks have acted, the progress bar, too.

    Call it in a hook for the end of an epoch or a test; without a list, or in
    another hook, the text is printed at once or at the next such end.
    """
    callbacks = [] if callback_list is None else callback_list.callbacks
    if not callbacks:
        print(text, flush=True)
    elif type(callbacks[-1]) is _PrintsLast:
        callbacks[-1].texts.append(text)
    else:
        # In place: Keras is iterating over this list, and comes to it last.
        callbacks.append(_PrintsLast(callbacks, text))


class _PrintsLast(InternalCallback):
    def __init__(self, callbacks, text):
        super().__init__()
        self._callbacks, self.texts = callbacks, [text]

    def on_epoch_end(self, epoch, logs=None):
        self._print()

    def on_test_end(self, logs=None):
        self._print()

    def _print(self):
        self._callbacks.remove(self)
        print("\n".join(self.texts), flush=True)


_FOR_ONE_HOOK = CalledLast, _PrintsLast


# A model in its `fit` → the stack of what is undone at the end of it.
_FIT_STACKS = weakref.WeakKeyDictionary()
# Keras's list of callbacks → what is undone when a hook of it raises.
_UNDO_ON_ERROR = weakref.WeakKeyDictionary()
_HOOKS = [
    f"on_{what}_{when}"
    for what in ("epoch", "train", "train_batch", "test", "test_batch")
    for when in ("begin", "end")
]


@contextlib.contextmanager
def restored_at_end(model, callbacks):
    """Undo what callbacks have changed when this `fit` of a model ends.

    And restore the order of a user's `CallbackList`.
    """
    # A `fit` may run inside of another, as in a user's callback.
    outer_stack = _FIT_STACKS.get(model)
    original = as_callback_list(callbacks)
    try:
        with contextlib.ExitStack() as stack:
            _FIT_STACKS[model] = stack
            yield
    finally:
        if outer_stack is None:
            _FIT_STACKS.pop(model, None)
        else:
            _FIT_STACKS[model] = outer_stack
        if isinstance(callbacks, keras.callbacks.CallbackList):
            _restore_order(callbacks, original)


def at_end_of_fit(model, callback_list, undo):
    """Have `undo()` called, perhaps again, when the running `fit` ends.

    Keras calls no hook of a callback when a `fit` fails or is interrupted. The
    `fit` of a `PerGradModel` undoes it all before it returns or raises. In that
    of another model it is undone when a callback raises, or else as soon as
    Keras's list of callbacks is freed; a traceback may hold that (an
    interactive session keeps the last one), so what is undone must not harm a
    later `fit`.
    """
    if model in _FIT_STACKS:
        _FIT_STACKS[model].callback(undo)
    elif callback_list is not None:
        weakref.finalize(callback_list, undo)
        if callback_list not in _UNDO_ON_ERROR:
            _UNDO_ON_ERROR[callback_list] = []
            for name in _HOOKS:
                setattr(callback_list, name, _undoing_hook(callback_list, name))
        _UNDO_ON_ERROR[callback_list].append(undo)


def _undoing_hook(callback_list, name):
    """Return a hook that, before it passes an error on, undoes all."""
    # A strong reference would keep the list from being freed in time.
    reference = weakref.ref(callback_list)

    def hook(*args, **kwargs):
        target = reference()
        try:
            return getattr(type(target), name)(target, *args, **kwargs)
        except BaseException:
            for undo in reversed(_UNDO_ON_ERROR.pop(target, ())):
                undo()
            raise

    return hook
