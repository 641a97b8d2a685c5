"""The end of a `fit`, however it ends, and what is undone then.

Keras calls no hook of a callback when a `fit` fails or is interrupted. The
`fit` of a `PerGradModel` undoes it all before it returns or raises. In that of
another model it is undone when a callback raises, or else as soon as Keras's
list of callbacks is freed; a traceback may hold that (an interactive session
keeps the last one), so what is undone must not harm a later `fit`.
"""

import contextlib
import weakref

_OPEN = weakref.WeakKeyDictionary()
# Keras's list of callbacks → what is undone when a hook of it raises.
_UNDONE = weakref.WeakKeyDictionary()
_HOOKS = [
    f"on_{what}_{when}"
    for what in ("epoch", "train", "train_batch", "test", "test_batch")
    for when in ("begin", "end")
]


@contextlib.contextmanager
def undone_at_the_end(model):
    """Undo inside of a `fit` of the model what `at_end_of_fit` was given."""
    around = _OPEN.get(model)
    try:
        with contextlib.ExitStack() as stack:
            _OPEN[model] = stack
            yield
    finally:
        if around is None:
            _OPEN.pop(model, None)
        else:
            _OPEN[model] = around


def at_end_of_fit(model, callback_list, undo):
    """Have `undo()` called, perhaps again, when the running `fit` ends."""
    if model in _OPEN:
        _OPEN[model].callback(undo)
    elif callback_list is not None:
        weakref.finalize(callback_list, undo)
        if callback_list not in _UNDONE:
            _UNDONE[callback_list] = []
            for name in _HOOKS:
                setattr(callback_list, name, _watched(callback_list, name))
        _UNDONE[callback_list].append(undo)


def _watched(callback_list, name):
    """Return a hook of a list that undoes all before an error leaves it."""
    # A strong reference would keep the list from being freed in time.
    reference = weakref.ref(callback_list)

    def hook(*args, **kwargs):
        owner = reference()
        try:
            return getattr(type(owner), name)(owner, *args, **kwargs)
        except BaseException:
            for undo in reversed(_UNDONE.pop(owner, ())):
                undo()
            raise

    return hook
