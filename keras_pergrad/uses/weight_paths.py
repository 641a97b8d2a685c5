"""The path from the gradient at the use of a weight to its variable.

Between the two are ops on weights alone: a reshape, a cast, a slice, `1 + w`,
g·v/‖v‖. A factor of the output of such an op is pulled back to its input. If
the op only arranges numbers, the factor keeps its kind.
"""

import functools

import tensorflow as tf

from keras_pergrad.factors import Adapted, Full, Outer, Rows, Sum, join
from keras_pergrad.factors.written_out import HALF, sizes_of
from keras_pergrad.uses.op_rules import rule_registrar
from keras_pergrad.uses.weight_factors import (
    Backward,
    Moved,
    PulledBack,
    Reshaped,
)

_RULES = {}


def to_variable(factor, use, input_index, *, k, group):
    """Return the factor of variable k from the factor of an op's input.

    None: no gradient flows. `group` is a list, empty at first, the same for
    all variables behind this input: the `Backward` that their factors share
    where there are several paths.
    """
    tensor = use.op.inputs[input_index]
    ops = _single_path(tensor, use.uses, k)
    if ops is None or any(op.outputs[j].dtype.is_complex for op, _, j in ops):
        # All ops between tensor and variable, for each sample.
        if not group:
            group.append(Backward(factor, tensor))
        shape = use.variables[k].shape
        return PulledBack(group[0], use.uses.sources[k], shape)
    scales = []
    for op, source, target in ops:
        rule = _RULES.get(op.type, by_gradient)
        factor = rule(factor, op, source, target=target)
        if factor is None:
            return None
        if isinstance(factor, Scaled):
            # All rules are linear: the scale may wait until the end, so that
            # the next rule sees a factor of a kind that it knows.
            scales.append(factor.number)
            factor = factor.factor
    for scale in scales:
        factor = Scaled(factor, scale)
    return factor


def _single_path(tensor, uses, k):
    """Return the ops from a tensor back to the read of a variable, or None.

    Each is (op, index of the input, index of the output). None: there are
    several paths to the variable.
    """
    path = []
    while tensor.op.type != "ReadVariableOp":
        op = tensor.op
        input_indices = [
            j for j, t in enumerate(op.inputs) if k in uses.variables_in(t)
        ]
        if len(input_indices) != 1 or (
            len(op.outputs) > 1 and op.type not in _RULES
        ):
            return None
        path.append((op, input_indices[0], tensor.value_index))
        tensor = op.inputs[input_indices[0]]
    return path


def by_gradient(factor, op, source, *, target):
    """Return the factor of an input, found by the op's own gradient."""
    backward, tensor = Backward(factor, op.outputs[target]), op.inputs[source]
    return PulledBack(backward, [tensor], tensor.shape)


class Scaled(Adapted):
    """A factor times a number that is the same for all samples."""

    entrywise = True

    def __init__(self, factor, number):
        super().__init__(factor)
        self.number = number
        self.shape = getattr(factor, "shape", None)

    def change(self, tensor):
        return tensor * tf.cast(self.number, tensor.dtype)

    def squared_norms(self):
        norms = self.factor.squared_norms()
        return norms * tf.square(tf.cast(self.number, norms.dtype))

    def gram(self, other=None):
        if other is not None:
            return super().gram(other)
        products = self.factor.gram()
        return products * tf.square(tf.cast(self.number, products.dtype))


def path_rule(*names):
    """Decorate a function as the rule of ops on weights, as `op_rule`.

    A rule takes a factor of an output, the op, the index of the input to
    which it is pulled back, and the index of the output. It returns the factor
    of the input, or None for an input that has no gradient (a shape, say).
    """
    return rule_registrar(_RULES, names)


@path_rule("Identity", "Cast", "CheckNumerics", "EnsureShape")
def _identity(factor, op, source, *, target):
    return factor


@path_rule("Reshape", "ExpandDims", "Squeeze")
def _reshape(factor, op, source, *, target):
    if source:
        return None
    return _with_shape(factor, op, sizes_of(op.inputs[0]))


def _with_shape(factor, op, shape):
    """Return the factor of a tensor that only has another shape."""
    if type(factor) is Outer:
        return Outer(
            factor.x,
            factor.dz,
            shape,
            perm=factor.perm,
            unpermuted=factor.unpermuted,
            method=factor.method,
        )
    if type(factor) is Sum and all(type(s) is int and s for s in shape):
        rank = len(factor.shape) if factor.rank is None else factor.rank
        return Sum(factor.dz, shape, rank)
    if isinstance(factor, Full):
        gradients = factor.gradients
        n = -1 if gradients.shape[1:].num_elements() else tf.shape(gradients)[0]
        return Full(tf.reshape(gradients, [n, *shape]))
    if type(factor) is Rows and shape[:1] == factor.shape[:1]:
        return Rows(
            factor.ids,
            factor.dz,
            factor.shape,
            method=factor.method,
            whole=shape,
        )
    return Reshaped(factor, op)


@path_rule("Transpose")
def _transpose(factor, op, source, *, target):
    perm = tf.get_static_value(op.inputs[1])
    if perm is None or source:
        return by_gradient(factor, op, source, target=target)
    perm = [int(p) for p in perm]
    inverse = [perm.index(k) for k in range(len(perm))]
    if type(factor) is Outer and factor.perm is None:
        shape = op.inputs[0].shape.as_list()
        if perm == [1, 0] and factor.shape == [
            factor.x.shape[-1],
            factor.dz.shape[-1],
        ]:
            return Outer(factor.dz, factor.x, method=factor.method)
        output_shape = op.outputs[0].shape.as_list()
        return Outer(
            factor.x,
            factor.dz,
            shape,
            perm=inverse,
            unpermuted=output_shape,
            method=factor.method,
        )
    if isinstance(factor, Full):
        gradients = factor.gradients
        return Full(tf.transpose(gradients, [0, *(k + 1 for k in inverse)]))
    move = functools.partial(tf.transpose, perm=inverse)
    return Moved(factor, op.outputs[0], op.inputs[0], move=move)


@path_rule("Neg")
def _negate(factor, op, source, *, target):
    return Scaled(factor, -1)


@path_rule("AddV2", "Add", "Sub", "AddN")
def _add(factor, op, source, *, target):
    if op.inputs[source].shape != op.outputs[0].shape:
        return by_gradient(factor, op, source, target=target)
    if op.type == "Sub" and source == 1:
        return Scaled(factor, -1)
    return factor


@path_rule("Mul", "RealDiv", "Div")
def _multiply(factor, op, source, *, target):
    is_same_shape = op.inputs[source].shape == op.outputs[0].shape
    if not is_same_shape or (op.type != "Mul" and source == 1):
        return by_gradient(factor, op, source, target=target)
    other = op.inputs[1 - source]
    number = other if op.type == "Mul" else tf.math.reciprocal(other)
    if number.shape.num_elements() == 1:
        return Scaled(factor, tf.reshape(number, []))
    if isinstance(factor, Full):
        gradients = factor.gradients
        return Full(gradients * tf.cast(number, gradients.dtype)[None])
    return by_gradient(factor, op, source, target=target)


@path_rule("ConcatV2")
def _concat(factor, op, source, *, target):
    """Return the columns or rows that belong to one concatenated tensor."""
    axis = tf.get_static_value(op.inputs[-1])
    shapes = [t.shape.as_list() for t in list(op.inputs)[:-1]]
    is_static = all(None not in shape for shape in shapes)
    if axis is None or source >= len(shapes) or not is_static:
        return by_gradient(factor, op, source, target=target)
    axis = int(axis) % len(shapes[0])
    start = sum(s[axis] for s in shapes[:source])
    index_range = slice(start, start + shapes[source][axis])
    if isinstance(factor, Full):
        index = (slice(None),) * (axis + 1)
        return Full(factor.gradients[(*index, index_range)])
    is_matrix = type(factor) is Outer and factor.perm is None
    if is_matrix and len(shapes[0]) == 2:
        if axis == 1:
            return Outer(
                factor.x,
                _slice_columns(factor.dz, index_range),
                method=factor.method,
            )
        return Outer(
            _slice_columns(factor.x, index_range),
            factor.dz,
            method=factor.method,
        )
    return by_gradient(factor, op, source, target=target)


def _slice_columns(tensor, index_range):
    return tensor[(slice(None),) * (tensor.shape.rank - 1) + (index_range,)]


@path_rule("GatherV2")
def _gather(factor, op, source, *, target):
    """Return a factor for rows of a table, the same rows for all samples."""
    axis = tf.get_static_value(op.inputs[2])
    shape = op.inputs[0].shape.as_list()
    is_supported = source == 0 and axis == 0 and not op.get_attr("batch_dims")
    if not is_supported or not isinstance(factor, Full) or None in shape:
        return by_gradient(factor, op, source, target=target)
    ids, columns = op.inputs[1], 1
    for size in shape[1:]:
        columns *= size
    dz = factor.gradients
    n = tf.shape(dz)[0]
    static_count = ids.shape.num_elements()
    positions = tf.size(ids) if static_count is None else static_count
    ids = tf.reshape(ids, [1, positions])
    dz = tf.reshape(dz, [n, positions, columns])
    ids = tf.tile(ids, tf.stack([n, 1]))
    ids.set_shape([None, static_count])
    dz.set_shape([None, static_count, columns])
    return Rows(ids, dz, [shape[0], columns], whole=shape)


@path_rule("Slice", "StridedSlice", "Split", "SplitV", "Unpack")
def part(factor, op, source, *, target):
    """Return the factor of a tensor from that of a part of it."""
    if source != (1 if op.type == "Split" else 0):
        return None
    whole, tensor = op.inputs[source], op.outputs[target]
    parameters = [
        tf.get_static_value(t) for k, t in enumerate(op.inputs) if k != source
    ]
    shapes = whole.shape, tensor.shape
    if all(shape.is_fully_defined() for shape in shapes) and all(
        value is not None for value in parameters
    ):
        return Part(factor, op, whole, target=target, parameters=parameters)
    if tensor.dtype in HALF:
        # The op's own gradient would round a sum, and not the norms.
        return by_gradient(factor, op, source, target=target)
    return Moved(factor, tensor, whole)


class Part(Moved):
    """A factor of a known part of a tensor, moved to the whole of it.

    As of one gate's kernel or bias. A loop that is written out in Python takes
    the same part in each of its steps: such uses are joined before zeros are
    added around the part.

    Args:
        factor: `SampleGradients` of the part.
        op: the op that takes it.
        whole: the tensor.
        target: the index of the output.
        parameters: the values of the op's other inputs.

    Attributes:
        key: the same for ops that take the same part.
    """

    def __init__(self, factor, op, whole, *, target, parameters):
        part = op.outputs[target]
        attributes = sorted(
            (name, value.SerializeToString(deterministic=True))
            for name, value in op.node_def.attr.items()
        )
        values = tuple(value.tobytes() for value in parameters)
        shape = tuple(whole.shape)
        self.key = op.type, target, shape, values, tuple(attributes)
        if op.type == "StridedSlice":
            move, move_all = _strided_move(op, parameters, whole.shape), None
        else:
            move, move_all = _padding_moves(
                *_part_offsets(
                    op,
                    target,
                    parameters,
                    part_shape=part.shape,
                    shape=whole.shape,
                ),
                whole.shape,
            )
        super().__init__(factor, part, whole, move=move, move_all=move_all)


def _strided_move(op, parameters, shape):
    """Return the gradient of a slice with strides, of any type."""
    begin, end, strides = parameters
    names = "begin", "end", "ellipsis", "new_axis", "shrink_axis"
    masks = {f"{name}_mask": op.get_attr(f"{name}_mask") for name in names}
    return lambda gradient: tf.raw_ops.StridedSliceGrad(
        shape=tf.constant(shape.as_list(), begin.dtype),
        begin=begin,
        end=end,
        strides=strides,
        dy=gradient,
        **masks,
    )


def _padding_moves(starts, sizes, shape):
    """Return functions that put zeros around a part, or around n of them."""
    around = [
        (start, full - start - size)
        for start, size, full in zip(starts, sizes, shape)
    ]

    def move(part):
        return tf.pad(tf.reshape(part, sizes), around)

    def move_all(parts):
        parts = tf.reshape(parts, [tf.shape(parts)[0], *sizes])
        return tf.pad(parts, [(0, 0), *around])

    return move, move_all


def _part_offsets(op, target, parameters, *, part_shape, shape):
    """Return where a part begins in the whole, and its sizes there."""
    sizes = part_shape.as_list()
    starts = [0] * len(sizes)
    if op.type == "Slice":
        starts = [int(k) for k in parameters[0]]
    elif op.type == "Split":
        starts[int(parameters[0])] = target * sizes[int(parameters[0])]
    elif op.type == "SplitV":
        split_sizes, axis = parameters
        before, behind = split_sizes[:target], split_sizes[target:]
        if -1 in before:  # what is left over
            starts[int(axis)] = shape[int(axis)] - int(sum(behind))
        else:
            starts[int(axis)] = int(sum(before))
    else:  # Unpack
        axis = op.get_attr("axis") % (len(sizes) + 1)
        starts.insert(axis, target)
        sizes.insert(axis, 1)
    return starts, sizes


def merge_parts(factors):
    """Return a variable's factors, with one factor for equal parts of it."""
    groups, remaining = {}, []
    for factor in factors:
        if type(factor) is Part:
            groups.setdefault(factor.key, []).append(factor)
        else:
            remaining.append(factor)
    for first, *others in groups.values():
        if others:
            inner = [part.factor for part in (first, *others)]
            first = first.of(join(merge_parts(inner)))
        remaining.append(first)
    return remaining
