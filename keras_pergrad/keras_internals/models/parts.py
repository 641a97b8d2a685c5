"""The parts of models, layers, optimizers and variables.

Private names in use: `Adam._momentums`, `_velocities`;
`Optimizer._get_variable_index`, `_exclude_from_weight_decay`,
`_exclude_from_weight_decay_pattern`; `keras.src.models.functional.Functional`,
`keras.src.models.functional.functional_like_constructor`,
`keras.src.models.model.functional_init_arguments`,
`Sequential._functional`;
`Layer._flatten_layers`, `_get_own_losses`, `_call_has_training_arg`,
`Operation._inbound_nodes`, `Model._symbolic_build`, `_compute_loss`,
`_compile_loss`, `_compile_config`, `_loss_tracker`, `_compile_metrics`,
`_resolve_auto_jit_compile`, `Functional._inputs_struct`, `_outputs_struct`,
`CompileLoss._flat_losses`, `Loss._fn_kwargs`, the tensor attributes
`_keras_mask` and `_keras_logits`, `keras.src.backend.compute_output_spec`;
`Layer._layers`, `_trainable_variables`,
`_open_name_scope`, `_dtype_policy`, `Operation._inbound_nodes`,
`_outbound_nodes`, `Functional._inputs`,
`KerasTensor._dtype`, `TextVectorization._lookup_layer`,
`IndexLookup._has_input_vocabulary`,
`keras.src.layers.rnn.conv_lstm.ConvLSTMCell`;
`keras.src.backend.common.global_state.get_global_attribute`.
"""

import contextlib
import warnings
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.layers.rnn.conv_lstm import ConvLSTMCell as ConvLSTMCell
from keras.src.models import functional as keras_functional
from keras.src.models.functional import Functional as Functional
from keras.src.models.model import functional_init_arguments

from keras_pergrad.common.batches import (
    TEXTS_AS_TARGETS,
    TEXTS_TO_NUMBERS,
    require_arrays,
)
from keras_pergrad.common.patching import patched_attribute
from keras_pergrad.common.refusal_messages import no_loss


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


def is_only_layers(layer):
    """Whether a layer consists of layers, without a `call` of its own."""
    return type(layer) is keras.Sequential or (
        isinstance(layer, Functional)
        and keras_functional.functional_like_constructor(type(layer))
    )


def inner_model(model):
    """Return the model that a Sequential one is built of, or None."""
    return model._functional if isinstance(model, keras.Sequential) else None


_MISSING = object()
_SEEN = set()


def optional(target, name, example, *, effect, default=None) -> Any:
    """Return an attribute; warn where not even `example()` has it."""
    # An object without the attribute is ordinary. If a typical one lacks it,
    # the library has changed, and `effect` says what is lost by that.
    value = getattr(target, name, _MISSING)
    if value is not _MISSING:
        return value
    if name not in _SEEN:
        typical = example()
        if hasattr(typical, name):
            _SEEN.add(name)
        else:
            library = type(typical).__module__.partition(".")[0]
            warnings.warn(
                f"This version of {library} has no "
                f"{type(typical).__name__}.{name}, so that {effect}.",
                stacklevel=2,
            )
    return default


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


def call_nodes(layer):
    """List the nodes of a layer's symbolic calls."""
    return layer._inbound_nodes


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
            raise ValueError(no_loss(model)) from error
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


def call_arguments_of(loss):
    """Return the keyword arguments a loss function was wrapped with."""
    effect = (
        "records of runs describe a loss by its class and its config: it "
        "seems to differ from that of runs of other versions"
    )
    return optional(
        loss, "_fn_kwargs", keras.losses.MeanSquaredError, effect=effect
    )


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


def direct_sublayers(layer):
    """List the layers that are attributes of a layer, in order of creation."""
    return layer._layers


def own_weights(layer):
    """List the trainable variables of a layer, and those of its parts."""
    return layer._trainable_variables


def turn_into(layer, new):
    """Turn a layer into another one; all references to the object see it."""
    # The nodes of its calls stay: a functional model runs along them.
    calls = {k: vars(layer)[k] for k in ("_inbound_nodes", "_outbound_nodes")}
    # This bypasses Keras's tracking of attributes.
    object.__setattr__(layer, "__class__", type(new))
    object.__setattr__(layer, "__dict__", vars(new))
    vars(layer).update(calls)


@contextlib.contextmanager
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

    openers = [(layer, recording_opener(layer)) for layer in layers]
    with contextlib.ExitStack() as stack:
        for layer, opener in openers:
            stack.enter_context(
                patched_attribute(layer, "_open_name_scope", opener)
            )
        yield


@contextlib.contextmanager
def layer_computing_in(layer, policy):
    """Let a layer compute by another dtype policy inside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patched_attribute(layer, "_dtype_policy", policy))
        # A functional model casts to the formats of its symbolic inputs.
        for tensor in getattr(layer, "_inputs", None) or ():
            if tensor.dtype.startswith(("float", "bfloat")):
                dtype = policy.compute_dtype
                stack.enter_context(patched_attribute(tensor, "_dtype", dtype))
        yield


def lookup_of(layer):
    """Return the lookup layer inside of a `TextVectorization`."""
    return layer._lookup_layer


def has_fixed_vocabulary(lookup):
    """Whether a lookup layer got its vocabulary as an argument."""
    return lookup._has_input_vocabulary


def shared_seed_state():
    """Return the seed's variable, or None if no layer has asked for it yet."""
    # Keras's own getter would create it.
    seeds = global_state.get_global_attribute("global_seed_generator")
    return None if seeds is None else seeds.state


def nested_optimizers(optimizer):
    """List an optimizer and all inside of it, from the outside in.

    A `LossScaleOptimizer` has one, a `MultiOptimizer` (Keras 3.13 and later)
    one for each part of the variables; these apply the gradients.
    """
    # A `MultiOptimizer` whose parts a function chooses has them once built.
    optimizers: list = []
    pending = [optimizer]
    while pending:
        current = pending.pop(0)
        if current is None or any(current is other for other in optimizers):
            continue
        optimizers.append(current)
        pending.append(getattr(current, "inner_optimizer", None))
        pending += getattr(current, "optimizers", None) or []
    return optimizers


def loss_scale(optimizer):
    """Return the factor by which the optimizer scales the loss, or None."""
    if optimizer is None:
        return None
    is_double = keras.config.floatx() == "float64"
    unit = tf.ones([], "float64" if is_double else "float32")
    scaled = optimizer.scale_loss(unit)
    # An optimizer without a scale returns the very same tensor.
    return None if scaled is unit else scaled


def learning_rate(optimizer):
    """Return the learning rate of the innermost optimizer's next update."""
    rates = [
        nested.learning_rate
        for nested in nested_optimizers(optimizer)
        if getattr(nested, "inner_optimizer", None) is None
    ]
    return rates[0]


def accumulating_optimizer(optimizer):
    """Return the first optimizer inside that accumulates, or None."""
    for nested in nested_optimizers(optimizer):
        if getattr(nested, "gradient_accumulation_steps", None):
            return nested
    return None


def adam_moments(optimizer, variable):
    """Return a variable's position, its first and its second moment."""
    k = optimizer._get_variable_index(variable)
    return k, optimizer._momentums[k], optimizer._velocities[k]


def copy_decay_exclusions(source, target):
    """Leave out of a target's weight decay what a source leaves out."""
    for name in (
        "_exclude_from_weight_decay",
        "_exclude_from_weight_decay_pattern",
    ):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))


def has_fixed_shapes(model):
    """Whether every batch of a functional model has the same shapes."""
    inputs = getattr(model, "inputs", None)
    return bool(inputs) and all(
        None not in t.shape[1:] for t in tf.nest.flatten(inputs)
    )
