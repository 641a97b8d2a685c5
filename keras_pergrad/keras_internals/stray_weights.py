"""The refusal of weights that the loss reads outside every layer.

The gradient of such a weight is not a sum over the samples in the layers, so
no sample's part in it is known. Weight regularisers also read weights. They
belong to no sample and are added after aggregation.
"""

import contextlib

from keras_pergrad.keras_internals.penalties import without_gradients


@contextlib.contextmanager
def watched(tape, variables):
    """Let `tape` see all reads of the variables except by regularisers."""
    tape.watch([v.value for v in variables])
    with without_gradients(variables):
        yield


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
        "gradient_mode='vectorized' or 'batch'."
    )
