"""The end of epochs, of which gradient modes are told, and of a `fit`."""

import contextlib

import keras

from keras_pergrad.keras_internals import progress_bar
from keras_pergrad.keras_internals.fit_end import undone_at_the_end
from keras_pergrad.keras_internals.running_fit import running_fit


@contextlib.contextmanager
def end_of_epochs(model, callbacks):
    """Yield the callbacks for `fit`, with one more as the first.

    What they have changed is undone at the end, also if `fit` raises.

    Args:
        model: the compiled `PerGradModel`.
        callbacks: as given to `fit`: None, a callback, several of them, or a
            `keras.callbacks.CallbackList`, which is restored afterwards.
    """
    end = _EndOfEpoch()
    with undone_at_the_end(model):
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            yield [end, *keras.tree.flatten(callbacks or [])]
            return
        end.set_model(model)
        callbacks.callbacks.insert(0, end)
        try:
            yield callbacks
        finally:
            callbacks.callbacks.remove(end)


class _EndOfEpoch(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        callbacks = running_fit(self.model).callbacks
        progress_bar.leave_out(callbacks, progress_bar.hidden_of_mode)

    def on_test_begin(self, logs=None):
        # Within fit: validation follows the last batch.
        self.model.gradient_mode.end_epoch(self.model)

    def on_epoch_end(self, epoch, logs=None):
        self.model.gradient_mode.end_epoch(self.model)
