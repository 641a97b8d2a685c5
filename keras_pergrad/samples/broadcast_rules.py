"""The rules of elementwise ops, and of ops that repeat their input."""

import tensorflow as tf

from keras_pergrad.factors import Full, Sum
from keras_pergrad.samples.layout import sizes_of
from keras_pergrad.samples.op_rules import op_rule


@op_rule("BiasAdd")
def bias(use, input_index):
    """Return the factor of a bias: Σ_T dz."""
    dz = use.delta(use.dtype(input_index))
    if use.attribute("data_format") == b"NCHW":
        at = 1 + use.layout.added if use.layout.axis == 0 else 0
        order = [k for k in range(dz.shape.rank) if k != at]
        dz = tf.transpose(dz, [*order, at])
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
        local = use.unmoved_delta(dtype)
        if _ADDS[use.type][input_index] < 0:
            local = -local
    elif use.type == "Mul":
        other = tf.cast(use.op.inputs[1 - input_index], dtype)
        local = use.unmoved_delta(dtype) * other
    else:
        spread = tf.broadcast_to(w, tf.shape(out))
        spread.set_shape(out.shape)
        inputs = list(use.op.inputs)
        inputs[input_index] = spread
        copy = _copied(use.op, inputs)
        delta = tf.cast(use.unmoved_delta(dtype), out.dtype)
        (local,) = tf.gradients(copy, [spread], [delta])
        local = tf.cast(local, dtype)
    return spread_over(use, local, sizes_of(w))


def _copied(op, inputs):
    """Return the output of the same op on other inputs."""
    graph = tf.compat.v1.get_default_graph()
    attributes = {name: value for name, value in op.node_def.attr.items()}
    new = graph.create_op(
        op.type, inputs, [t.dtype for t in op.outputs], attrs=attributes
    )
    return new.outputs[0]


def spread_over(use, local, shape):
    """Return the factor of a weight that was broadcast to `local`'s shape."""
    if local.shape.rank is None:
        return "the rank of its output is not known"
    layout = use.layout
    own = shape
    shape = [1] * (local.shape.rank - len(shape)) + list(shape)
    if _is_not_one(shape[layout.axis]):
        return "the weight has an axis for the samples"
    sizes = local.shape.as_list()
    spread = [
        k
        for k, s in enumerate(shape)
        if not _is_not_one(s) and sizes[k] != 1 and k != layout.axis
    ]
    rest = [s for k, s in enumerate(shape) if k != layout.axis]
    places = [k - (k > layout.axis) + 1 for k in spread]
    local = layout.first(local, use.n)
    for at in range(layout.axis + 1, layout.axis + 1 + layout.added):
        # An axis that was merged with the samples comes in their place.
        places = [k if k < at else k + 1 for k in places] + [at]
        rest.insert(layout.axis, 1)
    leading = 0
    for s in rest:
        if _is_not_one(s):
            break
        leading += 1
    if all(k <= leading for k in places):
        flat = rest[leading:]
        local = _without(local, [k + 1 for k in range(leading)], places)
        return _as_shape(Sum(local, flat), own)
    local = tf.reduce_sum(local, places)
    return Full(tf.reshape(local, [use.n, *own]))


def _is_not_one(size):
    """Whether an axis is not of size one; an unknown size counts as such."""
    return tf.is_tensor(size) or size != 1


def _without(local, axes, spread):
    """Remove those of the axes that have size one and are no positions."""
    gone = [k for k in axes if k not in spread and local.shape[k] == 1]
    return tf.squeeze(local, gone) if gone else local


def _as_shape(factor, shape):
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
    local = use.unmoved_delta(use.dtype(input_index))
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
    target, axes = [use.n], []
    inner = layout.added
    for k, s in enumerate(shape):
        if k == layout.axis:
            if not inner:
                if s != 1:
                    return "the weight has an axis for the samples"
                continue
            if layout.lead != 1:
                return "the repetitions are inside the samples"
            at = k + 1
        else:
            at = k + 1 if inner or k < layout.axis else k
        target += [sizes[at] // s, s]
        axes.append(len(target) - 2)
    dz = tf.reduce_sum(tf.reshape(dz, target), axes)
    return Full(tf.reshape(dz, [use.n, *shape]))
