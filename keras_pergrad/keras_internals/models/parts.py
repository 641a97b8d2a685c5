"""The parts of a model and of its layers, as a training step needs them.

Private names in use: `keras.src.models.functional.Functional`,
`keras.src.models.model.functional_init_arguments`;
`Layer._flatten_layers`, `_get_own_losses`, `_call_has_training_arg`,
`_open_name_scope`; `Model._symbolic_build`, `_compute_loss`, `_compile_loss`,
`_compile_config`, `_loss_tracker`, `_compile_metrics`,
`_resolve_auto_jit_compile`, `Functional._inputs_struct`, `_outputs_struct`,
`CompileLoss._flat_losses`; the tensor attributes `_keras_mask` and
`_keras_logits`; `keras.src.backend.compute_output_spec`.
"""

import collections
import contextlib
import threading
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.models.functional import Functional as Functional
from keras.src.models.model import functional_init_arguments

from keras_pergrad.common import refusal_messages
from keras_pergrad.common.batches import (
    TEXTS_AS_TARGETS,
    TEXTS_TO_NUMBERS,
    require_arrays,
)

#: The layers that Keras may have run by cuDNN.
RECURRENT = keras.layers.LSTM, keras.layers.GRU


@contextlib.contextmanager
def patched_attribute(target, name, value):
    """Set an instance attribute past Keras's tracking, and restore it."""
    # `vars`, not `getattr`: an attribute of the class is not the instance's,
    # and is uncovered again by a deletion.
    attributes = vars(target)
    had, old = name in attributes, attributes.get(name)
    object.__setattr__(target, name, value)
    try:
        yield
    finally:
        if had:
            object.__setattr__(target, name, old)
        else:
            object.__delattr__(target, name)


@contextlib.contextmanager
def patched_attributes(patches):
    """Patch each (target, name, value), and restore all of them."""
    with contextlib.ExitStack() as stack:
        for target, name, value in patches:
            stack.enter_context(patched_attribute(target, name, value))
        yield


#: (id of a target, name) → (the shared value, what restores), and its users.
_SHARED_PATCHES, _SHARED_USERS = {}, collections.Counter()
_SHARED_LOCK = threading.Lock()


@contextlib.contextmanager
def shared_patch(target, name, make):
    """Patch an attribute by `make(original)`, once for all threads inside.

    Replicas are threads that take turns, so that one may enter before another
    leaves: the last one to leave restores. Yield the value that all share.
    """
    key = id(target), name
    with _SHARED_LOCK:
        if key not in _SHARED_PATCHES:
            value, stack = make(getattr(target, name)), contextlib.ExitStack()
            stack.enter_context(patched_attribute(target, name, value))
            _SHARED_PATCHES[key] = value, stack
        value, stack = _SHARED_PATCHES[key]
        _SHARED_USERS[key] += 1
    try:
        yield value
    finally:
        with _SHARED_LOCK:
            _SHARED_USERS[key] -= 1
            if not _SHARED_USERS[key]:
                del _SHARED_PATCHES[key], _SHARED_USERS[key]
                stack.close()


def has_inputs_and_outputs(args, kwargs):
    """Whether a model's arguments are symbolic inputs and outputs."""
    return functional_init_arguments(args, kwargs)


def make_functional(cls, base, functional):
    """Replace `base` by a functional class among the bases of `cls` alone."""
    if issubclass(cls, Functional):
        return
    cls.__bases__ = tuple(
        functional if other is base else other for other in cls.__bases__
    )
    if not issubclass(cls, Functional):
        for other in cls.__bases__:
            if issubclass(other, base):
                make_functional(other, base, functional)


def layers_of(model):
    """List a model and all layers within, a layer of two places once."""
    return list(model._flatten_layers())


def inner_layers(model, recursive=True):
    """List the layers within, without the model itself."""
    return list(model._flatten_layers(include_self=False, recursive=recursive))


def takes_training(layer):
    """Whether its `call` has an argument `training`."""
    return layer._call_has_training_arg


def call_model(model, x, training=True):
    """Return `model(x)`, called as in Keras's own steps."""
    if takes_training(model):
        return model(x, training=training)
    return model(x)


def own_losses(layer):
    """List what `add_loss` was given inside a layer's own call."""
    return layer._get_own_losses()


def is_complex(tensor):
    """Whether a tensor or an array holds complex numbers."""
    return "complex" in str(getattr(tensor, "dtype", ""))


def require_numbers(model, tensor, wanted):
    """Refuse texts and complex numbers for an input of real numbers."""
    dtype = _dtype_of_texts(tensor)
    if is_complex(tensor) and "complex" not in wanted.dtype:
        raise ValueError(
            f"Model {model.name!r} expected real numbers as `x`. Received: "
            "complex numbers, which would lose their imaginary part. Give "
            "both parts, as numpy.stack([x.real, x.imag], -1), or abs(x)."
        )
    if dtype is None or wanted.dtype == "string":
        return
    raise ValueError(
        f"Model {model.name!r} expected numbers as `x`. Received: texts, of "
        f"dtype {getattr(dtype, 'name', dtype)}. {TEXTS_TO_NUMBERS}"
    )


def require_no_texts(model, x, y):
    """Refuse texts and lists of numbers, of which Keras says too little."""
    require_arrays(x, y)
    expected = getattr(model, "inputs", None) or ()
    for tensor, wanted in zip(tf.nest.flatten(x), expected):
        require_numbers(model, tensor, wanted)
    if any(_dtype_of_texts(t) is not None for t in tf.nest.flatten(y)):
        raise ValueError(TEXTS_AS_TARGETS)
    require_real_targets(model, y)


def has_own_loss(model):
    """Whether the model's class overrides `compute_loss`."""
    return type(model).compute_loss is not keras.Model.compute_loss


def require_real_targets(model, y):
    """Refuse complex targets, which Keras's losses cast to real numbers."""
    if has_own_loss(model) or compiled_loss(model) is None:
        return
    if any(map(is_complex, tf.nest.flatten(y))):
        raise ValueError(
            f"The loss of model {model.name!r} expected real numbers as `y`. "
            "Received: complex numbers, which would lose their imaginary part. "
            "Give both parts, as numpy.stack([y.real, y.imag], -1), or abs(y)."
        )


def require_targets(model, batch, expected="`y`, or a dataset of (x, y)"):
    """Refuse a batch without the targets that the loss needs, or complex."""
    require_real_targets(model, batch[1])
    if (
        batch[1] is None
        and compiled_loss(model) is not None
        and not has_own_loss(model)
    ):
        raise ValueError(
            f"The loss of model {model.name!r} compares its outputs with "
            f"targets. Expected {expected}. Received: y=None"
        )


def _dtype_of_texts(tensor):
    """Return the dtype of texts in an array or a DataFrame, or None."""
    dtypes = list(getattr(tensor, "dtypes", ()))
    for dtype in dtypes or [getattr(tensor, "dtype", None)]:
        if dtype == tf.string or getattr(dtype, "kind", "") in tuple("OSU"):
            return dtype
    return None


def require_inputs(model, x):
    """Refuse single samples, and arrays of other shapes than the inputs have.

    Keras does, too. But what is traced for unknown sizes comes to the proof
    first, which would say that no sizes fit.
    """
    expected = getattr(model, "inputs", None) or ()
    tensors = () if isinstance(x, dict) else tf.nest.flatten(x)
    for tensor, wanted in zip(tensors, expected):
        require_numbers(model, tensor, wanted)
        shape = getattr(tensor, "shape", None)
        if shape is None or tf.TensorShape(shape).rank is None:
            continue
        shape, wanted = tf.TensorShape(shape), tf.TensorShape(wanted.shape)
        is_sample = shape.is_compatible_with(wanted[1:])
        # Keras adds a last axis of one itself: it takes (n,) for (n, 1).
        if is_sample and wanted.rank > 1 and wanted[-1] != 1:
            raise ValueError(
                f"Model {model.name!r} expected batches of samples, of shape "
                f"{tuple(wanted)}. Received: the shape {tuple(shape)} of one "
                "sample. Batch the data set, dataset.batch(32), or give an "
                "array with one more axis in front."
            )
        # A number of samples that the model names is judged by its ops.
        same_rank = shape.rank == wanted.rank
        if same_rank and not shape[1:].is_compatible_with(wanted[1:]):
            raise ValueError(
                f"Model {model.name!r} expected inputs of shape "
                f"{tuple(wanted)}. Received: {tuple(shape)}"
            )


_NOT_BUILT = "Unable to automatically build"


def build_symbolically(model, batch):
    """Build a compiled model, its loss and its metrics without running it.

    What the model's own code raises reaches the caller as it is.
    """
    try:
        model._symbolic_build(data_batch=batch)
    except RuntimeError as error:
        # Keras raises its own error instead, without the user's line.
        if error.__context__ is None or not str(error).startswith(_NOT_BUILT):
            raise
        own_error = error.__context__
    else:
        return
    raise own_error


def trace_symbolically(function, *args, **kwargs):
    """Return a function's symbolic results; layers it calls are built."""
    return backend.compute_output_spec(function, *args, **kwargs)


def compute_loss(model, x, y, y_pred, sample_weight, training) -> Any:
    """Return the loss as a compiled model's own step computes it."""
    with naming_missing_loss(model):
        return model._compute_loss(
            x=x,
            y=y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=training,
        )


@contextlib.contextmanager
def naming_missing_loss(model):
    """Say more than Keras does of a model without any loss."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith("No loss to compute"):
            raise ValueError(refusal_messages.no_loss(model)) from error
        raise


def compiled_loss(model):
    """Return what `compile` made of the loss, or None."""
    return getattr(model, "_compile_loss", None)


def compiled_metrics(model):
    """Return what `compile` made of the metrics, or None."""
    return getattr(model, "_compile_metrics", None)


def compile_arguments(model):
    """Return the arguments of `compile` as they were given, by name."""
    config = model._compile_config
    return {} if config is None else config.config


def require_variables(model):
    """Refuse a model that has nothing to train."""
    if not model.trainable_variables:
        raise ValueError(
            f"Model {model.name!r} has no trainable variables. Set "
            "`trainable = True` on layers before compile()."
        )


def is_overwritten(variable):
    """Whether the optimizer overwrites a variable with its gradient."""
    return getattr(variable, "overwrite_with_gradient", False)


def overwritten_weights(model):
    """Yield (layer, error) for layers with weights that are overwritten."""
    refused = []
    for variable in filter(is_overwritten, model.trainable_variables):
        layer = min(
            (
                layer
                for layer in layers_of(model)
                if any(v is variable for v in layer.trainable_variables)
            ),
            key=lambda layer: len(layer.variables),
        )
        if not any(layer is other for other in refused):
            refused.append(layer)
            text = refusal_messages.overwritten_weight(layer, variable)
            yield layer, ValueError(text)


def require_none_overwritten(model):
    """Refuse weights that are overwritten: samples have no gradients there."""
    for _, error in overwritten_weights(model):
        raise error


def require_gradients(model, gradients):
    """Refuse a loss that depends on no weight."""
    if all(gradient is None for gradient in gradients):
        raise ValueError(
            f"The loss of model {model.name!r} does not depend on any of its "
            "trainable variables. Expected a loss of the model's outputs. Look "
            "for a loss of y_true alone, for ops without a gradient (argmax, "
            "round, casts to integers) and for tf.stop_gradient."
        )


def require_free_names(model, names, owner):
    """Refuse a user's metrics that have the names of logged figures.

    `owner`: what logs the figures, a text or a gradient mode. Keras would show
    one of the two alone.
    """
    # A Keras without this private name cannot be asked: nothing is refused.
    config = getattr(model, "_compile_config", None)
    arguments = {} if config is None else config.config
    metrics = [arguments.get(name) for name in ("metrics", "weighted_metrics")]
    shared = sorted(
        {
            getattr(m, "name", None) or getattr(m, "__name__", str(m))
            for m in keras.tree.flatten(metrics)
        }.intersection(names)
    )
    # Keras puts an output's name before that of its metric.
    if shared and len(getattr(model, "outputs", None) or [None]) == 1:
        owner = owner if isinstance(owner, str) else f"gradient_mode={owner!r}"
        raise ValueError(
            f"The metric {shared[0]!r} has the name of a figure that {owner} "
            "logs. Expected another name, as in "
            f"keras.metrics.MeanAbsoluteError(name='my_{shared[0]}')."
        )


def compiles_by_xla(model):
    """Whether `jit_compile="auto"` means that XLA compiles the step."""
    return model._resolve_auto_jit_compile()


def loss_tracker(model):
    """Return the metric that is logged as `loss`."""
    return model._loss_tracker


def entries_of(compiled):
    """List the entries, one per loss, of a compiled loss that is built."""
    return getattr(compiled, "_flat_losses", None) or ()


def symbolic_inputs(model):
    """Return a functional model's inputs in their structure, or None."""
    return model._inputs_struct if isinstance(model, Functional) else None


def symbolic_outputs(model):
    """Return a functional model's outputs in their structure, or None."""
    return model._outputs_struct if isinstance(model, Functional) else None


def mask_of(tensor):
    """Return the mask a layer left at its output, or None."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor, mask):
    """Leave a mask at a tensor, as a layer does at its output."""
    tensor._keras_mask = mask


def logits_behind(tensor):
    """Return the logits that an activation left at its output, or None."""
    return getattr(tensor, "_keras_logits", None)


def set_logits(tensor, logits):
    """Leave logits at a tensor, as an activation does at its output."""
    tensor._keras_logits = logits


def recording_scopes(layers, scopes):
    """Record in a dict the name scopes in which layers are called.

    Only calls in the present graph count.
    """
    graph = tf.compat.v1.get_default_graph()

    def recording_opener(layer):
        open_original = layer._open_name_scope

        @contextlib.contextmanager
        def open_name_scope():
            with open_original():
                if tf.compat.v1.get_default_graph() is graph:
                    scopes[graph.get_name_scope()] = layer
                yield

        return open_name_scope

    return patched_attributes(
        [
            (layer, "_open_name_scope", recording_opener(layer))
            for layer in layers
        ]
    )
