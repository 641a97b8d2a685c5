"""The rules of ops: a factor from an op's other input and output gradient.

A rule takes a `Use` and the index of the weight among the op's inputs. It
returns `SampleGradients` of that input, or a string with the reason why it
does not serve the op.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.samples import messages
from keras_pergrad.samples.one_by_one import one_by_one

_RULES = {}


@dataclasses.dataclass(eq=False)
class Use:
    """An op that takes tensors of weights and puts out samples.

    Attributes:
        op, type: the op, and its type.
        candidate: its `Candidate`.
        seen: its `UseTypes`.
        deltas: the gradients of the loss for the candidate's outputs, or None.
        n: the number of samples.
        scale: the factor by which the loss was multiplied, or None.
        uses: the `CandidateUses` of the step.
        variables: the trainable variables.
        reason: why the op is differentiated for one sample after the other;
            None if it is not.
        loop: what does so, or None.
    """

    op: tf.Operation
    type: str
    candidate: Any
    seen: Any
    deltas: list
    n: Any
    scale: Any
    uses: Any
    variables: list
    reason: str | None = None
    loop: Any = None

    def variables_in(self, input_index):
        """Return the indices of the variables in an input of weights."""
        return self.candidate.variables[input_index]

    def dtype(self, input_index):
        """Return the type in which the gradients of an input are found."""
        dtype = self.op.inputs[input_index].dtype
        if dtype.is_complex:
            return dtype
        k = self.variables_in(input_index)[0]
        return self.variables[k].value.dtype

    @property
    def layout(self):
        """The place of the samples in the first output."""
        return self.layout_of(0)

    def layout_of(self, k):
        """Return where the samples are in output k."""
        layout = self.seen.layouts[k]
        if layout is None:
            raise ValueError(
                messages.no_samples(self.candidate, self.uses, self.variables)
            )
        return layout

    def delta(self, dtype, k=0):
        """Get the gradient of output k, samples first, without loss scale."""
        delta = self.layout_of(k).first(self.deltas[k], self.n)
        return unscaled(delta, dtype, self.scale)

    def unmoved_delta(self, dtype, k=0):
        """Return the same without moving the samples."""
        return unscaled(self.deltas[k], dtype, self.scale)

    def input_layout(self, input_index):
        """Return where the samples are in an input; None: nowhere."""
        return self.seen.input_layouts.get(input_index)

    def is_complex(self, input_index):
        """Whether the input or an output is complex."""
        tensors = self.op.inputs[input_index], *self.candidate.outputs
        return any(t.dtype.is_complex for t in tensors)

    def is_variable(self, input_index):
        """Whether an input is a variable as it is, with no op in between."""
        tensor = self.op.inputs[input_index]
        if tensor.dtype == tf.resource:
            return self.uses.is_handle(tensor)
        return tensor.op.type == "ReadVariableOp"

    def attribute(self, name):
        """Return an attribute of the op."""
        return self.op.get_attr(name)


def unscaled(gradient, dtype, scale):
    """Return a gradient in this type and without the loss scale, if any."""
    gradient = tf.cast(gradient, dtype)
    return gradient if scale is None else gradient / tf.cast(scale, dtype)


def op_rule(*names):
    """Decorate a function as the rule of ops; a name may hold several."""
    return registered(_RULES, names)


def registered(rules, names):
    """Return a decorator that makes a function the rule of these ops."""
    types = " ".join(names).split()

    def register(function):
        for one in types:
            if one in rules:
                raise ValueError(
                    f"op {one} has a rule already: {rules[one].__name__} in "
                    f"{rules[one].__module__}. Extend that one. "
                    f"Received: {function.__name__}"
                )
        rules.update(dict.fromkeys(types, function))
        return function

    return register


def factor_of(use, input_index):
    """Return the per-sample gradients of a weight input of an op.

    An op without a rule is differentiated for one sample after the other.
    """
    reason = f"op {use.type} has no rule"
    if use.is_complex(input_index):
        # There the gradient of a product has the conjugate factor.
        reason = f"op {use.type} on complex numbers has no rule"
    elif use.type in _RULES:
        factor_or_reason = _RULES[use.type](use, input_index)
        if not isinstance(factor_or_reason, str):
            return factor_or_reason
        reason = f"op {use.type}: {factor_or_reason}"
    use.reason = reason
    return one_by_one(use, input_index)
