"""The refusal of weights that the loss reads outside every layer.

The gradient of such a weight is not a sum over the samples in the layers, so
no sample's part in it is known. Weight regularisers also read weights. They
belong to no sample and are added after aggregation.

Private names in use: `Variable._regularizer`.
"""

import contextlib

import tensorflow as tf

from keras_pergrad.keras_internals.patching import attribute


@contextlib.contextmanager
def watched(tape, variables):
    """Let `tape` see all reads of the variables except by regularisers."""
    with contextlib.ExitStack() as stack:
        for variable in variables:
            tape.watch(variable.value)
            if variable.regularizer is not None:
                muted = _muted(variable.regularizer, tape)
                stack.enter_context(attribute(variable, "_regularizer", muted))
        yield


def _muted(regularizer, tape):
    def function(value):
        with tape.stop_recording():
            return regularizer(tf.convert_to_tensor(value))

    return function


def error(variables, gradients):
    """Return the error for variables with such a gradient, or None."""
    names = [
        repr(v.path) for v, g in zip(variables, gradients) if g is not None
    ]
    if not names:
        return None
    return ValueError(
        f"The loss depends on {', '.join(names)} outside the forward pass, "
        "where no layer sees a sample's part in it: its per-sample gradient "
        "is not known. Use the weight in the `call` of a layer or of the "
        "model, put a penalty on weights into a `kernel_regularizer` (or "
        "`add_weight(regularizer=...)`), or compile with "
        "gradient_mode='batch'."
    )
