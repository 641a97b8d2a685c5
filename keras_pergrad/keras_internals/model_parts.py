"""The parts of models, layers, losses and tensors that Keras keeps to itself.

Private names in use: `Layer._flatten_layers`, `_get_own_losses`,
`_call_has_training_arg`, `Operation._inbound_nodes`, `Model._symbolic_build`,
`_compute_loss`, `_compile_loss`, `_compile_config`, `_loss_tracker`,
`_compile_metrics`, `_resolve_auto_jit_compile`, `Functional._inputs_struct`,
`_outputs_struct`, `CompileLoss._flat_losses`, `Loss._fn_kwargs`, the tensor
attributes `_keras_mask` and `_keras_logits`,
`keras.src.backend.compute_output_spec`.
"""

from typing import Any

import keras
from keras.src import backend

from keras_pergrad.keras_internals.functional_models import Functional
from keras_pergrad.keras_internals.optional_names import optional


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


def training_inside(model, training):
    """Return the value of `training` for the layers in `call_model`."""
    return training if takes_training(model) else None


def calls_of(layer):
    """List the nodes of the calls that symbolic tensors came from."""
    return layer._inbound_nodes


def own_losses(layer):
    """List what `add_loss` was given inside a layer's own call."""
    return layer._get_own_losses()


def build_symbolically(model, batch):
    """Build a compiled model, its loss and its metrics without running it."""
    model._symbolic_build(data_batch=batch)


def trace_symbolically(function, *args, **kwargs):
    """Return symbolic results of a function; what it calls is built."""
    return backend.compute_output_spec(function, *args, **kwargs)


def compute_loss(model, x, y, y_pred, sample_weight, training) -> Any:
    """Return the loss as a compiled model's own step computes it."""
    return model._compute_loss(
        x=x,
        y=y,
        y_pred=y_pred,
        sample_weight=sample_weight,
        training=training,
    )


def compiled_loss(model):
    """Return what `compile` made of the loss, or None."""
    return getattr(model, "_compile_loss", None)


def compiled_metrics(model):
    """Return what `compile` made of the metrics, or None."""
    return getattr(model, "_compile_metrics", None)


def compile_arguments(model):
    """Return the arguments of `compile` as they were given, by name."""
    given = model._compile_config
    return {} if given is None else given.config


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
    """Refuse metrics of the user's that have the names of logged figures.

    `owner`: what logs the figures, a text or a gradient mode. Keras would show
    one of the two alone.
    """
    # Without Keras's private name nothing is known, and nothing refused.
    kept = getattr(model, "_compile_config", None)
    given = {} if kept is None else kept.config
    metrics = [given.get(name) for name in ("metrics", "weighted_metrics")]
    taken = sorted(
        {
            getattr(m, "name", None) or getattr(m, "__name__", str(m))
            for m in keras.tree.flatten(metrics)
        }.intersection(names)
    )
    # Keras puts an output's name before that of its metric.
    if taken and len(getattr(model, "outputs", None) or [None]) == 1:
        owner = owner if isinstance(owner, str) else f"gradient_mode={owner!r}"
        raise ValueError(
            f"The metric {taken[0]!r} has the name of a figure that {owner} "
            "logs. Expected another name, as in "
            f"keras.metrics.MeanAbsoluteError(name='my_{taken[0]}')."
        )


def compiles_by_xla(model):
    """Whether `jit_compile="auto"` means that XLA compiles the step."""
    return model._resolve_auto_jit_compile()


def loss_tracker(model):
    """Return the metric that is logged as `loss`."""
    return model._loss_tracker


def entries_of(compiled):
    """List a compiled loss's entries, one a loss, once it is built."""
    return getattr(compiled, "_flat_losses", None) or ()


def call_arguments_of(loss):
    """Return the keyword arguments a loss function was wrapped with."""
    lost = (
        "records of runs describe a loss by its class and its config: it "
        "seems to differ from that of runs of other versions"
    )
    return optional(loss, "_fn_kwargs", keras.losses.MeanSquaredError, lost)


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
