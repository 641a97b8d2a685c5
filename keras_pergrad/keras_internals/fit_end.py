"""The end of a `fit`, however it ends, and what is undone then.

Keras calls no hook of a callback when a `fit` fails or is interrupted. The
`fit` of a `PerGradModel` undoes it all before it returns or raises. In that of
another model it is undone as soon as Keras's list of callbacks is freed; a
traceback may hold that, so what is undone must not harm a later `fit`.
"""

import contextlib
import weakref

_OPEN = weakref.WeakKeyDictionary()


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
