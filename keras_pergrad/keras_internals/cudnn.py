"""Recurrent layers that Keras hands to cuDNN where there is a GPU.

With a mask, cuDNN and Keras's own loop differ. At masked steps the loop repeats
the last output, or gives zeros where the layer has `zero_output_for_mask`; by
cuDNN Keras gives zeros in sequences and the last state at their ends, whatever
the layer asks for. And cuDNN takes right-padded sequences alone, which only an
assertion checks: op by op, Keras catches it and runs the loop for the whole
batch, so that a sample's outputs depend on the masks of the others. So masked
layers run their loop, here and on every device.

Private name in use: `keras.src.backend.tensorflow.rnn.cudnn_ok`.
"""

import contextlib
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.rnn import cudnn_ok

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_parts import layers_of


@contextlib.contextmanager
def loops_instead(layers):
    """Let layers run their loops where Keras would call cuDNN.

    cuDNN's op takes the samples of all steps at once and says nothing of how
    it keeps them apart.
    """
    with contextlib.ExitStack() as stack:
        for layer in filter(_takes_cudnn, layers):
            stack.enter_context(attribute(layer, "use_cudnn", False))
        yield


class LoopsWhereMasked:
    """A base of models whose layers run their loop where there is a mask."""

    def __call__(self, *args, **kwargs):
        model: Any = self
        following: Any = super()
        with contextlib.ExitStack() as stack:
            for layer in filter(_takes_cudnn, layers_of(model)):
                loop = attribute(layer, "inner_loop", _by_mask(layer))
                stack.enter_context(loop)
            return following.__call__(*args, **kwargs)


def _by_mask(layer):
    """Return a layer's `inner_loop` that leaves cuDNN out with a mask."""
    original = layer.inner_loop

    def inner_loop(sequences, initial_state, mask, training=False):
        masked = any(m is not None for m in tf.nest.flatten(mask))
        with loops_instead([layer]) if masked else contextlib.nullcontext():
            return original(sequences, initial_state, mask, training=training)

    return inner_loop


def _takes_cudnn(layer):
    if not isinstance(layer, (keras.layers.LSTM, keras.layers.GRU)):
        return False
    if layer.use_cudnn not in ("auto", True) or layer.recurrent_dropout:
        return False
    arguments = {
        "activation": layer.activation,
        "recurrent_activation": layer.recurrent_activation,
        "unroll": layer.unroll,
        "use_bias": layer.use_bias,
    }
    if isinstance(layer, keras.layers.GRU):
        arguments["reset_after"] = layer.reset_after
    return cudnn_ok(**arguments)
