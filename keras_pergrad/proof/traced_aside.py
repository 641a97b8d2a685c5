"""The types of a step whose own graph is not at hand.

The step is traced for its types alone and never runs. The trace is for any
number of samples where the model takes that. Findings are kept for each model.
"""

import dataclasses
import weakref
from typing import Any

import tensorflow as tf

from keras_pergrad.common.batches import is_composite
from keras_pergrad.keras_internals.losses.losses import (
    components,
    loss_tensors,
    recording_losses,
)
from keras_pergrad.keras_internals.models.building import states_of
from keras_pergrad.keras_internals.models.layers import shared_seed_state
from keras_pergrad.keras_internals.models.parts import compiled_loss, layers_of
from keras_pergrad.keras_internals.state.model import (
    preserve_layer_losses,
    preserve_random_state,
)
from keras_pergrad.keras_internals.tensorflow.settings import (
    in_xla,
    traced_functions,
)
from keras_pergrad.proof import messages
from keras_pergrad.proof.reductions import Reductions
from keras_pergrad.proof.step_proof import prove_step
from keras_pergrad.proof.tensor_types import BY_SIZE, DIVIDED, At, Free, Mixed

#: The name of a seed's state in Keras: every draw advances it.
SEED = "seed_generator_state"
#: Dependences on other samples, which a repeated pass would not reproduce.
_BATCH_FLAGS = BY_SIZE | DIVIDED
_FINDINGS = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class StepFindings:
    """What a trace tells of a model and a kind of batch.

    Attributes:
        refusals: texts.
        by_size: texts about what follows the number of samples.
        assigned_paths: the paths of the trainable variables that are assigned.
        assigns_unknown: whether variables or tables are assigned that Keras
            does not know.
        counter_indices: the indices, among the non-trainable variables, of the
            counters: they are assigned whatever the values of the batch are.
        added: by which power of the number of samples each `add_loss` term
            is divided: 0 of a sum, 1 of a mean. None: that is not defined.
        loss: the same of the loss, for its gradients.
        is_divided: whether the loss is divided by a sum over all masks, or the
            like.
        vouched_ops: the (type, name) of each op that the user vouches for.
        op_count: how many ops have a type.
    """

    refusals: tuple
    by_size: tuple
    assigned_paths: tuple
    assigns_unknown: bool
    counter_indices: tuple
    added: tuple
    loss: Any
    is_divided: bool
    vouched_ops: tuple
    op_count: int


def refusals(traced, repeated=None, once=False, *, values=None, alone=False):
    """Return the errors that say why samples cannot be kept separate.

    Args:
        traced: the step, in which nothing was traced yet.
        repeated: "sample" or "microbatch" if the forward pass is repeated for
            each: state that this must not change is refused, too. Layers may
            take statistics of each microbatch, as BatchNormalization does.
            "example": there may be one more or less of them.
        once: whether there is only one of them.
        values: `values(model, y, y_pred, sample_weight)` returns tensors of
            the losses that are computed for each microbatch alone: they must
            not depend on how many samples there are.
        alone: whether the only one makes an update by itself, so that it may
            depend on how many samples it has.
    """
    findings = _findings(traced, repeated, values)
    texts = list(findings.refusals)
    if not alone:
        texts += findings.by_size
    if repeated == "example":
        return [ValueError(text) for text in texts]
    if repeated and findings.assigned_paths and not once:
        texts.append(
            messages.assigns_weights(findings.assigned_paths, repeated)
        )
    if repeated and findings.assigns_unknown:
        texts.append(messages.unknown_assignments(traced.model, repeated))
    return [ValueError(text) for text in texts]


def vouched_ops(traced, repeated=None, values=None):
    """Return the (type, name) of ops vouched for, and the number of all ops."""
    findings = _findings(traced, repeated, values)
    return findings.vouched_ops, findings.op_count


def loss_power(traced, repeated):
    """Return k of a loss that is a sum over the samples, over n ** k.

    Raises:
        ValueError: it is no such sum.
    """
    findings = _findings(traced, repeated)
    if findings.loss is not None:
        return findings.loss
    if findings.is_divided:
        raise ValueError(messages.loss_follows_size(traced.model, repeated))
    raise ValueError(messages.NEITHER_SUM_NOR_MEAN)


def added_powers(traced, repeated="microbatch", values=None):
    """Return k of each `add_loss` term: 0 of a sum, 1 of a mean.

    `repeated` and `values` as for `refusals`.

    Raises:
        ValueError: one is neither.
    """
    findings = _findings(traced, repeated, values)
    if not {0, 1}.issuperset(findings.added):
        reasons = *findings.refusals, messages.NEITHER_SUM_NOR_MEAN
        raise ValueError(reasons[0])
    return findings.added


def counters(traced, values=None):
    """Return the variables that a pass changes whatever its batch is.

    Each microbatch must find them as the whole batch would. `values` as for
    `refusals`.
    """
    indices = _findings(traced, "microbatch", values).counter_indices
    return [traced.model.non_trainable_variables[k] for k in indices]


def tensor_spec(tensor):
    """Return the type of a part of the batch, for any number of samples."""
    if tensor is None:
        return None
    if is_composite(tensor):
        raise ValueError(messages.COMPOSITE)
    if tensor.shape.rank in (None, 0):
        return tf.TensorSpec(tensor.shape, tensor.dtype)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def _findings(traced, repeated, values=None):
    model = traced.model
    specs = tf.nest.map_structure(tensor_spec, traced.batch)
    layers = layers_of(model)
    key = (
        repeated,
        values,
        getattr(model, "vouched", ()),
        traced.training,
        traced.loss,
        _under_xla(model),
        str(specs),
        tuple(map(id, traced.variables)),
        tuple(layer.trainable for layer in layers),
        traced.layer_rules,
    )
    loss = compiled_loss(model)
    model_findings = _FINDINGS.setdefault(model, {})
    cached = model_findings.get(key)
    # Another `compile` makes another loss, whose findings may differ.
    if cached is None or cached[0]() is not (loss or model):
        findings = _trace_findings(traced, specs, repeated, values=values)
        model_findings[key] = cached = weakref.ref(loss or model), findings
    return cached[1]


def _trace_findings(traced, specs, repeated, *, values):
    error: Any = None
    # A step for any number of samples proves most. Where the model takes no
    # other number, it is traced with that of the batch.
    for number in dict.fromkeys([None, traced.number]):
        try:
            findings = _trace_step(
                traced, specs, number, repeated=repeated, values=values
            )
            if repeated != "sample" or number in (None, 0, 1):
                return findings
            # It may follow the number in a way that a single one hides.
            text = messages.number_must_be_known(traced.model, error)
            refusals = findings.refusals or (text,)
            return dataclasses.replace(findings, refusals=refusals)
        except (ValueError, TypeError, tf.errors.OpError) as failure:
            # The last one tells the sizes that the batch has.
            error = failure
    raise error


def _trace_step(traced, specs, number, *, repeated, values):
    all_findings = []
    flat_specs = [s for s in tf.nest.flatten(specs) if s is not None]

    def run(*tensors):
        tensors = iter(tensors)
        batch = tf.nest.map_structure(
            lambda s: None if s is None else next(tensors), specs
        )
        step, added_losses, terms = traced.another(batch), [], []
        with step:
            with recording_losses(step.model, added_losses):
                y_pred = step.forward(batch[0])
            if values is not None:
                terms = values(step.model, batch[1], y_pred, batch[2])
            loss = step.loss(
                step.model, *batch[:2], y_pred, batch[2], step.training
            )
        all_findings.append(
            _judge_step(
                step,
                y_pred,
                loss,
                added_losses=added_losses,
                terms=terms,
                repeated=repeated,
            )
        )

    with (
        traced_functions(),
        preserve_random_state(),
        preserve_layer_losses(traced.model),
    ):
        jit_compile = _under_xla(traced.model)
        function = tf.function(run, autograph=False, jit_compile=jit_compile)
        function.get_concrete_function(
            *[_with_number(s, number) for s in flat_specs]
        )
    return all_findings[0]


def _under_xla(model):
    """Whether XLA compiles the step, which may not be the one being traced."""
    return in_xla() or bool(model.compiled and model.jit_compile)


def _with_number(spec, number):
    if spec.shape.rank in (None, 0):
        return spec
    return tf.TensorSpec([number, *spec.shape[1:]], spec.dtype)


def _judge_step(traced, y_pred, loss, *, added_losses, terms, repeated):
    outputs = [t for t in loss_tensors(y_pred) if t.dtype.is_floating]
    uses = traced.uses()
    watched = [t for call in traced.calls for t in call.watched]
    uses.differentiate(loss, [*watched, *outputs])
    cotangents = list(map(uses.gradient_of, outputs))
    # A mean that a layer adds follows the number of samples.
    terms = [(t, _BATCH_FLAGS) for t in terms]
    terms += [(t, DIVIDED) for t in added_losses]
    terms = [(t, flags) for t, flags in terms if _is_in(traced.graph, t)]
    other_tensors = [*outputs, *(t for t, _ in terms)]
    other_tensors += [
        cotangent for cotangent in cotangents if cotangent is not None
    ]
    takes_batches = repeated == "microbatch"
    proof = prove_step(
        traced,
        uses,
        loss,
        others=other_tensors,
        as_batches=messages.OF_MICROBATCHES if takes_batches else (),
    )
    texts = [str(error) for _, error in proof.refusals]
    if not texts:
        texts += _output_refusals(
            traced, proof, outputs, cotangents=cotangents, repeated=repeated
        )
    if repeated == "example" and proof.types.typing.assumes_same_for_all:
        texts.append(messages.hinge_labels(traced.model))
    by_size = []
    if repeated and not texts:
        if any(proof.of(t).flags & _BATCH_FLAGS for t in outputs):
            by_size.append(messages.follows_size(traced.model, repeated))
        if any(proof.of(t).flags & flags for t, flags in terms):
            by_size.append(messages.loss_follows_size(traced.model, repeated))
    added = tuple(
        Reductions(proof.types).power(t) if _is_in(traced.graph, t) else None
        for t in added_losses
    )
    return StepFindings(
        refusals=tuple(texts),
        by_size=tuple(by_size),
        added=added,
        loss=Reductions(proof.types, of_gradients=True).power(loss),
        is_divided=bool(proof.of(loss).flags & DIVIDED),
        vouched_ops=tuple(proof.types.typing.vouched_ops),
        op_count=proof.types.typing.count,
        **_assignments(traced, proof, repeated),
    )


def _is_in(graph, tensor):
    return tf.is_tensor(tensor) and tensor.graph is graph


def _output_refusals(traced, proof, outputs, *, cotangents, repeated):
    """Yield why the outputs do not belong to a sample each."""
    model = traced.model
    for number, (output, cotangent) in enumerate(zip(outputs, cotangents)):
        tensor_types = [proof.of(output)]
        tensor_types += [] if cotangent is None else [proof.of(cotangent)]
        mixed = next((k for k in tensor_types if isinstance(k, Mixed)), None)
        if mixed is not None:
            _, error = proof.origin.refusal(mixed)
            yield str(error)
            return
        output_type = tensor_types[0]
        if (
            repeated == "sample"
            and isinstance(output_type, At)
            and (output_type.place != (0, 1, 1))
        ):
            yield messages.output_elsewhere(model, number, output)
            return


def _assignments(traced, proof, repeated):
    """Return the fields of a `StepFindings` about what the step assigns."""
    assigned_types = {
        None if handle is None else handle.ref(): assigned_type
        for handle, assigned_type in proof.types.assigned
    }

    def types_of(variable):
        parts = [part.handle.ref() for part in components(variable)]
        return [assigned_types[key] for key in parts if key in assigned_types]

    model = traced.model
    losses = compiled_loss(model)
    metrics = [*model.metrics, *getattr(losses, "metrics", ())]
    known_variables = [
        *model.variables,
        *(v for m in metrics for v in m.variables),
    ]
    seed = shared_seed_state()
    known_variables += [] if seed is None else [seed]
    if repeated == "microbatch":
        # A batch that does not stay whole is refused before.
        known_variables += states_of(model)
    known_handles = {
        part.handle.ref() for v in known_variables for part in components(v)
    }
    paths = tuple(v.path for v in traced.variables if types_of(v))
    counter_indices = tuple(
        k
        for k, v in enumerate(model.non_trainable_variables)
        if v.name != SEED
        and (variable_types := types_of(v))
        and all(
            isinstance(t, Free) and not t.flags & BY_SIZE
            for t in variable_types
        )
    )
    return {
        "assigned_paths": paths,
        "assigns_unknown": bool(set(assigned_types) - known_handles),
        "counter_indices": counter_indices,
    }
