"""Makes the next call of a train function a timed one, at the last moment."""

import keras


class Armer(keras.callbacks.Callback):
    """Stands last while a batch begins: no other hook runs once armed.

    Then it leaves the list, which is the user's where `fit` was given one.
    """

    def __init__(self, callbacks, stopwatch, model, slot):
        super().__init__()
        self._arguments = callbacks, stopwatch, model, slot

    def on_train_batch_begin(self, batch, logs=None):
        callbacks, stopwatch, model, slot = self._arguments
        callbacks.remove(self)
        stopwatch.arm(model, slot)

    on_test_batch_begin = on_train_batch_begin


def arm_last(callback_list, stopwatch, model, slot):
    """Arms behind all other callbacks; called while a batch begins."""
    callbacks = callback_list.callbacks
    if type(callbacks[-1]) is not Armer:
        callbacks.append(Armer(callbacks, stopwatch, model, slot))


def remove_armers(callback_list):
    """Removes what an error in another callback has left behind."""
    callbacks = callback_list.callbacks
    callbacks[:] = [c for c in callbacks if type(c) is not Armer]
