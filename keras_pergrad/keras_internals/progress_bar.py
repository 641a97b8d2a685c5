"""The few values in Keras's progress bar; the logs keep all."""

import functools

import keras


def leave_out(callbacks, hidden):
    """Keep names out of the progress bar of a running `fit`.

    They stay in the logs, which other callbacks and the history get.

    Args:
        callbacks: the `keras.callbacks.CallbackList` of the `fit`, or None.
        hidden: `hidden(name, value)` tells whether to leave it out.
    """
    for callback in getattr(callbacks, "callbacks", ()):
        if isinstance(callback, keras.callbacks.ProgbarLogger):
            for hook in ("on_train_batch_end", "on_epoch_end"):
                method = _filtered(getattr(callback, hook), hidden)
                setattr(callback, hook, method)


def hidden_of_mode(name, value):
    """Whether a figure that a gradient mode logs is left out."""
    if name.endswith("nonfinite_samples"):
        return not float(value)
    return name.endswith("gradient_variance")


def _filtered(method, hidden):
    @functools.wraps(method)
    def hook(number, logs=None):
        if logs:
            logs = {k: v for k, v in logs.items() if not hidden(k, v)}
        return method(number, logs)

    return hook
