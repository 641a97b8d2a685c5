"""The order of callbacks that write into the logs and those that read them."""

import keras

_READERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def go_before_readers(callback, callback_list):
    """Move a callback before the first that would miss what it logs.

    Keras calls callbacks in the order of their list, and each writes its
    figures into the same logs. This may be called during such a loop.

    Args:
        callback: the callback that writes into the logs.
        callback_list: Keras's `CallbackList` of the running `fit`, or None.
    """
    callbacks = [] if callback_list is None else callback_list.callbacks
    if callback not in callbacks:
        return
    here = callbacks.index(callback)
    for place, other in enumerate(callbacks[:here]):
        if isinstance(other, _READERS):
            callbacks.insert(place, callbacks.pop(here))
            return
