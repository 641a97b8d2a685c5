"""The rules of ops: a factor from an op's other input and output gradient.

A rule takes a `Use` and the index of the weight among the op's inputs. It
returns `SampleGradients` of that input, or a string with the reason why it
does not serve the op.
"""

import tensorflow as tf

from keras_pergrad.samples import messages
from keras_pergrad.samples.one_by_one import one_by_one

_RULES = {}


class Use:
    """An op that takes tensors of weights and puts out samples.

    `deltas` are the gradients of the loss for the candidate's outputs, or None,
    `scale` is the factor by which the loss was multiplied, or None.

    Attributes:
        reason: why the op is differentiated for one sample after the other;
            None if it is not.
    """

    def __init__(self, candidate, seen, deltas, n, scale, uses, variables):
        self.candidate, self.seen, self.deltas = candidate, seen, deltas
        self.n, self.scale = n, scale
        self.uses, self.variables = uses, variables
        self.op = candidate.op
        self.loop = self.reason = None

    @property
    def type(self):
        """The op's type."""
        return self.op.type

    def variables_in(self, input_index):
        """Return the indices of the variables in an input of weights."""
        return sorted(self.uses.variables_in(self.op.inputs[input_index]))

    def alive(self, input_index):
        """Whether an input of weights may have a gradient."""
        return bool(self.uses.variables_in(self.op.inputs[input_index]))

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
        layout = self.seen.layout(k)
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
        return self.seen.input_layout(input_index)

    def is_complex(self, input_index):
        """Whether the input or an output is complex."""
        tensors = self.op.inputs[input_index], *self.candidate.outputs
        return any(t.dtype.is_complex for t in tensors)

    def is_variable(self, input_index):
        """Whether an input is a variable as it is, with no op in between."""
        tensor = self.op.inputs[input_index]
        read = tensor.op.type == "ReadVariableOp"
        return read or self.uses.is_handle(tensor)

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
