"""A model that computes in another float format for a while.

No copy is made: a copy needs a `get_config` that many models lack. The layers
and losses get another format, and a scope gives them their values.
"""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.compiled_losses import losses_computing_in
from keras_pergrad.keras_internals.layer_parts import layer_computing_in
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
            stack.enter_context(layer_computing_in(layer, policy))
        stack.enter_context(losses_computing_in(compiled_loss(model), dtype))
        stack.callback(keras.config.set_floatx, floatx)
        keras.config.set_floatx(dtype)
        yield


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
