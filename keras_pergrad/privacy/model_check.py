"""The check of a model before private training."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.data.views import call_views
from keras_pergrad.keras_internals.losses.losses import recording_losses
from keras_pergrad.keras_internals.models.building import stateful_layers
from keras_pergrad.keras_internals.models.overwritten import overwritten_weights
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    compiled_loss,
    entries_of,
    has_fixed_vocabulary,
    layers_of,
    lookup_of,
    nested_optimizers,
)
from keras_pergrad.keras_internals.state.model import Handle, plain_variables
from keras_pergrad.model.model import PerGradModel
from keras_pergrad.modes import fractions
from keras_pergrad.modes.inspection import require_targets
from keras_pergrad.proof import messages
from keras_pergrad.proof.numbers import ShapesUnknown
from keras_pergrad.proof.step_types import type_step
from keras_pergrad.proof.tensor_types import BY_SIZE, Free
from keras_pergrad.uses import (
    TracedStep,
    added_powers,
    refusals,
    vouched_ops,
)

# Layers that hold what they were adapted to, such as a vocabulary.


layers = keras.layers


def adapted_layers(model, public):
    """Yield each layer that was adapted to private data, with what it keeps."""
    candidates, inner_lookups = layers_of(model), set()
    for layer in candidates:
        if isinstance(layer, layers.TextVectorization):
            inner_lookups.add(id(lookup_of(layer)))
    for layer in candidates:
        if layer.name not in public and id(layer) not in inner_lookups:
            state = _adapted_state(layer)
            if state:
                yield layer, state


def _adapted_state(layer):
    """Return what a layer has from adapt(), in words, or None."""
    if isinstance(layer, layers.Normalization):
        return "mean and variance" if _has_moments(layer) else None
    if isinstance(layer, layers.Discretization):
        # With `num_bins` they can come from adapt() alone.
        can_adapt = layer.num_bins is not None
        has_boundaries = layer.bin_boundaries is not None
        return "boundaries" if can_adapt and has_boundaries else None
    if isinstance(layer, layers.TextVectorization):
        layer = lookup_of(layer)
    if isinstance(layer, (layers.StringLookup, layers.IntegerLookup)):
        return "vocabulary" if _has_vocabulary(layer) else None
    # A layer of the user's: whether adapt() was called is not known.
    return "state" if callable(getattr(layer, "adapt", None)) else None


def _has_moments(layer):
    if layer.input_mean is not None or not layer.built:
        return False
    mean, variance = (
        np.asarray(v) for v in (layer.adapt_mean, layer.adapt_variance)
    )
    return bool(mean.any() or (variance != 1).any())


def _has_vocabulary(lookup):
    """Whether words were given by adapt() or set_vocabulary()."""
    if has_fixed_vocabulary(lookup):
        return False
    return len(lookup.get_vocabulary(include_special_tokens=False)) > 0


# State that a traced forward pass takes from its batch.


class AssignedState:
    """The variables whose new values depend on a traced function's batch."""

    # A count of the calls does not depend on it, nor does a seed.

    def __init__(self, concrete, batch, outputs=()):
        graph = concrete.graph
        self._types = type_step(
            graph,
            batch,
            variables=[],
            operations=graph.get_operations(),
            tensors=list(outputs),
        )
        self._handles = [
            handle
            for handle, tensor_type in self._types.assigned
            if handle is not None and _reveals_batch(tensor_type)
        ]

    def depends_on_batch(self, tensor):
        """Whether a tensor of the function depends on its arguments."""
        return _reveals_batch(self._types.of(tensor))

    def names(self, model):
        """Name the variables and tables that ops assign, without repetition."""
        # Keras's variables are not among them if the function was traced in a
        # `keras.StatelessScope`.
        names = {id(t): _state_name(t, model) for t in self._handles}
        return sorted(set(names.values()))


def _reveals_batch(tensor_type):
    """Whether a tensor of a type tells of the batch, if only of its size."""
    return not isinstance(tensor_type, Free) or bool(
        tensor_type.flags & BY_SIZE
    )


def _state_name(handle, model):
    """Return the name of what a captured handle belongs to."""
    if not Handle.is_variable(handle):
        return "a table"
    for owner in _owners(model):
        for name, variable in _owned_variables(owner):
            if variable.handle is handle:
                return f"{name!r} of {owner.name!r}"
    return "a tf.Variable"


def _owners(model):
    losses = [entry.loss for entry in entries_of(compiled_loss(model))]
    return [*layers_of(model), *losses]


def _owned_variables(owner):
    for variable in plain_variables([owner]):
        yield variable.name, variable
    for value in vars(owner).values():
        if hasattr(value, "path") and hasattr(value, "value"):
            yield value.path, value.value


# The proof that an example's gradient is its own, as far as there is one.


CLAIM = "each example's clipped gradient depends on that example alone"


@dataclasses.dataclass(frozen=True)
class ProofRecord:
    """How far it is proved that examples are apart, in all `fit`s so far.

    Attributes:
        ops: the numbers of ops of the steps that were proved.
        count: how many of them the user vouches for.
        kinds: the types of these ops.
        names: what `compile(vouched=...)` named.
        known: whether each `fit` has left its proof.
    """

    ops: tuple[int, ...] = ()
    count: int = 0
    kinds: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    known: bool = True

    @classmethod
    def from_record(
        cls, record: dict[str, Any] | None, begun: bool
    ) -> "ProofRecord":
        """Read what `to_dict` wrote; None is of an earlier version."""
        if record is None:
            return cls(known=not begun)
        return cls(
            tuple(record["ops"]),
            record["count"],
            tuple(record["kinds"]),
            tuple(record["names"]),
            record["known"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for JSON."""
        return dataclasses.asdict(self)

    def merged_with(self, other: "ProofRecord") -> "ProofRecord":
        """Return the record of both together."""

        def union(field):
            both = {*getattr(self, field), *getattr(other, field)}
            return tuple(sorted(both))

        return ProofRecord(
            union("ops"),
            max(self.count, other.count),
            union("kinds"),
            union("names"),
            self.known and other.known,
        )

    def in_words(self, names: Sequence[str] = ()) -> str:
        """Say it without a full stop; `names` are those to be vouched for."""
        if not self.known:
            return (
                f"Whether {CLAIM} was not recorded by the version that "
                "trained the model"
            )
        if not self.ops:
            exclusion = (
                f" but what you vouch for: {_format_names(names)}"
                if names
                else ""
            )
            return (
                f"{CLAIM[0].upper()}{CLAIM[1:]}: this will be proved for all "
                f"ops of the step before training begins{exclusion}"
            )
        number = " or ".join(map(str, self.ops))
        text = f"{CLAIM[0].upper()}{CLAIM[1:]}: proved for all {number} ops"
        if not self.count:
            return f"{text} of the step"
        return (
            f"{text} of the step but {self.count} ({', '.join(self.kinds)}), "
            "for which the user vouches by name: "
            f"compile(vouched={_format_names(self.names)})"
        )


def _format_names(names):
    return f"[{', '.join(map(repr, names))}]"


# The parts of a model that would break the privacy of its training.


#: There may be one example more or less; losses are looked at as fractions.
_EXAMPLE_OPTIONS = {
    "repeated": "example",
    "values": fractions.numerators,
}


def find_problems(model, batches, public_layers=()):
    """Return what breaks privacy, a list of sentences."""
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
    """Return how far it is proved that examples are apart."""
    vouched, ops = vouched_ops(_traced_step(model, batches), **_EXAMPLE_OPTIONS)
    names = model.vouched if vouched else ()
    op_types = sorted({op_type for op_type, _ in vouched})
    return ProofRecord((ops,), len(vouched), tuple(op_types), tuple(names))


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


def _optimizer_problems(model):
    is_multi = hasattr(model.optimizer, "optimizers")
    if is_multi and model.built and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    for optimizer in nested_optimizers(model.optimizer):
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
    if not isinstance(model, layers.Layer):
        return  # a function that makes views, or None
    for layer, state in adapted_layers(model, public):
        yield (
            f"layer {layer.name!r} ({type(layer).__name__}) was adapted to "
            f"data. If they are those to be protected, its {state} tells of "
            "them without noise: give it constants instead, as arguments when "
            "it is made. If they are public, say so by "
            f"PrivateTraining(public_layers=[{layer.name!r}])."
        )


def _loss_problems(model, batches):
    """Yield the problems that a trace of the model's step shows."""
    assigned, state_names, terms, uses_add_loss = _trace_forward(model, batches)
    for variable in assigned:
        yield (
            f"The forward pass assigns {variable.path!r} what depends on the "
            "batch: what a layer keeps of the samples is in the model without "
            "noise. Leave it out, or freeze it (trainable=False)."
        )
    for name in state_names:
        yield (
            f"The forward pass or the loss assigns {name} what depends on the "
            "batch: what is kept of the samples goes into later steps, and "
            "may be saved, without noise. Leave it out."
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
        state = AssignedState(concrete, batch, values)
    except ShapesUnknown as error:
        raise ValueError(messages.shapes_unknown(model, error)) from None
    weights = [v for v, value in assigned if state.depends_on_batch(value)]
    return weights, state.names(model), *losses
