"""The parts of a model that would break the privacy of its training."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals import loss_fractions
from keras_pergrad.keras_internals.losses import noting_losses
from keras_pergrad.keras_internals.model_parts import (
    build_symbolically,
    call_model,
    compiled_loss,
    layers_of,
)
from keras_pergrad.keras_internals.optimizers import all_of
from keras_pergrad.keras_internals.stateful_layers import stateful_layers
from keras_pergrad.model import PerGradModel
from keras_pergrad.modes import add_loss_reduction
from keras_pergrad.privacy.adapted_layers import adapted
from keras_pergrad.privacy.kept_state import KeptState
from keras_pergrad.privacy.proof_record import ProofRecord
from keras_pergrad.samples import TracedStep, messages, refusals, vouched_ops
from keras_pergrad.samples.types.step_types import ShapesUnknown

#: There may be one example more or less; losses are looked at as fractions.
_OF_EXAMPLES = {
    "repeated": "example",
    "values": loss_fractions.numerators,
}
LOOKED_AT = 8  # examples to run where the graph alone does not tell


def problems(model, batches, public_layers=()):
    """Return what breaks privacy, a list of sentences."""
    reasons = [*_of_steps(model), *_of_optimizer(model)]
    if reasons:
        return reasons
    reasons += [*_of_layers(model), *_of_adapted(model, public_layers)]
    reasons += _of_variables(model)
    if not reasons:
        reasons += _of_losses(model, batches)
    if not reasons:
        reasons += _of_samples(model, batches)
    return reasons


def proof_of(model, batches):
    """Return how far it is proved that examples are apart."""
    vouched, ops = vouched_ops(_traced_step(model, batches), **_OF_EXAMPLES)
    names = model.vouched if vouched else ()
    kinds = sorted({kind for kind, _ in vouched})
    return ProofRecord((ops,), len(vouched), tuple(kinds), tuple(names))


def _of_samples(model, batches):
    """Yield why an example's gradient is not proved to be its own."""
    for error in refusals(_traced_step(model, batches), **_OF_EXAMPLES):
        yield str(error)


def _traced_step(model, batches):
    return TracedStep(model, keras.utils.unpack_x_y_sample_weight(batches.spec))


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
    several = hasattr(model.optimizer, "optimizers")
    if several and model.built and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    for optimizer in all_of(model.optimizer):
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            yield (
                "The optimizer is a LossScaleOptimizer, which skips an update "
                "when one sample's gradient overflows and so tells of it. Use "
                "the policy 'mixed_bfloat16', or "
                "compile(auto_scale_loss=False)."
            )
        elif optimizer.gradient_accumulation_steps:
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


def _of_layers(model):
    """Yield a sentence for each layer of a kind known to be wrong."""
    how = "draws batches of other examples each time"
    yield from stateful_layers(model, "PrivateTraining", how)
    for layer in layers_of(model):
        kind = keras.layers.BatchNormalization
        if isinstance(layer, kind) and layer.trainable:
            yield (
                f"layer {layer.name!r} ({type(layer).__name__}) normalises by "
                "the statistics of the batch and keeps their averages, which "
                "mixes the samples. Use kpg.replace_batch_norm(model), or "
                "trainable=False."
            )


def _of_adapted(model, public):
    for layer, kept in adapted(model, public):
        yield (
            f"layer {layer.name!r} ({type(layer).__name__}) was adapted to "
            f"data. If they are those to be protected, its {kept} tells of "
            "them without noise: give it constants instead, as arguments when "
            "it is made. If they are public, say so by "
            f"PrivateTraining(public_layers=[{layer.name!r}])."
        )


def _of_losses(model, batches):
    """Yield the problems that a trace of the model's step shows."""
    assigned, kept, terms, adds = _traced(model, batches)
    for variable in assigned:
        yield (
            f"The forward pass assigns {variable.path!r} what depends on the "
            "batch: what a layer keeps of the samples is in the model without "
            "noise. Leave it out, or freeze it (trainable=False)."
        )
    for name in kept:
        yield (
            f"The forward pass or the loss assigns {name} what depends on the "
            "batch: what is kept of the samples goes into later steps, and "
            "may be saved, without noise. Leave it out."
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
    """Return weights and other state that keep samples, and the losses."""
    # These are loss fractions, and whether add_loss is used.
    traces = []

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
            (v, value)
            for v in model.weights
            if (value := scope.get_current_value(v)) is not None
        ]
        terms = loss_fractions.evaluate(
            compiled_loss(model), y, y_pred, sample_weight
        )
        traces.append(((x, y, sample_weight), assigned, terms, bool(noted)))

    data = batches.spec
    build_symbolically(model, keras.utils.unpack_x_y_sample_weight(data))
    concrete = look.get_concrete_function(data)
    batch, assigned, *losses = traces[-1]
    given = [value for _, value in assigned]
    try:
        state = KeptState(concrete, batch, given)
    except ShapesUnknown as error:
        raise ValueError(messages.shapes_unknown(model, error)) from None
    weights = [v for v, value in assigned if state.has(value)]
    return weights, state.names(model), *losses


def _sums(model, batches):
    rows = np.arange(min(LOOKED_AT, batches.source.size))
    x = keras.utils.unpack_x_y_sample_weight(batches.source.take(rows))[0]

    @tf.function(autograph=False)
    def look(x):
        return add_loss_reduction.kinds(model, x)

    return [bool(value) for value in look(x)]
