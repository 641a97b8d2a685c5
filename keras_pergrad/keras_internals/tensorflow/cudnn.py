"""Recurrent layers, by cuDNN where their masks allow it.

With a mask, cuDNN and Keras's own loop differ. At masked steps the loop
repeats the last output, or gives zeros where the layer has
`zero_output_for_mask`; by cuDNN Keras gives zeros in sequences and the last
state at their ends, whatever the layer asks for. And cuDNN takes right-padded
sequences alone, which only an assertion checks: op by op, Keras catches it and
runs the loop for the whole batch, so that a sample's outputs depend on the
masks of the others. So masked layers run their loop, here and on every device.

In a rule that projects the inputs of LSTM and GRU, Keras's own functions call
the op: they know in which order cuDNN has the gates, weights and biases.

Private names in use: `keras.src.backend.tensorflow.rnn.cudnn_ok`,
`keras.src.backend.tensorflow.rnn.gru`, `keras.src.backend.tensorflow.rnn.lstm`.
"""

import contextlib
import functools
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.rnn import cudnn_ok, gru, lstm

from keras_pergrad.keras_internals.models.parts import (
    RECURRENT,
    patched_attributes,
)
from keras_pergrad.keras_internals.tensorflow.devices import (
    current_device,
    has_cuda_card,
)
from keras_pergrad.keras_internals.tensorflow.settings import in_xla


def loops_instead(layers):
    """Let layers run their loops where Keras would call cuDNN.

    cuDNN's op takes the samples of all steps at once and says nothing of how
    it keeps them separate.
    """
    return patched_attributes(
        [(layer, "use_cudnn", False) for layer in filter(_uses_cudnn, layers)]
    )


def loops_where_masked(layers):
    """Let layers run their loops where there is a mask."""
    # In a traced step a rule serves a layer, with its masks.
    return patched_attributes(
        [
            (layer, "inner_loop", _mask_aware_loop(layer))
            for layer in filter(_uses_cudnn, layers)
            if not hasattr(layer.call, "rule")
        ]
    )


def _mask_aware_loop(layer):
    """Return a layer's `inner_loop` that leaves cuDNN out with a mask."""
    original = layer.inner_loop

    def inner_loop(sequences, initial_state, mask, training=False):
        is_masked = any(m is not None for m in tf.nest.flatten(mask))
        with loops_instead([layer]) if is_masked else contextlib.nullcontext():
            return original(sequences, initial_state, mask, training=training)

    return inner_loop


def _uses_cudnn(layer):
    if not isinstance(layer, RECURRENT):
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


def runs_on_cudnn(layer):
    """Whether cuDNN can run the steps of a layer in the graph being traced.

    Not where Keras would not call it, under XLA, on a CPU, or on the card of
    a plugin, which may have another op under the same name.
    """
    if not _uses_cudnn(layer) or in_xla() or "CPU" in current_device().upper():
        return False
    return has_cuda_card()


def cudnn_steps(cell, z, states, *, recurrent_kernel, state_bias, lengths=None):
    """Return h after each step, (n, t, u), and the last states.

    The input kernel is the identity, so that the gradient of z is that of the
    gates before their activations. Weights get no gradient.

    Args:
        cell: an `LSTMCell`, or a `GRUCell` that has `reset_after`.
        z: x·kernel + bias of all gates, (n, t, gates), ordered as Keras does.
        states: h, (n, u), and c for an LSTM.
        recurrent_kernel: (u, gates).
        state_bias: what a GRU adds to h·recurrent kernel, (gates,).
        lengths: (n,), at least 1: how many steps of each sample count, which
            must be its first ones. None: all.
    """
    mask = None
    if lengths is not None:
        mask = tf.sequence_mask(lengths, tf.shape(z)[1])
    function, options = lstm, {}
    bias = tf.zeros([z.shape[-1]], z.dtype)
    if isinstance(cell, keras.layers.GRUCell):
        function, options = gru, {"reset_after": cell.reset_after}
        bias = tf.stack([bias, state_bias])
    weights = {
        "kernel": tf.eye(z.shape[-1], dtype=z.dtype),
        "recurrent_kernel": tf.stop_gradient(recurrent_kernel),
        "bias": tf.stop_gradient(bias),
    }
    call: Any = functools.partial(function, **weights, **options)
    _, hidden, *last = call(
        z,
        *states,
        mask,
        activation=cell.activation,
        recurrent_activation=cell.recurrent_activation,
        return_sequences=True,
    )
    return hidden, tf.nest.flatten(last)
