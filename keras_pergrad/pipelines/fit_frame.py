"""What a callback is not told: the data that `fit` was given.

Keras hands callbacks neither the data nor the list they stand in. Both are
looked up in the frames of the running `fit` or `evaluate`, by names of
Keras's public interface: the argument `x` and the class `CallbackList`.
"""

import inspect

import keras


class RunningFit:
    """Attributes: `data` (None if unknown), `callbacks` (None if unknown)."""

    def __init__(self, data=None, callbacks=None):
        self.data = data
        self.callbacks = callbacks


def running_fit(model):
    """Finds the call of `fit` or `evaluate` that this runs in."""
    found = RunningFit()
    frame = inspect.currentframe()
    try:
        while frame is not None:
            owner = frame.f_locals.get("self")
            if found.callbacks is None and isinstance(
                owner, keras.callbacks.CallbackList
            ):
                found.callbacks = owner
            name = frame.f_code.co_name
            if owner is model and name in ("fit", "evaluate"):
                found.data = frame.f_locals.get("x")
                return found
            frame = frame.f_back
        return found
    finally:
        del frame
