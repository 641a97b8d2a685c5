"""The call of `fit` or `evaluate` around a callback."""

import inspect

import keras

# Keras's default batch size for arrays.
_BATCH_SIZE = 32


class RunningFit:
    """A call of `fit` or `evaluate`; its attributes are None if unknown.

    Attributes:
        data: what it was given as `x`.
        callback_list: Keras's list of its callbacks.
        batch_size: that of its arrays.
    """

    data = callback_list = batch_size = None


def running_fit(model):
    """Find the call of `fit` or `evaluate` around this code.

    Keras gives callbacks neither the data nor the list that holds them, and
    nothing that it gives them (`model`, `params`) leads there: only the `fit`
    of a model of this package could note them, but a callback serves any
    model. So both are looked up in the frames of the running call, by names of
    Keras's public interface: the arguments `x` and `batch_size`, and the class
    `CallbackList`.
    """
    running = RunningFit()
    frame = inspect.currentframe()
    try:
        while frame is not None:
            owner = frame.f_locals.get("self")
            if running.callback_list is None and isinstance(
                owner, keras.callbacks.CallbackList
            ):
                running.callback_list = owner
            name = frame.f_code.co_name
            if owner is model and name in ("fit", "evaluate"):
                running.data = frame.f_locals.get("x")
                running.batch_size = frame.f_locals.get("batch_size")
                if running.batch_size is None and _has_only_arrays(
                    running.data
                ):
                    running.batch_size = _BATCH_SIZE
                break
            frame = frame.f_back
        return running
    finally:
        del frame  # it would keep all locals of the frames alive


def _has_only_arrays(data):
    parts = keras.tree.flatten(data)
    return bool(parts) and all(hasattr(part, "__array__") for part in parts)
