"""The kernels that oneDNN and cuDNN give to layers.

On the CPU some builds of TensorFlow compute a product of shapes [b, 1, t, k]
and [k, n] wrong or corrupt the heap (tensorflow#117700), which crashes this
process. So the traced step is searched for this shape, and such a product is
tried in a separate process.

Private names in use: `FuncGraph._functions`;
`keras.src.backend.tensorflow.rnn.cudnn_ok`,
`keras.src.backend.tensorflow.rnn.gru`, `keras.src.backend.tensorflow.rnn.lstm`.
"""

import contextlib
import functools
import os
import subprocess
import sys
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.rnn import cudnn_ok, gru, lstm

from keras_pergrad.common.patching import patched_attribute
from keras_pergrad.keras_internals.models.parts import layers_of
from keras_pergrad.keras_internals.tensorflow.settings import (
    current_device,
    has_cuda_card,
    in_xla,
)

_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def defect(graph):
    """Describe the error that a traced step would cause on the CPU, or None."""
    for op in _all_operations(graph):
        shape = _product_shape(op)
        if shape is not None:
            error = _harm(*shape)
            if error:
                b, t, k, n = shape
                return (
                    f"a product of shapes [{b}, 1, {t}, {k}] and [{k}, {n}] "
                    f"({op.name}) {error}: a defect of oneDNN in TensorFlow. "
                    "It was tried apart and is not run here. Set "
                    "TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is imported, "
                    "or leave out the axis of size 1"
                )
    return None


def _all_operations(graph):
    yield from graph.get_operations()
    for function in graph._functions.values():
        inner = getattr(function, "graph", None)
        if inner is not None:
            yield from _all_operations(inner)


def _product_shape(op):
    """Return (b, t, k, n) of an affected product, or None for other ops."""
    if op.type not in _PRODUCTS or op.inputs[0].dtype.size > 4:
        return None
    left, right = (tensor.shape for tensor in op.inputs)
    if (left.rank, right.rank) != (4, 2) or left[1] != 1:
        return None
    t, k = (left[3], left[2]) if op.get_attr("adj_x") else (left[2], left[3])
    n = right[0] if op.get_attr("adj_y") else right[1]
    # An axis of unknown size has the samples, or the like: 8 stands for it.
    return tuple(8 if d is None else int(d) for d in (left[0], t, k, n))


@functools.cache
def _harm(*shape):
    """Return what such a product does wrong here, or "" if nothing."""
    # In another process, since it may crash; once for each shape.
    process = subprocess.run(
        [sys.executable, "-m", "keras_pergrad.doctor.probe", "matmul"]
        + [str(size) for size in shape],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    if process.returncode == 0 and process.stdout.strip().endswith("right"):
        return ""
    if "wrong" in process.stdout:
        return "gives wrong numbers"
    return "crashes the process"


# Recurrent layers that Keras hands to cuDNN where there is a GPU.
#
# With a mask, cuDNN and Keras's own loop differ. At masked steps the loop
# repeats the last output, or gives zeros where the layer has
# `zero_output_for_mask`; by cuDNN Keras gives zeros in sequences and the last
# state at their ends, whatever the layer asks for. And cuDNN takes
# right-padded sequences alone, which only an assertion checks: op by op,
# Keras catches it and runs the loop for the whole batch, so that a sample's
# outputs depend on the masks of the others. So masked layers run their loop,
# here and on every device.


@contextlib.contextmanager
def loops_instead(layers):
    """Let layers run their loops where Keras would call cuDNN.

    cuDNN's op takes the samples of all steps at once and says nothing of how
    it keeps them apart.
    """
    with contextlib.ExitStack() as stack:
        for layer in filter(_uses_cudnn, layers):
            stack.enter_context(patched_attribute(layer, "use_cudnn", False))
        yield


class LoopsWhereMasked:
    """A base of models whose layers run their loop where there is a mask."""

    def __call__(self, *args, **kwargs):
        model: Any = self
        following: Any = super()
        with contextlib.ExitStack() as stack:
            for layer in filter(_uses_cudnn, layers_of(model)):
                if hasattr(layer.call, "rule"):
                    # In a traced step a rule serves it, with its masks.
                    continue
                patch = patched_attribute(
                    layer, "inner_loop", _mask_aware_loop(layer)
                )
                stack.enter_context(patch)
            return following.__call__(*args, **kwargs)


def _mask_aware_loop(layer):
    """Return a layer's `inner_loop` that leaves cuDNN out with a mask."""
    original = layer.inner_loop

    def inner_loop(sequences, initial_state, mask, training=False):
        is_masked = any(m is not None for m in tf.nest.flatten(mask))
        with loops_instead([layer]) if is_masked else contextlib.nullcontext():
            return original(sequences, initial_state, mask, training=training)

    return inner_loop


def _uses_cudnn(layer):
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


# The steps of LSTM and GRU by cuDNN, in a rule that projects their inputs.
#
# Keras's own functions call the op: they know in which order cuDNN has the
# gates and where their weights and biases lie.


def runs_on_cudnn(layer):
    """Whether cuDNN can run the steps of a layer in the graph being traced.

    Not where Keras would not call it, under XLA, on a CPU, or on the card of
    a plugin, which may have another op under the same name.
    """
    if not _uses_cudnn(layer) or in_xla() or "CPU" in current_device().upper():
        return False
    return has_cuda_card()


def cudnn_steps(cell, z, states, recurrent_kernel, state_bias, lengths=None):
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
