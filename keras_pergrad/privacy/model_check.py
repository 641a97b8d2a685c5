"""The check of a model before private training."""

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.data.views import call_views
from keras_pergrad.keras_internals.losses.losses import recording_losses
from keras_pergrad.keras_internals.models.building import stateful_layers
from keras_pergrad.keras_internals.models.optimizers import nested_optimizers
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    compiled_loss,
    has_own_loss,
    layers_of,
    overwritten_weights,
    require_targets,
)
from keras_pergrad.model.model import PerGradModel
from keras_pergrad.modes import fractions
from keras_pergrad.privacy.adapted_layers import adapted_layers, require_layers
from keras_pergrad.privacy.assigned_state import state_of_batch
from keras_pergrad.privacy.proof_record import ProofRecord
from keras_pergrad.proof import messages
from keras_pergrad.proof.numbers import ShapesUnknown
from keras_pergrad.uses import TracedStep, added_powers, refusals, vouched_ops

#: There may be one example more or less; losses are looked at as fractions.
_EXAMPLE_OPTIONS = {
    "repeated": "example",
    "values": fractions.numerators,
}


def find_problems(model, batches, public_layers=()):
    """Return what breaks privacy, a list of sentences."""
    require_layers(model, getattr(batches, "augment", None), public_layers)
    sentences = [*_step_problems(model), *_optimizer_problems(model)]
    if sentences:
        return sentences
    sentences += [
        *_layer_problems(model),
        *_adapted_problems(model, public_layers),
        *_adapted_problems(getattr(batches, "augment", None), public_layers),
    ]
    sentences += _variable_problems(model)
    if not sentences:
        sentences += _loss_problems(model, batches)
    if not sentences:
        sentences += _sample_problems(model, batches)
    return sentences


def proof_record(model, batches):
    """Return how far it is proved that examples stay separate."""
    vouched, ops = vouched_ops(_traced_step(model, batches), **_EXAMPLE_OPTIONS)
    names = model.vouched if vouched else ()
    op_types = sorted({op_type for op_type, _ in vouched})
    return ProofRecord(
        (ops,), len(vouched), tuple(op_types), names=tuple(names)
    )


def _sample_problems(model, batches):
    """Yield why an example's gradient is not proved to be its own."""
    overwritten = [str(error) for _, error in overwritten_weights(model)]
    yield from overwritten
    if not overwritten:
        for error in refusals(_traced_step(model, batches), **_EXAMPLE_OPTIONS):
            yield str(error)


def _traced_step(model, batches):
    return TracedStep(model, keras.utils.unpack_x_y_sample_weight(batches.spec))


def _step_problems(model):
    if type(model).train_step is not PerGradModel.train_step:
        yield (
            f"{type(model).__name__} has a custom train_step, which may use a "
            "batch more than once, while only one use is counted. Put the "
            "loss into compile(loss=...) or add_loss()."
        )
    if has_own_loss(model):
        yield (
            f"{type(model).__name__} overrides compute_loss, so that it is "
            "not known whether a sample's loss depends on others. Put the "
            "loss into a keras.losses.Loss for compile(loss=...) or into "
            "add_loss()."
        )
    if model.gradient_mode.updates_by_itself:
        yield (
            f"gradient_mode={model.gradient_mode!r} joins several batches "
            "into one update, or splits one, which the accounting does not "
            "cover. "
            "Use private.gradient_mode, and `microbatch_size` of "
            "PrivateTraining to save memory."
        )


def _optimizer_problems(model):
    is_multi = hasattr(model.optimizer, "optimizers")
    if is_multi and model.built and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    for optimizer in nested_optimizers(model.optimizer):
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            yield (
                "The optimizer is a LossScaleOptimizer, which skips an update "
                "when one sample's gradient overflows, and so reveals it. Use "
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


def _variable_problems(model):
    for variable in model.trainable_variables:
        if variable.dtype in ("float16", "bfloat16"):
            yield (
                f"The variable {variable.path!r} is {variable.dtype}, in "
                "which noise is too coarse to hide a gradient. Use a mixed "
                "policy, such as 'mixed_bfloat16', whose variables are "
                "float32."
            )
            return


def _layer_problems(model):
    """Yield a sentence for each layer of a kind known to be wrong."""
    behavior = "draws batches of other examples each time"
    yield from stateful_layers(model, "PrivateTraining", behavior)
    for layer in layers_of(model):
        batch_norm = keras.layers.BatchNormalization
        if isinstance(layer, batch_norm) and layer.trainable:
            yield (
                f"layer {layer.name!r} ({type(layer).__name__}) normalises by "
                "the statistics of the batch and keeps their averages, which "
                "mixes the samples. Use kpg.replace_batch_norm(model), or "
                "trainable=False."
            )


def _adapted_problems(model, public):
    if not isinstance(model, keras.layers.Layer):
        return  # a function that makes views, or None
    for layer, state in adapted_layers(model, public):
        yield (
            f"layer {layer.name!r} ({type(layer).__name__}) was adapted to "
            "data. If these are to be protected, they can be inferred from its "
            f"{state}, without noise: give it constants instead, as arguments "
            "when it is made. If they are public, say so with "
            f"PrivateTraining(public_layers=[{layer.name!r}])."
        )


def _loss_problems(model, batches):
    """Yield the problems that a trace of the model's step shows."""
    assigned, state_names, terms, uses_add_loss = _trace_forward(model, batches)
    for variable in assigned:
        yield (
            f"The forward pass assigns {variable.path!r} a value that "
            "depends on the batch: the model would hold it without noise. "
            "Remove the layer, or freeze it (trainable=False)."
        )
    for name in state_names:
        yield (
            f"The forward pass or the loss assigns {name} a value that "
            "depends on the batch: it would reach later steps, and may be "
            "saved, without noise. Remove the assignment."
        )
    for term in terms:
        if term.kind == fractions.SUM:
            yield (
                f"The loss {term.name!r} is a sum over the batch (reduction="
                "'sum'), so that a sample's gradient depends on how many "
                "others there are. Use reduction='sum_over_batch_size'."
            )
        elif term.kind == fractions.DATA or term.by_weight:
            yield (
                f"The loss {term.name!r} is divided by a mask or by weights "
                "of all samples, so that a sample's gradient depends on the "
                "others. Use a loss that returns one value for each sample, "
                "its own mean over its mask, with reduction="
                "'sum_over_batch_size', on outputs without mask."
            )
    if uses_add_loss:
        step = _traced_step(model, batches)
        if 0 in added_powers(step, **_EXAMPLE_OPTIONS):
            yield (
                "A loss given to add_loss() is a sum over the batch, so that a "
                "sample's gradient depends on how many others there are. Use "
                "ops.mean over all axes."
            )


def _trace_forward(model, batches):
    """Return weights and other state that keep samples, and the losses."""
    # These are loss fractions, and whether add_loss is used.
    traces = []

    @tf.function(autograph=False)
    def forward_pass(data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        added_losses = []
        with (
            keras.StatelessScope(collect_losses=True) as scope,
            recording_losses(model, added_losses),
        ):
            y_pred = call_views(model, x)
        assigned = [
            (v, value)
            for v in model.weights
            if (value := scope.get_current_value(v)) is not None
        ]
        terms = fractions.evaluate(
            compiled_loss(model), y, y_pred, sample_weight
        )
        traces.append(
            ((x, y, sample_weight), assigned, terms, bool(added_losses))
        )

    data = batches.spec
    rows = keras.utils.unpack_x_y_sample_weight(batches.row_spec)
    require_targets(model, rows, "private.batches(x, y)")
    with model.distribute_strategy.scope():
        build_symbolically(model, rows)
    concrete = forward_pass.get_concrete_function(data)
    batch, assigned, *losses = traces[-1]
    values = [value for _, value in assigned]
    try:
        are_kept, names = state_of_batch(
            model, concrete.graph, batch, values=values
        )
    except ShapesUnknown as error:
        raise ValueError(messages.shapes_unknown(model, error)) from None
    weights = [v for (v, _), is_kept in zip(assigned, are_kept) if is_kept]
    return weights, names, *losses
