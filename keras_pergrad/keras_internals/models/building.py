"""The variables of a model before its first step, and what users vouch for.

A variable that is made while a step is traced has no value if the step is
refused.

Private names in use: `tensorflow.python.pywrap_tfe.TFE_Py_TapeSetIsStopped`,
`tensorflow.python.pywrap_tfe.TFE_Py_TapeSetRestartOnThread`,
`tensorflow.python.pywrap_tfe.TFE_Py_TapeSetStopOnThread`.
"""

import contextlib
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python import pywrap_tfe

from keras_pergrad.common.arguments import names_given
from keras_pergrad.keras_internals.models.parts import (
    Functional,
    build_symbolically,
    compiled_loss,
    compiled_metrics,
    compute_loss,
    has_own_loss,
    inner_layers,
    layers_of,
    require_inputs,
    symbolic_outputs,
    trace_symbolically,
)
from keras_pergrad.keras_internals.replicas import replicas, strategies


def build_all(model, batch):
    """Build a compiled model, its metrics, its loss and its optimizer."""
    # Of several replicas none builds: all that they share exists already.
    build_context: Any = _outside_trace
    if replicas.has_several_replicas():
        strategies.require_built(model.optimizer)
        build_context = contextlib.nullcontext
    specs = tf.nest.map_structure(_spec, batch)
    with build_context():
        if _has_unbuilt_own_loss(model):
            # Layers may be called, and so built, there for the first time,
            # and the optimizer must know their variables.
            trace_symbolically(
                lambda x, y, weight: compute_loss(
                    model, x, y, model(x), weight, training=True
                ),
                *specs,
            )
        if not _build_losses(model, specs):
            build_symbolically(model, specs)
        optimizer = model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _outside_trace():
    """Leave the step that is traced, with tapes running again."""
    # `init_scope` stops the tapes of this thread. A layer that opens one while
    # it is built symbolically needs it to record.
    with tf.init_scope():
        if not pywrap_tfe.TFE_Py_TapeSetIsStopped():
            yield
            return
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        try:
            yield
        finally:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def _build_losses(model, batch):
    """Build metrics and loss without calling the model; return success."""
    x, y, sample_weight = batch
    require_inputs(model, x)
    if not all(layer.built for layer in layers_of(model)):
        return False
    if type(model).call is not Functional.call:
        return False
    outputs = symbolic_outputs(model)
    if isinstance(outputs, (list, tuple)) and len(outputs) == 1:
        outputs = outputs[0]  # a call returns it without its list
    flat = tf.nest.flatten(outputs)
    if any(axis is None for t in flat for axis in t.shape[1:]):
        return False
    targets = [_with_any_batch_size(part) for part in (x, y)]
    y_pred = _with_any_batch_size(outputs)
    weight = _with_any_batch_size(sample_weight)
    if not getattr(compiled_metrics(model), "built", True):
        trace_symbolically(
            model.compute_metrics, *targets, y_pred, sample_weight=weight
        )
    if not getattr(compiled_loss(model), "built", True):
        trace_symbolically(
            lambda x, y, outputs, weight: compute_loss(
                model, x, y, outputs, weight, training=False
            ),
            *targets,
            y_pred,
            weight,
        )
    return True


def _with_any_batch_size(structure):
    """Return symbolic tensors like these with an open batch size."""

    def relaxed(tensor):
        if not hasattr(tensor, "shape") or not len(tensor.shape or ()):
            return tensor
        shape = (None, *tensor.shape[1:])
        return keras.KerasTensor(
            shape, keras.backend.standardize_dtype(tensor.dtype)
        )

    return tf.nest.map_structure(relaxed, structure)


def _has_unbuilt_own_loss(model):
    """Whether `compute_loss` is overridden, and a layer not yet built."""
    overrides_loss = has_own_loss(model)
    return overrides_loss and not all(
        layer.built for layer in inner_layers(model)
    )


def _spec(tensor):
    if not isinstance(tensor, tf.Tensor):
        return tensor
    return keras.KerasTensor(tensor.shape, tensor.dtype.name)


def vouched_names(model, names):
    """Return `compile(vouched=...)` as a tuple; refuse what names nothing."""
    names = names_given("vouched", names)
    layers = {layer.name for layer in layers_of(model)} if names else ()
    for name in names:
        is_known = name in layers or hasattr(tf.raw_ops, name)
        is_known = is_known or not model.built
        if not is_known:
            raise ValueError(
                "`vouched` expected names of layers of the model or types of "
                "ops of TensorFlow, such as 'EagerPyFunc'. Received: "
                f"{name!r}. The layers are: {', '.join(sorted(layers))}"
            )
    return names


def states_of(model):
    """List the state variables of layers, which `model.variables` lacks."""
    return [
        state
        for layer in _layers_with_state(model)
        for state in tf.nest.flatten(getattr(layer, "states", None))
        if isinstance(state, keras.Variable)
    ]


def stateful_layers(model, user, how):
    """Refuse, in words, each stateful layer: `user` changes batches `how`."""
    return [
        f"layer {layer.name!r} ({type(layer).__name__}) is stateful: it hands "
        "a state from each batch to the next, with one row for each sample. "
        f"{user} {how}, for which that state is not defined. Use "
        "stateful=False, or gradient_mode='batch'."
        for layer in _layers_with_state(model)
    ]


def _layers_with_state(model):
    return [
        layer for layer in layers_of(model) if getattr(layer, "stateful", False)
    ]
