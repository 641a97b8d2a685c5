"""The rules of ops: a factor from an op's other input and output gradient.

A rule takes a `Use` and the index of the weight among the op's inputs. It
returns `SampleGradients` of that input, or a string with the reason why it
does not serve the op.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.factors import Full, Rows, Sum
from keras_pergrad.factors.written_out import sizes_of
from keras_pergrad.proof import messages
from keras_pergrad.uses.one_by_one import one_by_one

_RULES = {}


@dataclasses.dataclass(eq=False)
class Use:
    """An op that takes tensors of weights and puts out samples.

    Attributes:
        op, type: the op, and its type.
        candidate: its `Candidate`.
        use_types: its `UseTypes`.
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
    use_types: Any
    deltas: list
    n: Any
    scale: Any
    uses: Any
    variables: list
    reason: str | None = None
    loop: Any = None

    def variable(self, input_index):
        """Return the first of the variables in an input of weights."""
        return self.variables[self.candidate.variables[input_index][0]]

    def dtype(self, input_index):
        """Return the type in which the gradients of an input are found."""
        dtype = self.op.inputs[input_index].dtype
        if dtype.is_complex:
            return dtype
        return self.variable(input_index).value.dtype

    @property
    def layout(self):
        """The place of the samples in the first output."""
        return self.layout_of(0)

    def layout_of(self, k):
        """Return where the samples are in output k."""
        layout = self.use_types.layouts[k]
        if layout is None:
            raise ValueError(
                messages.no_samples(self.candidate, self.uses, self.variables)
            )
        return layout

    def delta(self, dtype):
        """Get the first output's gradient, samples first, unscaled."""
        delta = self.layout.first(self.deltas[0], self.n)
        return unscaled(delta, dtype, self.scale)

    def delta_in_place(self, dtype):
        """Get the same gradient, with the samples where the output has them."""
        return unscaled(self.deltas[0], dtype, self.scale)

    def input_layout(self, input_index):
        """Return where the samples are in an input; None: nowhere."""
        return self.use_types.input_layouts.get(input_index)

    def is_complex(self, input_index):
        """Whether the input or an output is complex."""
        tensors = self.op.inputs[input_index], *self.candidate.outputs
        return any(t.dtype.is_complex for t in tensors)

    def attribute(self, name):
        """Return an attribute of the op."""
        return self.op.get_attr(name)


def unscaled(gradient, dtype, scale):
    """Return a gradient in this type and without the loss scale, if any."""
    gradient = tf.cast(gradient, dtype)
    return gradient if scale is None else gradient / tf.cast(scale, dtype)


def op_rule(*names):
    """Decorate a function as the rule of ops; a name may hold several."""
    return rule_registrar(_RULES, names)


def rule_registrar(rules, names):
    """Return a decorator that makes a function the rule of these ops."""
    op_types = " ".join(names).split()

    def register(function):
        for op_type in op_types:
            if op_type in rules:
                raise ValueError(
                    f"op {op_type} has a rule already: "
                    f"{rules[op_type].__name__} in "
                    f"{rules[op_type].__module__}. Extend that one. "
                    f"Received: {function.__name__}"
                )
        rules.update(dict.fromkeys(op_types, function))
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


@op_rule("GatherV2", "ResourceGather")
def gather(use, input_index):
    """Return the factor of the table: row ids[t] receives dz[t]."""
    inputs = use.op.inputs
    if input_index != 0:
        return "its indices are of weights"
    if use.attribute("batch_dims"):
        return "it has batch_dims"
    if use.type == "GatherV2" and tf.get_static_value(inputs[2]) != 0:
        return "its axis is not the first"
    shape = _table_shape(use)
    if shape is None or None in shape:
        return "the shape of the table is not known"
    layout = use.layout
    if layout.axis >= inputs[1].shape.rank:
        return "the table has an axis for the samples"
    ids = layout.first(inputs[1], use.n)
    dz = use.delta(use.dtype(input_index))
    width = 1
    for s in shape[1:]:
        width *= s
    static_count = positions = ids.shape[1:].num_elements()
    if positions is None:
        positions = tf.reduce_prod(tf.shape(ids)[1:])
    ids = tf.reshape(ids, [use.n, positions])
    dz = tf.reshape(dz, [use.n, positions, width])
    dz.set_shape([None, static_count, width])
    ids.set_shape([None, static_count])
    return Rows(ids, dz, [shape[0], width], whole=shape)


def _table_shape(use):
    if use.type == "ResourceGather":
        return list(use.variable(0).shape)
    return use.op.inputs[0].shape.as_list()


@op_rule("BiasAdd")
def bias(use, input_index):
    """Return the factor of a bias: Σ_T dz."""
    dz = use.delta(use.dtype(input_index))
    if use.attribute("data_format") == b"NCHW":
        channel_axis = 1 + use.layout.added_axes if use.layout.axis == 0 else 0
        order = [k for k in range(dz.shape.rank) if k != channel_axis]
        dz = tf.transpose(dz, [*order, channel_axis])
    return Sum(dz, use.op.inputs[input_index].shape.as_list())


_ADDS = {"AddV2": (1, 1), "Add": (1, 1), "Sub": (1, -1)}


@op_rule(
    "AddV2 Add Sub Mul RealDiv Div DivNoNan MulNoNan Xdivy Xlogy Xlog1py "
    "Maximum Minimum Pow SquaredDifference Atan2 FloorMod SelectV2 ClipByValue"
)
def broadcast(use, input_index):
    """Return the factor: dz times derivative, summed over broadcast axes."""
    w, out = use.op.inputs[input_index], use.op.outputs[0]
    dtype = use.dtype(input_index)
    if use.type in _ADDS:
        gradient = use.delta_in_place(dtype)
        if _ADDS[use.type][input_index] < 0:
            gradient = -gradient
    elif use.type == "Mul":
        other = tf.cast(use.op.inputs[1 - input_index], dtype)
        gradient = use.delta_in_place(dtype) * other
    else:
        broadcast_weight = tf.broadcast_to(w, tf.shape(out))
        broadcast_weight.set_shape(out.shape)
        inputs = list(use.op.inputs)
        inputs[input_index] = broadcast_weight
        copy = _copy_op(use.op, inputs)
        delta = tf.cast(use.delta_in_place(dtype), out.dtype)
        (gradient,) = tf.gradients(copy, [broadcast_weight], [delta])
        gradient = tf.cast(gradient, dtype)
    return spread_over(use, gradient, sizes_of(w))


def _copy_op(op, inputs):
    """Return the output of the same op on other inputs."""
    graph = tf.compat.v1.get_default_graph()
    attributes = {name: value for name, value in op.node_def.attr.items()}
    copy = graph.create_op(
        op.type, inputs, [t.dtype for t in op.outputs], attrs=attributes
    )
    return copy.outputs[0]


def spread_over(use, gradient, shape):
    """Return the factor of a weight that was broadcast.

    `gradient` has the shape of the output, `shape` is that of the weight.
    """
    if gradient.shape.rank is None:
        return "the rank of its output is not known"
    layout = use.layout
    weight_shape = shape
    shape = [1] * (gradient.shape.rank - len(shape)) + list(shape)
    if _is_not_one(shape[layout.axis]):
        return "the weight has an axis for the samples"
    sizes = gradient.shape.as_list()
    broadcast_axes = [
        k
        for k, s in enumerate(shape)
        if not _is_not_one(s) and sizes[k] != 1 and k != layout.axis
    ]
    weight_sizes = [s for k, s in enumerate(shape) if k != layout.axis]
    summed_axes = [k - (k > layout.axis) + 1 for k in broadcast_axes]
    gradient = layout.first(gradient, use.n)
    for merged_axis in range(
        layout.axis + 1, layout.axis + 1 + layout.added_axes
    ):
        # An axis that was merged with the samples comes in their place.
        summed_axes = [k if k < merged_axis else k + 1 for k in summed_axes] + [
            merged_axis
        ]
        weight_sizes.insert(layout.axis, 1)
    leading = 0
    for s in weight_sizes:
        if _is_not_one(s):
            break
        leading += 1
    # Axes in front of the weight's own become positions: a `Sum` adds them up
    # only when it is asked.
    if all(k <= leading for k in summed_axes):
        vector_shape = weight_sizes[leading:]
        gradient = _squeeze_axes(
            gradient, [k + 1 for k in range(leading)], summed_axes
        )
        return _in_shape(Sum(gradient, vector_shape), weight_shape)
    gradient = tf.reduce_sum(gradient, summed_axes)
    return Full(tf.reshape(gradient, [use.n, *weight_shape]))


def _is_not_one(size):
    """Whether an axis is not of size one; an unknown size counts as such."""
    return tf.is_tensor(size) or size != 1


def _squeeze_axes(gradient, axes, broadcast_axes):
    """Remove those of the axes that have size one and are not summed."""
    unit_axes = [
        k for k in axes if k not in broadcast_axes and gradient.shape[k] == 1
    ]
    return tf.squeeze(gradient, unit_axes) if unit_axes else gradient


def _in_shape(factor, shape):
    if len(factor.shape) == len(shape):
        return factor
    if all(type(size) is int for size in shape):
        return Sum(factor.dz, shape, len(factor.shape))
    return Full(tf.reshape(factor.gradients, [-1, *shape]))


@op_rule("BroadcastTo")
def broadcast_to(use, input_index):
    """Return the factor: dz, summed over the broadcast axes."""
    if input_index != 0:
        return "its shape is of weights"
    local = use.delta_in_place(use.dtype(input_index))
    return spread_over(use, local, sizes_of(use.op.inputs[0]))


@op_rule("Tile")
def tile(use, input_index):
    """Return the factor: dz, summed over the repetitions of the weight."""
    shape = use.op.inputs[0].shape.as_list()
    if input_index != 0 or None in shape:
        return "the shape of the weight is not known"
    layout = use.layout
    dz = use.delta(use.dtype(input_index))
    sizes = tf.shape(dz)
    if layout.axis >= len(shape):
        return "the samples are on an axis of their own"
    split_shape, repeat_axes = [use.n], []
    merged_axes = layout.added_axes
    for k, s in enumerate(shape):
        if k == layout.axis:
            if not merged_axes:
                if s != 1:
                    return "the weight has an axis for the samples"
                continue
            if layout.lead != 1:
                return "the repetitions are inside the samples"
            axis = k + 1
        else:
            axis = k + 1 if merged_axes or k < layout.axis else k
        split_shape += [sizes[axis] // s, s]
        repeat_axes.append(len(split_shape) - 2)
    dz = tf.reduce_sum(tf.reshape(dz, split_shape), repeat_axes)
    return Full(tf.reshape(dz, [use.n, *shape]))
