"""The parts of a model that would break the privacy of its training, by name.

Private names in use: `Layer._flatten_layers`, `Model._compile_loss`,
`Model._symbolic_build`.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.losses import noting_losses
from keras_pergrad.model import PerGradModel
from keras_pergrad.modes import add_loss_reduction, loss_fractions
from keras_pergrad.modes.base import call_model

LOOKED_AT = 8  # examples to run where the graph alone does not tell


def problems(model, batches, public_layers=()):
    """Return what breaks privacy, a list of sentences.

    Args:
        model: the compiled model.
        batches: the `PrivateBatches` that it will be trained on.
        public_layers: names of layers whose statistics are of public data.
    """
    found = [*_of_steps(model), *_of_optimizer(model)]
    if found:
        return found
    named = list(_of_layers(model, public_layers))
    found += [text for _, text in named]
    found += _of_variables(model)
    if not found:
        found += _of_losses(model, batches, public_layers)
    return found


def _of_steps(model):
    if type(model).train_step is not PerGradModel.train_step:
        yield (
            f"{type(model).__name__} has a train_step of its own, which may "
            "look at a batch more than once while one look is counted. Put "
            "the loss into compile(loss=...) or add_loss()."
        )
    if type(model).compute_loss is not keras.Model.compute_loss:
        yield (
            f"{type(model).__name__} overrides compute_loss, so that it is "
            "not known whether a sample's loss depends on others. Put the "
            "loss into a keras.losses.Loss for compile(loss=...) or into "
            "add_loss()."
        )
    if model.gradient_mode.updates_by_itself:
        yield (
            f"gradient_mode={model.gradient_mode!r} joins several batches to "
            "one update, or splits one, which is not what is accounted for. "
            "Use private.gradient_mode, and `microbatch_size` of "
            "PrivateTraining to save memory."
        )


def _of_optimizer(model):
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield (
            "The optimizer is a LossScaleOptimizer, which skips an update "
            "when one sample's gradient overflows and so tells of it. Use the "
            "policy 'mixed_bfloat16', or compile(auto_scale_loss=False)."
        )
        optimizer = optimizer.inner_optimizer
    if optimizer.gradient_accumulation_steps:
        yield (
            "The optimizer joins the gradients of several steps "
            "(gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}). Leave that out; "
            "`microbatch_size` of PrivateTraining saves memory."
        )


def _of_variables(model):
    for variable in model.trainable_variables:
        if variable.dtype in ("float16", "bfloat16"):
            yield (
                f"The variable {variable.path!r} is {variable.dtype}, in "
                "which noise is too coarse to hide a gradient. Use a mixed "
                "policy, such as 'mixed_bfloat16', whose variables are "
                "float32."
            )
            return


def _of_layers(model, public):
    """Yield (layer, sentence) for each layer of a kind known to be wrong."""
    for layer in model._flatten_layers():
        name = f"layer {layer.name!r} ({type(layer).__name__})"
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.trainable:
                yield (
                    layer,
                    f"{name} normalises by the statistics of the batch and "
                    "keeps their averages, which mixes the samples. Use "
                    "kpg.replace_batch_norm(model), or trainable=False.",
                )
        elif layer.name not in public and _is_adapted(layer):
            yield (
                layer,
                f"{name} was adapted to data. If they are those to be "
                "protected, its statistics tell of them without noise: give "
                "it constants instead. If they are public, say so by "
                f"PrivateTraining(public_layers=[{layer.name!r}]).",
            )


def _is_adapted(layer):
    layers = keras.layers
    if isinstance(layer, layers.Normalization):
        if layer.input_mean is not None or not layer.built:
            return False
        mean, variance = (
            np.asarray(v) for v in (layer.adapt_mean, layer.adapt_variance)
        )
        return bool(mean.any() or (variance != 1).any())
    if isinstance(layer, layers.Discretization):
        boundaries = getattr(layer, "bin_boundaries", None)
        return layer.input_bin_boundaries is None and bool(boundaries)
    return False


def _of_losses(model, batches, public):
    """Yield the problems that a trace of the model's step shows."""
    assigned, terms, adds = _traced(model, batches)
    for layer in model._flatten_layers():
        own = {id(v) for v in layer._non_trainable_variables}
        # Its vector depends only on the weights.
        if isinstance(layer, keras.layers.SpectralNormalization):
            own |= {id(v) for v in layer.non_trainable_weights}
            assigned = [v for v in assigned if id(v) not in own]
    for variable in assigned:
        yield (
            f"The forward pass assigns {variable.path!r}, which is not "
            "trained: what a layer keeps of the samples is in the model "
            "without noise. Leave it out, or freeze it (trainable=False)."
        )
    for term in terms:
        if term.kind == loss_fractions.SUM:
            yield (
                f"The loss {term.name!r} is a sum over the batch (reduction="
                "'sum'), so that a sample's gradient depends on how many "
                "others there are. Use reduction='sum_over_batch_size'."
            )
        elif term.kind == loss_fractions.DATA or term.by_weight:
            yield (
                f"The loss {term.name!r} is divided by a mask or by weights "
                "of all samples, so that a sample's gradient depends on the "
                "others. Use a loss that returns one value for each sample, "
                "its own mean over its mask, with reduction="
                "'sum_over_batch_size', on outputs without mask."
            )
    if adds and any(_sums(model, batches)):
        yield (
            "A loss given to add_loss() is a sum over the batch, so that a "
            "sample's gradient depends on how many others there are. Use "
            "ops.mean over all axes."
        )


def _traced(model, batches):
    """Return assigned variables, loss fractions, and if add_loss is used."""
    found = []

    @tf.function(autograph=False)
    def look(data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        noted = []
        with (
            keras.StatelessScope(collect_losses=True) as scope,
            noting_losses(model, noted),
        ):
            y_pred = call_model(model, x)
        assigned = [
            v
            for v in model.non_trainable_weights
            if scope.get_current_value(v) is not None
        ]
        terms = loss_fractions.evaluate(
            model._compile_loss, y, y_pred, sample_weight
        )
        found.append((assigned, terms, bool(noted)))

    data = batches.spec
    model._symbolic_build(data_batch=keras.utils.unpack_x_y_sample_weight(data))
    look.get_concrete_function(data)
    return found[0]


def _sums(model, batches):
    rows = np.arange(min(LOOKED_AT, batches.source.size))
    x = keras.utils.unpack_x_y_sample_weight(batches.source.take(rows))[0]

    @tf.function(autograph=False)
    def look(x):
        return add_loss_reduction.kinds(model, x)

    return [bool(value) for value in look(x)]
