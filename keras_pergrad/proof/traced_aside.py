"""The types of a step whose own graph is not at hand.

The step is traced aside, with any number of samples where the model takes
that, and not run. The findings are kept as text with the model.
"""

import dataclasses
import weakref
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.data.batches import is_composite
from keras_pergrad.keras_internals.losses.losses import (
    components,
    loss_tensors,
    noting_losses,
)
from keras_pergrad.keras_internals.models.building import states_of
from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    layers_of,
    shared_seed_state,
)
from keras_pergrad.keras_internals.state.model import (
    losses_kept,
    random_state_kept,
)
from keras_pergrad.keras_internals.tensorflow.settings import (
    in_xla,
    traced_functions,
)
from keras_pergrad.proof import messages
from keras_pergrad.proof.op_facts import DRAWS
from keras_pergrad.proof.step_proof import StepProof
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    DIVIDED,
    At,
    Free,
    Mixed,
    Total,
)
from keras_pergrad.uses.layer_rules.registry import find_rule

#: The name of a seed's state in Keras: every draw advances it.
SEED = "seed_generator_state"
#: What a sample must not depend on where its pass is repeated with others.
_OF_OTHERS = BY_SIZE | DIVIDED
_FINDINGS = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class StepFindings:
    """What a trace tells of a model and a kind of batch.

    Attributes:
        refusals: texts.
        by_size: texts about what follows the number of samples.
        assigned: the paths of the trainable variables that are assigned.
        counted: whether variables or tables are assigned that Keras does not
            know.
        counting: the indices, among the non-trainable variables, of the
            counters: they are assigned whatever the values of the batch are.
        divided: whether the loss is no plain sum or mean: it is divided by a
            sum over all masks, or the like.
        vouched: the (type, name) of each op that the user vouches for.
        count: how many ops have a type.
    """

    refusals: tuple
    by_size: tuple
    assigned: tuple
    counted: bool
    counting: tuple
    divided: bool
    vouched: tuple
    count: int


def refusals(traced, repeated=None, once=False, values=None, alone=False):
    """Return the errors that tell why samples cannot be told apart.

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
    if repeated and findings.assigned and not once:
        texts.append(messages.assigns_weights(findings.assigned, repeated))
    if repeated and findings.counted:
        texts.append(messages.counts(traced.model, repeated))
    return [ValueError(text) for text in texts]


def vouched_ops(traced, repeated=None, values=None):
    """Return the (type, name) of ops vouched for, and the number of all ops."""
    findings = _findings(traced, repeated, values)
    return findings.vouched, findings.count


def divides(traced, repeated):
    """Whether the loss is divided by sums over all masks, or the like."""
    return _findings(traced, repeated).divided


def counters(traced, values=None):
    """Return the variables that a pass changes whatever its batch is.

    Each microbatch must find them as the whole batch would. `values` as for
    `refusals`.
    """
    counting = _findings(traced, "microbatch", values).counting
    return [traced.model.non_trainable_variables[k] for k in counting]


def spec(tensor):
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
    specs = tf.nest.map_structure(spec, traced.batch)
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
        tuple((layer.trainable, find_rule(layer)) for layer in layers),
    )
    loss = compiled_loss(model)
    kept = _FINDINGS.setdefault(model, {})
    known = kept.get(key)
    if known is None or known[0]() is not (loss or model):
        findings = _look(traced, specs, repeated, values)
        kept[key] = known = weakref.ref(loss or model), findings
    return known[1]


def _look(traced, specs, repeated, values):
    error: Any = None
    for number in dict.fromkeys([None, traced.number]):
        try:
            return _traced(traced, specs, number, repeated, values)
        except (ValueError, TypeError, tf.errors.OpError) as failure:
            error = error or failure
    raise error


def _traced(traced, specs, number, repeated, values):
    all_findings = []
    flat = [s for s in tf.nest.flatten(specs) if s is not None]

    def run(*given):
        given = iter(given)
        batch = tf.nest.map_structure(
            lambda s: None if s is None else next(given), specs
        )
        one, added, terms = traced.another(batch), [], []
        with one:
            with noting_losses(one.model, added):
                y_pred = one.forward(batch[0])
            if values is not None:
                terms = values(one.model, batch[1], y_pred, batch[2])
            loss = one.loss(
                one.model, *batch[:2], y_pred, batch[2], one.training
            )
        # A mean that a layer adds follows the number of samples.
        watched = [(t, _OF_OTHERS) for t in terms]
        watched += [(t, DIVIDED) for t in added]
        all_findings.append(_judged(one, y_pred, loss, watched, repeated))

    with traced_functions(), random_state_kept(), losses_kept(traced.model):
        xla = _under_xla(traced.model)
        function = tf.function(run, autograph=False, jit_compile=xla)
        function.get_concrete_function(*[_of_number(s, number) for s in flat])
    return all_findings[0]


def _under_xla(model):
    """Whether XLA compiles the step, which may not be the one being traced."""
    return in_xla() or bool(model.compiled and model.jit_compile)


def _of_number(one, number):
    if one.shape.rank in (None, 0):
        return one
    return tf.TensorSpec([number, *one.shape[1:]], one.dtype)


def _judged(traced, y_pred, loss, terms, repeated):
    outputs = [t for t in loss_tensors(y_pred) if t.dtype.is_floating]
    uses = traced.uses()
    watched = [t for call in traced.calls for t in call.watched]
    *gradients, at_outputs = uses.gradients(loss, [*watched, *outputs])
    at_rules = at_outputs[: len(watched)]
    deltas = at_outputs[len(watched) :]
    terms = [
        (t, flags)
        for t, flags in terms
        if tf.is_tensor(t) and t.graph is traced.graph
    ]
    others = [*outputs, *(t for t, _ in terms)]
    others += [d for d in deltas if d is not None]
    proof = StepProof(
        traced,
        uses,
        (*gradients, at_rules),
        loss,
        others,
        messages.OF_MICROBATCHES if repeated == "microbatch" else (),
    )
    texts = [str(error) for _, error in proof.refusals]
    if not texts:
        texts += _of_outputs(traced, proof, outputs, deltas, repeated)
    if repeated == "example" and proof.types.told:
        texts.append(messages.labels_told(traced.model))
    by_size = []
    if repeated and not texts:
        if any(proof.of(t).flags & _OF_OTHERS for t in outputs):
            by_size.append(messages.follows_size(traced.model, repeated))
        if any(proof.of(t).flags & flags for t, flags in terms):
            by_size.append(messages.loss_follows_size(traced.model, repeated))
    vouched = tuple(proof.types.vouched_ops), proof.types.count
    refused = tuple(texts), tuple(by_size)
    kind = proof.of(loss)
    alone = isinstance(kind, Total) and not kind.flags & DIVIDED
    return StepFindings(
        *refused, *_assigned(traced, proof, repeated), not alone, *vouched
    )


def _of_outputs(traced, proof, outputs, deltas, repeated):
    """Yield why the outputs do not belong to a sample each."""
    model = traced.model
    for op in traced.operations if repeated == "sample" else ():
        if op.type in DRAWS:
            yield messages.draws(model, proof.origin.layer(op.name), op)
            return
    for number, (output, delta) in enumerate(zip(outputs, deltas)):
        kinds = [proof.of(output)]
        kinds += [] if delta is None else [proof.of(delta)]
        bad = next((k for k in kinds if isinstance(k, Mixed)), None)
        if bad is not None:
            _, error = proof.origin.refusal(bad)
            yield str(error)
            return
        kind = kinds[0]
        if (
            repeated == "sample"
            and isinstance(kind, At)
            and (kind.place != (0, 1, 1))
        ):
            yield messages.output_elsewhere(model, number, output)
            return


def _assigned(traced, proof, repeated):
    """Return `assigned`, `counted` and `counting` of a `StepFindings`."""
    given = {id(handle): kind for handle, kind in proof.types.assigned}

    def kinds(variable):
        parts = [id(part.handle) for part in components(variable)]
        return [given[key] for key in parts if key in given]

    model = traced.model
    losses = compiled_loss(model)
    metrics = [*model.metrics, *getattr(losses, "metrics", ())]
    known = [*model.variables, *(v for m in metrics for v in m.variables)]
    seed = shared_seed_state()
    known += [] if seed is None else [seed]
    if repeated == "microbatch":
        # A batch that does not stay whole is refused before.
        known += states_of(model)
    places = {id(p.handle) for v in known for p in components(v)}
    paths = tuple(v.path for v in traced.variables if kinds(v))
    counting = tuple(
        k
        for k, v in enumerate(model.non_trainable_variables)
        if v.name != SEED
        and (held := kinds(v))
        and all(isinstance(t, Free) and not t.flags & BY_SIZE for t in held)
    )
    return paths, bool(set(given) - places), counting
