"""Per-sample gradients of one forward and one backward pass.

The forward pass is Keras's own, traced once. Its graph shows in which ops
weights meet the data (`search`). One backward pass gives the gradients of
the outputs of these ops. The ops' rules make factors of these gradients.
"""

import contextlib
import dataclasses
import functools
import inspect
import math

import keras
import tensorflow as tf

from keras_pergrad.common.batches import first_tensor, sample_count
from keras_pergrad.factors import Widened, join
from keras_pergrad.factors.written_out import HALF
from keras_pergrad.keras_internals.data.views import call_views
from keras_pergrad.keras_internals.graphs.gradients import drop_overrides
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.keras_internals.losses.regularizers import without_gradients
from keras_pergrad.keras_internals.models.parts import (
    RECURRENT,
    layers_of,
    overwritten_weights,
    patched_attribute,
    recording_scopes,
)
from keras_pergrad.keras_internals.tensorflow.cudnn import loops_instead
from keras_pergrad.keras_internals.tensorflow.settings import (
    in_xla,
    inline_functions,
)
from keras_pergrad.proof import messages
from keras_pergrad.proof.layout import sizes_of
from keras_pergrad.proof.step_proof import prove_step
from keras_pergrad.uses import weight_paths
from keras_pergrad.uses.layer_rules.registry import find_rule
from keras_pergrad.uses.one_by_one import warn_once
from keras_pergrad.uses.op_rules import Use, factor_of, unscaled
from keras_pergrad.uses.search import CandidateUses
from keras_pergrad.uses.weight_paths import merge_parts


@dataclasses.dataclass
class RuleCall:
    """One call of a layer that its rule serves.

    Attributes:
        layer: the layer.
        rule: its `Rule`.
        ops: the ops that were created in the call, a tuple.
        inputs: what the rule needs in addition to the gradients.
        watched: the tensors whose gradients it needs.
    """

    layer: keras.layers.Layer
    rule: object
    ops: tuple
    inputs: object
    watched: list


def layer_factors(call, traced, *, deltas, layouts, n, scale, uses):
    """Yield (index of the variable, factor) by the rule of a call's layer."""
    if all(d is None for d in deltas):
        return
    dtype = call.layer.variable_dtype
    deltas = [
        unscaled(tf.zeros_like(t) if d is None else d, dtype, scale)
        for t, d in zip(call.watched, deltas)
    ]
    inputs = tf.nest.map_structure(lambda t: _cast(t, dtype), call.inputs)
    # A tensor without a layout has no samples, nor has its gradient.
    layout, *other_layouts = set(layouts) - {None} or {None}
    if other_layouts or layout is None or not layout.leads:
        is_merged = layout is not None and not layout.axis
        if other_layouts or not is_merged or not call.rule.by_position:
            error = ValueError(messages.misplaced(call.layer))
            traced.refuse(call.layer, error)
            return
        inputs, deltas = tf.nest.map_structure(
            lambda t: _merge_positions(t, layout, n), (inputs, deltas)
        )
    seen_indices = set()
    for variable, factor in call.rule.gradients(
        call.layer, inputs, deltas[0] if len(deltas) == 1 else deltas
    ):
        k = traced.index_of(variable)
        if k is not None:
            seen_indices.add(k)
            yield k, factor
    missing = uses.claimed.get(call.ops, set()) - seen_indices
    if missing:
        paths = sorted(repr(traced.variables[k].path) for k in missing)
        message = messages.incomplete_rule(call.layer, ", ".join(paths))
        raise ValueError(message)


def _cast(tensor, dtype):
    if tf.is_tensor(tensor) and tensor.dtype.is_floating:
        return tf.cast(tensor, dtype)
    return tensor


def _merge_positions(tensor, layout, n):
    """Return (n · positions, T, ...) as (n, positions · T, ...)."""
    if not tf.is_tensor(tensor):
        return tensor
    samples_first = layout.first(tensor, n)
    sizes = sizes_of(samples_first)
    trailing = sizes[2 + layout.added_axes :]
    positions = sizes[1 : 2 + layout.added_axes]
    if all(isinstance(size, int) for size in positions):
        count = math.prod(positions)
    else:
        count = tf.reduce_prod(tf.stack(positions))
    merged = tf.reshape(samples_first, [n, count, *trailing])
    static_count = count if isinstance(count, int) else None
    merged.set_shape([None, static_count, *tensor.shape[2:]])
    return merged


class Forward:
    """`model(x)`, in the graph that is being built, as Keras calls it.

    Only layers that have a rule (recurrent layers, and layers of the user) are
    called through this rule, and recurrent layers that have none run their
    loop on GPUs, too. They are always restored afterwards.

    Attributes:
        graph: the graph.
        start, stop: how many ops it had before and after.
        outputs: what the model returned.
        calls: a list of `RuleCall`.
    """

    def __init__(self, model, layers, training=True):
        self.model, self._layers = model, layers
        self.training = training
        self.graph, self.start, self.stop = None, 0, 0
        self.outputs = None
        self.calls = []
        self._in_rule_call = False

    def __call__(self, x):
        self.graph = tf.compat.v1.get_default_graph()
        self.start = len(self.graph.get_operations())
        with contextlib.ExitStack() as stack:
            if in_xla():
                # XLA has no gradient for the call of a function.
                stack.enter_context(inline_functions())
            without_rule = []
            for layer in self._layers:
                rule = find_rule(layer) if layer.trainable_variables else None
                if rule is None and isinstance(layer, RECURRENT):
                    without_rule.append(layer)
                elif rule is not None:
                    call = self._wrap_call(layer, rule)
                    stack.enter_context(patched_attribute(layer, "call", call))
            if without_rule:
                stack.enter_context(loops_instead(without_rule))
            self.outputs = call_views(self.model, x, self.training)
        self.stop = len(self.graph.get_operations())
        return self.outputs

    def _wrap_call(self, layer, rule):
        original = layer.call

        @functools.wraps(original)
        def call(*args, **kwargs):
            in_inner_graph = tf.compat.v1.get_default_graph() is not self.graph
            # Inside another rule's call, or in the body of a loop, the ops are
            # served by that rule, or one by one.
            is_served = not (self._in_rule_call or in_inner_graph)
            if is_served:
                args, kwargs = _first_positional(original, args, kwargs)
                reason = rule.reason_against(layer, *args, **kwargs)
                is_served = reason is None
            if not is_served:
                with loops_instead([layer]):
                    return original(*args, **kwargs)
            return self._record_call(
                layer, rule, original, args=args, kwargs=kwargs
            )

        call.rule = rule
        return call

    def _record_call(self, layer, rule, original, *, args, kwargs):
        op_count = len(self.graph.get_operations())
        watched = []

        def watch(tensor):
            # A copy, so that other reads of the tensor are not counted.
            watched.append(tf.identity(tensor))
            return watched[-1]

        self._in_rule_call = True
        try:
            if rule.forward is None:
                outputs, inputs = _linear(
                    layer, original, args, kwargs=kwargs, watch=watch
                )
            else:
                outputs, inputs = rule.forward(
                    layer, original, watch, *args, **kwargs
                )
        finally:
            self._in_rule_call = False
        ops = tuple(self.graph.get_operations()[op_count:])
        self.calls.append(
            RuleCall(layer, rule, ops, inputs=inputs, watched=watched)
        )
        if rule.forward is None:
            # Not among `ops`: the activation may be a layer with weights.
            activation = getattr(layer, "activation", None)
            return outputs if activation is None else activation(outputs)
        return outputs


def _linear(layer, original, args, *, kwargs, watch):
    """Call the layer itself, without its activation."""
    with contextlib.ExitStack() as stack:
        if getattr(layer, "activation", None) is not None:
            linear = keras.activations.linear
            stack.enter_context(patched_attribute(layer, "activation", linear))
        outputs = watch(original(*args, **kwargs))
    return outputs, args[0] if args else next(iter(kwargs.values()))


def _first_positional(call, args, kwargs):
    """Return the arguments, the first one positional, as rules expect it."""
    name = next(iter(inspect.signature(call).parameters), None)
    if args or name not in kwargs:
        return args, kwargs
    return (kwargs[name],), {k: v for k, v in kwargs.items() if k != name}


class TracedStep:
    """One forward and one backward pass, with the part of every sample.

    It works in the graph of a `tf.function` that is being traced.

    Args:
        model: a built `keras.Model`.
        batch: (x, y, sample_weight) of `loss`.
        training: whether its layers are called for training.
        loss: `loss(model, x, y, y_pred, sample_weight, training)`, the loss
            of a trace aside; default: the compiled one.
        refuse: `refuse(layer or None, error)` is called for each layer
            without per-sample gradients; default: the error is raised.

    Example:

    ```python
    traced = TracedStep(model, (x, y, sample_weight))
    with traced:
        y_pred = traced.forward(x)
        loss = ...
    factors = traced.sample_gradients(loss)
    ```
    """

    def __init__(
        self, model, batch, training=True, *, loss=total_loss, refuse=None
    ):
        self.model = model
        self.batch = batch
        self.training = training
        self.loss = loss
        self.refuse = refuse or _raise
        self.variables = list(model.trainable_variables)
        self._stack = contextlib.ExitStack()
        #: The layers of the model, in it and in one another.
        self.layers = layers_of(model)
        self._forward = Forward(model, self.layers, training)
        self.operations = []
        #: The ops that `drop_overrides` has changed under XLA.
        self.overridden = []
        #: Name scopes of the calls of layers → layer.
        self.scopes = {}
        #: The `StepProof`, once `parts` was asked for.
        self.proof = None
        #: Name → type of the ops differentiated for one sample after another.
        self.one_by_one = {}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_gradients(self.variables))
            stack.enter_context(recording_scopes(self.layers, self.scopes))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()
        operations = self.graph.get_operations()
        self.operations = operations[self._forward.start :]

    def forward(self, x):
        """Return `model(x)`, and watch it."""
        return self._forward(x)

    def another(self, batch):
        """Return a step like this for another batch."""
        return type(self)(self.model, batch, self.training, loss=self.loss)

    @property
    def number(self):
        """The number of samples; None if it is not known while tracing."""
        return first_tensor(self.batch[0]).shape[0]

    def index_of(self, variable):
        """Return the place of a trainable variable; None: it is none."""
        same = (k for k, v in enumerate(self.variables) if v is variable)
        return next(same, None)

    @property
    def layer_rules(self):
        """The rule of each layer, or None."""
        return tuple(map(find_rule, self.layers))

    @property
    def graph(self):
        """The graph in which it works."""
        return self._forward.graph

    def uses(self):
        """Return what the graph shows so far."""
        forward = self._forward
        overridden = drop_overrides(self.operations)
        self.overridden += overridden if in_xla() else []
        return CandidateUses(
            self.operations,
            forward.graph,
            [t for t in tf.nest.flatten(self.batch) if tf.is_tensor(t)],
            variables=self.variables,
            claimed=[call.ops for call in forward.calls],
        )

    @property
    def start(self):
        """How many ops its graph had before the forward pass."""
        return self._forward.start

    @property
    def stop(self):
        """How many ops its graph had after the forward pass."""
        return self._forward.stop

    @property
    def outputs(self):
        """What the model returned."""
        return self._forward.outputs

    @property
    def loss_ops(self):
        """The ops after the forward pass, so far: those of the loss."""
        return self.graph.get_operations()[self._forward.stop :]

    @property
    def calls(self):
        """The calls that rules of their layers serve."""
        return self._forward.calls

    def sample_gradients(self, loss, scale=None):
        """Return the `SampleGradients` of each variable, or None: no gradient.

        `scale` is the factor by which the loss was multiplied (loss scaling).
        """
        by_variable = [[] for _ in self.variables]
        for k, factor, use in self.parts(loss, scale):
            by_variable[k].append(factor)
            if getattr(use, "reason", None) is not None:
                self.one_by_one[use.op.name] = use.type
                warn_once(self.model, use)
        return [
            factor_of_uses(parts, v) if parts else None
            for v, parts in zip(self.variables, by_variable)
        ]

    def parts(self, loss, scale=None):
        """Yield (index of the variable, factor, `Use` or `RuleCall`)."""
        for layer, error in overwritten_weights(self.model):
            self.refuse(layer, error)
        uses = self.uses()
        watched = [t for call in self.calls for t in call.watched]
        uses.differentiate(loss, watched)
        self.proof = proof = prove_step(self, uses, loss)
        refused = False
        for layer, error in proof.refusals:
            refused = True
            self.refuse(layer, error)
        n = self.number
        if n is None:
            n = sample_count(self.batch[0])
        for call in self.calls:
            call_factors = layer_factors(
                call,
                self,
                deltas=list(map(uses.gradient_of, call.watched)),
                layouts=proof.watched_layouts(call),
                n=n,
                scale=scale,
                uses=uses,
            )
            for k, factor in call_factors:
                yield k, factor, call
        for candidate, use_types in proof.choose_uses():
            deltas = uses.cotangents(candidate)
            if all(d is None for d in deltas):
                continue
            op = candidate.op
            use = Use(
                op,
                type=op.type,
                candidate=candidate,
                use_types=use_types,
                deltas=deltas,
                n=n,
                scale=scale,
                uses=uses,
                variables=self.variables,
            )
            try:
                yield from self._op_factors(use)
            except ValueError as error:
                # Behind a refusal it may follow from that.
                layer = None if refused else proof.origin.layer(op.name)
                self.refuse(layer, error)

    def _op_factors(self, use):
        for input_index in use.candidate.weights:
            factor, group = factor_of(use, input_index), []
            is_variable = use.is_variable(input_index)
            for k in use.candidate.variables[input_index]:
                variable_factor = factor
                if not is_variable:
                    variable_factor = weight_paths.to_variable(
                        factor, use, input_index=input_index, k=k, group=group
                    )
                if variable_factor is not None:
                    yield k, variable_factor, use


def sum_of_outputs(model, x, y, y_pred, sample_weight, training):
    """Return a loss for models without one: the sum of all outputs."""
    del model, x, y, sample_weight, training
    return tf.add_n(
        [
            tf.reduce_sum(tf.cast(t, tf.float32))
            for t in tf.nest.flatten(y_pred)
            if tf.is_tensor(t) and t.dtype.is_floating
        ]
    )


def factor_of_uses(parts, variable):
    """Return the factor of a variable, wide enough for norms.

    Args:
        parts: the `SampleGradients` of each of its uses, at least one.
        variable: the variable.
    """
    factor = parts[0] if len(parts) == 1 else join(merge_parts(parts))
    dtype = variable.value.dtype
    return Widened(factor, dtype) if dtype in HALF else factor


def _raise(layer, error):
    del layer
    raise error
