"""Per-sample gradients of one forward and one backward pass.

The forward pass is Keras's own, traced once. Its graph shows in which ops
weights meet the data (`search`). One backward pass gives the gradients of
the outputs of these ops. The ops' rules make factors of these gradients.
"""

import contextlib
from typing import Any

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
from keras_pergrad.proof.step_proof import prove_step
from keras_pergrad.uses.layer_rules.calls import layer_factors, through_rule
from keras_pergrad.uses.layer_rules.registry import find_rule
from keras_pergrad.uses.one_by_one import warn_once
from keras_pergrad.uses.op_rules import Use, factor_of
from keras_pergrad.uses.search import CandidateUses
from keras_pergrad.uses.weight_paths import merge_parts, to_variable


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
        #: The graph, and what the model returned in it.
        self.graph: Any = None
        self.outputs: Any = None
        #: How many ops the graph had before the forward pass and after it.
        self.start, self.stop = 0, 0
        #: A list of `RuleCall`; `in_rule_call`: whether one is being made.
        self.calls, self.in_rule_call = [], False
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
        self.operations = operations[self.start :]

    def forward(self, x):
        """Return `model(x)`, as Keras calls it, and watch it.

        Only layers that have a rule (recurrent layers, and layers of the user)
        are called through this rule, and recurrent layers that have none run
        their loop on GPUs, too. They are always restored afterwards.
        """
        self.graph = tf.compat.v1.get_default_graph()
        self.start = len(self.graph.get_operations())
        with contextlib.ExitStack() as stack:
            if in_xla():
                # XLA has no gradient for the call of a function.
                stack.enter_context(inline_functions())
            without_rule = []
            for layer in self.layers:
                rule = find_rule(layer) if layer.trainable_variables else None
                if rule is None and isinstance(layer, RECURRENT):
                    without_rule.append(layer)
                elif rule is not None:
                    call = through_rule(self, layer, rule)
                    stack.enter_context(patched_attribute(layer, "call", call))
            if without_rule:
                stack.enter_context(loops_instead(without_rule))
            self.outputs = call_views(self.model, x, self.training)
        self.stop = len(self.graph.get_operations())
        return self.outputs

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

    def uses(self):
        """Return what the graph shows so far."""
        overridden = drop_overrides(self.operations)
        if overridden and in_xla():
            self.overridden += overridden
        return CandidateUses(
            self.operations,
            self.graph,
            [t for t in tf.nest.flatten(self.batch) if tf.is_tensor(t)],
            variables=self.variables,
            claimed=[call.ops for call in self.calls],
        )

    @property
    def loss_ops(self):
        """The ops after the forward pass, so far: those of the loss."""
        return self.graph.get_operations()[self.stop :]

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
            for k, factor in layer_factors(call, self, uses, n=n, scale=scale):
                yield k, factor, call
        for candidate, use_types in proof.choose_uses():
            deltas = candidate.cotangents
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
            tensor = use.op.inputs[input_index]
            is_read = tensor.op.type == "ReadVariableOp"
            is_variable = is_read or use.uses.is_handle(tensor)
            for k in use.candidate.variables[input_index]:
                variable_factor = factor
                if not is_variable:
                    variable_factor = to_variable(
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
