"""A model that computes in another float format for a while.

No copy is made: a copy needs a `get_config` that many models lack. The layers
and losses get another format, and a scope gives them their values.

Private names in use: `Layer._dtype_policy`, `Loss._dtype`,
`CompileLoss._flat_losses`, `KerasTensor._dtype`, `Functional._inputs`.
"""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_parts import compiled_loss, layers_of


@contextlib.contextmanager
def computing_in(model, dtype):
    """Make a model with a built loss compute in `dtype`; None: as it is."""
    if dtype is None:
        yield
        return
    floatx = keras.config.floatx()
    policy = keras.DTypePolicy(dtype)
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            stack.enter_context(attribute(layer, "_dtype_policy", policy))
            # A functional model casts to the formats of its symbolic inputs.
            for tensor in getattr(layer, "_inputs", None) or ():
                if tensor.dtype.startswith(("float", "bfloat")):
                    stack.enter_context(attribute(tensor, "_dtype", dtype))
        for loss in _losses(compiled_loss(model)):
            if hasattr(loss, "_dtype"):
                stack.enter_context(attribute(loss, "_dtype", dtype))
        stack.callback(keras.config.set_floatx, floatx)
        keras.config.set_floatx(dtype)
        yield


def _losses(compiled):
    if compiled is None:
        return []
    return [compiled, *(known.loss for known in compiled._flat_losses or ())]


def cast(structure, dtype):
    """Cast the floating-point tensors of a structure; None leaves them."""
    return tf.nest.map_structure(
        lambda t: (
            tf.cast(t, dtype)
            if dtype and tf.is_tensor(t) and t.dtype.is_floating
            else t
        ),
        structure,
    )
