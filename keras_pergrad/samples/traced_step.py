"""Per-sample gradients of one forward and one backward pass.

The forward pass is Keras's own, traced once. Its graph shows in which ops
weights meet the data (`use_search`). One backward pass gives the gradients of
the outputs of these ops. The ops' rules make factors of these gradients.
"""

import contextlib

import tensorflow as tf

from keras_pergrad.factors import join, widened
from keras_pergrad.keras_internals.batches import first_tensor, sample_count
from keras_pergrad.keras_internals.layer_parts import noting_scopes
from keras_pergrad.keras_internals.losses import total_loss
from keras_pergrad.keras_internals.model_parts import layers_of
from keras_pergrad.keras_internals.penalties import without_gradients
from keras_pergrad.samples import weight_paths
from keras_pergrad.samples.forward import Forward
from keras_pergrad.samples.op_rules import Use, factor_of
from keras_pergrad.samples.rule_calls import factors_of
from keras_pergrad.samples.step_proof import StepProof
from keras_pergrad.samples.use_search import CandidateUses
from keras_pergrad.samples.weight_parts import merged


class TracedStep:
    """One forward and one backward pass, with the part of every sample.

    It works in the graph of a `tf.function` that is being traced.

    Args:
        model: a built `keras.Model`.
        batch: (x, y, sample_weight) of `loss`.
        training: whether its layers are called for training.
        loss: `loss(model, x, y, y_pred, sample_weight, training)`, the loss
            of a trace aside; default: the compiled one.
        refuse: `refuse(layer or None, error)` is told of each layer without
            per-sample gradients; default: the error is raised.

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
        self, model, batch, training=True, loss=total_loss, refuse=None
    ):
        self.model = model
        self.batch = batch
        self.training = training
        self.loss = loss
        self.refuse = refuse or _raise
        self.variables = list(model.trainable_variables)
        self._stack = contextlib.ExitStack()
        self._forward = Forward(model, training)
        self.operations = []
        #: Name scopes of the calls of layers → layer.
        self.scopes = {}
        #: The `StepProof`, once `parts` was asked for.
        self.proof = None

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_gradients(self.variables))
            stack.enter_context(
                noting_scopes(layers_of(self.model), self.scopes)
            )
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
        return type(self)(self.model, batch, self.training, self.loss)

    @property
    def number(self):
        """The number of samples; None if it is not known while tracing."""
        return first_tensor(self.batch[0]).shape[0]

    @property
    def graph(self):
        """The graph in which it works."""
        return self._forward.graph

    def uses(self):
        """Return what the graph shows so far."""
        forward = self._forward
        return CandidateUses(
            self.operations,
            forward.graph,
            [t for t in tf.nest.flatten(self.batch) if tf.is_tensor(t)],
            self.variables,
            [call.ops for call in forward.calls],
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
        for k, factor, _ in self.parts(loss, scale):
            by_variable[k].append(factor)
        factors = [_joined(parts) if parts else None for parts in by_variable]
        return [
            None if f is None else widened(f, v.value.dtype)
            for v, f in zip(self.variables, factors)
        ]

    def parts(self, loss, scale=None):
        """Yield (index of the variable, factor, `Use` or `RuleCall`)."""
        uses = self.uses()
        watched = [t for call in self.calls for t in call.watched]
        gradients = at_ops, at_rules = uses.gradients(loss, watched)
        self.proof = proof = StepProof(self, uses, gradients, loss)
        for layer, error in proof.refusals:
            self.refuse(layer, error)
        at_ops = {id(c): d for c, d in zip(uses.candidates, at_ops)}
        at_rules = iter(at_rules)
        n = self.number
        if n is None:
            n = sample_count(self.batch[0])
        for call in self.calls:
            deltas = [next(at_rules) for _ in call.watched]
            layouts = proof.watched_layouts(call)
            given = self, deltas, layouts, n, scale, uses
            for k, factor in factors_of(call, *given):
                yield k, factor, call
        for candidate, seen in proof.choose_uses():
            deltas = at_ops[id(candidate)]
            if all(d is None for d in deltas):
                continue
            op = candidate.op
            given = deltas, n, scale, uses, self.variables
            use = Use(op, op.type, candidate, seen, *given)
            try:
                yield from self._by_op(use)
            except ValueError as error:
                self.refuse(None, error)

    def _by_op(self, use):
        for input_index in use.candidate.weights:
            factor, group = factor_of(use, input_index), []
            direct = use.is_variable(input_index)
            for k in use.candidate.variables[input_index]:
                given = factor, use, input_index, k, group
                pulled = factor if direct else weight_paths.to_variable(*given)
                if pulled is not None:
                    yield k, pulled, use


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


def _joined(parts):
    """Return the factor of a variable's only use, or of all its uses."""
    return parts[0] if len(parts) == 1 else join(merged(parts))


def _raise(layer, error):
    del layer
    raise error
