"""Recurrent layers that Keras hands to cuDNN where there is a GPU.

Private name in use: `keras.src.backend.tensorflow.rnn.cudnn_ok`.
"""

import contextlib

import keras
from keras.src.backend.tensorflow.rnn import cudnn_ok

from keras_pergrad.common.patching import attribute


@contextlib.contextmanager
def loop_instead(layer):
    """Let a layer run its loop where Keras would call cuDNN.

    cuDNN's op takes the samples of all steps at once and says nothing of how
    it keeps them apart. With a mask its sequences end in zeros, as those of
    the loop do here.
    """
    with contextlib.ExitStack() as stack:
        if _takes_cudnn(layer):
            stack.enter_context(attribute(layer, "use_cudnn", False))
            if layer.return_sequences:
                zeros = attribute(layer, "zero_output_for_mask", True)
                stack.enter_context(zeros)
        yield


def _takes_cudnn(layer):
    known = keras.layers.LSTM.inner_loop, keras.layers.GRU.inner_loop
    if getattr(type(layer), "inner_loop", None) not in known:
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
