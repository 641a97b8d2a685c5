"""The rules of ops: a factor from what a weight met and the gradient there.

n sample, T position, i input, o output. A rule takes a `Use` and the place of
the weight among the op's inputs and returns `SampleGradients` of that input,
or a reason why it does not serve the op.
"""

import string

import tensorflow as tf

from keras_pergrad.factors import Blocks, Full, Outer, Rows, Sum
from keras_pergrad.samples.layout import sizes_of
from keras_pergrad.samples.one_by_one import one_by_one

_RULES = {}


def op_rule(*types):
    """Function decorator: the rule of these types of ops."""

    def register(function):
        for one in types:
            _RULES[one] = function
        return function

    return register


def has_rule(op_type):
    """Whether ops of a type have a rule."""
    return op_type in _RULES


def factor_of(use, place):
    """Return the per-sample gradients of an op's input of weights.

    An op without a rule is differentiated for one sample after the other.

    Args:
        use: a `Use`.
        place: the place of the input.
    """
    reason = f"op {use.type} has no rule"
    if use.type in _RULES:
        found = _RULES[use.type](use, place)
        if not isinstance(found, str):
            return found
        reason = f"op {use.type}: {found}"
    use.reason = reason
    return one_by_one(use, place)


@op_rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def product(use, place):
    """The weight: Σ_T x ⊗ dz, on either side."""
    if use.type == "MatMul":
        turned = [use.attribute(f"transpose_{c}") for c in "ab"]
    else:
        turned = [use.attribute(f"adj_{c}") for c in "xy"]
    ranks = [t.shape.rank for t in use.op.inputs]
    if None in ranks:
        return "the rank of an input is not known"
    most = max(ranks)
    leading = string.ascii_uppercase[: most - 2]
    labels = []
    for rank, flip, pair in zip(ranks, turned, ("ab", "bc")):
        pair = pair[::-1] if flip else pair
        labels.append(leading[most - rank :] + pair)
    return _contraction(use, place, labels, leading + "ac")


@op_rule("Einsum")
def einsum(use, place):
    """The weight: the same for any equation without repeated labels."""
    if len(use.op.inputs) != 2:
        return "it has one input"
    equation = use.attribute("equation").decode()
    inputs, target = equation.split("->")
    labels = inputs.split(",")
    if "..." in equation:
        free = [c for c in string.ascii_letters if c not in equation]
        ranks = [t.shape.rank for t in use.op.inputs]
        dots = [
            r - len(term.replace("...", "")) if "..." in term else 0
            for r, term in zip(ranks, labels)
        ]
        names = "".join(free[: max(dots)])
        labels = [
            term.replace("...", names[len(names) - d :])
            for term, d in zip(labels, dots)
        ]
        target = target.replace("...", names)
    if any(len(set(term)) < len(term) for term in (*labels, target)):
        return f"equation {equation!r} repeats a label"
    return _contraction(use, place, labels, target)


def _contraction(use, place, labels, target):
    """The factor of one of two factors in a sum of products.

    A label in data, weight and output is a block: each has a weight of its
    own. One in data and output alone is a position.
    """
    weight, source = labels[place], labels[1 - place]
    w, x = use.op.inputs[place], use.op.inputs[1 - place]
    shape = w.shape.as_list()
    dtype = use.dtype(place)
    layout = use.input_layout(1 - place)
    if layout is None:
        return "its other input has no samples"
    if set(weight) - set(source) - set(target):
        return "it sums over an axis of the weight alone"
    sample = source[layout.axis]
    if target[use.layout.axis : use.layout.axis + 1] != sample:
        return "the samples change their axis in it"
    x = tf.cast(layout.first(x, use.n), dtype)
    dz = use.delta(dtype)
    ones = [
        k
        for k, c in enumerate(weight)
        if shape[k] == 1 and c in source + target
    ]
    broad = {
        weight[k]
        for k in ones
        if _size(use.op, 1 - place, source, target, weight[k]) != 1
    }
    if sample in weight and sample not in broad:
        return "the weight has an axis for the samples"
    source, target = (
        _first(term, where)
        for term, where in ((source, layout), (target, use.layout))
    )
    kept = "".join(c for c in weight if c not in broad and c != sample)
    alone = [c for c in source if c not in target and c not in kept]
    alone = [c for c in alone if c not in broad]
    if alone:
        x = tf.reduce_sum(x, [source.index(c) for c in alone])
        source = "".join(c for c in source if c not in alone)
    blocks = [c for c in kept if c in source and c in target]
    i = [c for c in kept if c in source and c not in target]
    o = [c for c in kept if c in target and c not in source]
    rest = [c for c in target[1:] if c in source and c not in kept]
    rest += [c for c in source[1:] if c not in target and c not in kept]
    lonely = [
        c
        for c in target[1:]
        if c not in source and c not in kept and c not in rest
    ]
    if lonely:
        dz = tf.reduce_sum(dz, [target.index(c) for c in lonely])
        target = "".join(c for c in target if c not in lonely)
    if any(c not in target for c in rest):
        return "an axis is broadcast in it"
    sizes = {c: shape[k] for k, c in enumerate(weight)}
    if any(sizes[c] is None for c in kept):
        return "the shape of the weight is not known"
    order = [source[0], *blocks, *rest]
    x = _arranged(x, source, [*order, *i], len(blocks), len(i), sizes)
    dz = _arranged(dz, target, [*order, *o], len(blocks), len(o), sizes)
    labels = [*blocks, *i, *o]
    perm = [labels.index(c) for c in kept]
    unpermuted = [sizes[c] for c in labels]
    if perm == sorted(perm):
        perm = unpermuted = None
    if not blocks:
        return Outer(x, dz, shape, perm, unpermuted)
    return Blocks(x, dz, shape, perm, unpermuted)


def _first(term, layout):
    """The labels after `layout.first`; a merged axis gives one more."""
    sample = term[layout.axis]
    if layout.merged is None:
        return sample + term.replace(sample, "")
    return sample + term.replace(sample, "0")


def _size(op, place, source, target, label):
    if label in source:
        return op.inputs[place].shape[source.index(label)]
    return op.outputs[0].shape[target.index(label)]


def _arranged(tensor, labels, order, blocks, last, sizes):
    """(n, blocks as one axis if there are any, positions, features)."""
    axes = [labels.index(c) for c in order]
    if axes != sorted(axes):
        tensor = tf.transpose(tensor, axes)
    dynamic = tf.shape(tensor)
    static = tensor.shape.as_list()
    positions = static[1 + blocks : len(static) - last]
    count = 1
    for size in positions:
        count = None if size is None or count is None else count * size
    features = 1
    for c in order[len(order) - last :] if last else []:
        features *= sizes[c]
    front = []
    if blocks:
        front = [1]
        for c in order[1 : 1 + blocks]:
            front[0] *= sizes[c]
    if count is None:
        middle = tf.reduce_prod(dynamic[1 + blocks : len(static) - last])
    else:
        middle = count
    shape = [-1 if count else dynamic[0], *front, middle, features]
    if len(shape) == len(static) and static[1:] == [*front, count, features]:
        return tensor
    tensor = tf.reshape(tensor, shape)
    tensor.set_shape([None, *front, count, features])
    return tensor


@op_rule("BiasAdd")
def bias(use, place):
    """The weight: Σ_T dz."""
    dz = use.delta(use.dtype(place))
    if use.attribute("data_format") == b"NCHW":
        at = 1 + use.layout.added if use.layout.axis == 0 else 0
        order = [k for k in range(dz.shape.rank) if k != at]
        dz = tf.transpose(dz, [*order, at])
    return Sum(dz, use.op.inputs[place].shape.as_list())


_ADDS = {"AddV2": (1, 1), "Add": (1, 1), "Sub": (1, -1)}
_ELEMENTWISE = (
    "Mul",
    "RealDiv",
    "Div",
    "DivNoNan",
    "MulNoNan",
    "Xdivy",
    "Xlogy",
    "Xlog1py",
    "Maximum",
    "Minimum",
    "Pow",
    "SquaredDifference",
    "Atan2",
    "FloorMod",
    "SelectV2",
    "ClipByValue",
)


@op_rule("AddV2", "Add", "Sub", *_ELEMENTWISE)
def broadcast(use, place):
    """The weight: dz times its local derivative, summed where it is spread."""
    w, out = use.op.inputs[place], use.op.outputs[0]
    dtype = use.dtype(place)
    if use.type in _ADDS:
        local = use.unmoved_delta(dtype)
        if _ADDS[use.type][place] < 0:
            local = -local
    elif use.type == "Mul":
        other = tf.cast(use.op.inputs[1 - place], dtype)
        local = use.unmoved_delta(dtype) * other
    else:
        spread = tf.broadcast_to(w, tf.shape(out))
        spread.set_shape(out.shape)
        inputs = list(use.op.inputs)
        inputs[place] = spread
        copy = _copied(use.op, inputs)
        delta = tf.cast(use.unmoved_delta(dtype), out.dtype)
        (local,) = tf.gradients(copy, [spread], [delta])
        local = tf.cast(local, dtype)
    return spread_over(use, local, sizes_of(w))


def _copied(op, inputs):
    """The same op on other inputs."""
    graph = tf.compat.v1.get_default_graph()
    attributes = {name: value for name, value in op.node_def.attr.items()}
    new = graph.create_op(
        op.type, inputs, [t.dtype for t in op.outputs], attrs=attributes
    )
    return new.outputs[0]


def spread_over(use, local, shape):
    """The factor of a weight that was broadcast to the shape of `local`.

    Args:
        use: the `Use`.
        local: the gradient for each entry, with the samples where they are.
        shape: the weight's shape.
    """
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
    if layout.added:
        # What was merged with the samples comes right where they were.
        at = layout.axis + 1
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
    """Whether an axis is not broadcast; one of unknown size is not."""
    return tf.is_tensor(size) or size != 1


def _without(local, axes, spread):
    """Without those axes of size one that are no positions."""
    gone = [k for k in axes if k not in spread and local.shape[k] == 1]
    return tf.squeeze(local, gone) if gone else local


def _as_shape(factor, shape):
    if len(factor.shape) == len(shape):
        return factor
    return Full(tf.reshape(factor.gradients, [-1, *shape]))


@op_rule("BroadcastTo")
def broadcast_to(use, place):
    """The weight: dz, summed where it is spread."""
    if place != 0:
        return "its shape is of weights"
    local = use.unmoved_delta(use.dtype(place))
    return spread_over(use, local, sizes_of(use.op.inputs[0]))


@op_rule("Tile")
def tile(use, place):
    """The weight: dz, summed over its repetitions."""
    shape = use.op.inputs[0].shape.as_list()
    if place != 0 or None in shape:
        return "the shape of the weight is not known"
    layout = use.layout
    dz = use.delta(use.dtype(place))
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
            if layout.merged != "samples first":
                return "the repetitions are inside the samples"
            at = k + 1
        else:
            at = k + 1 if inner or k < layout.axis else k
        target += [sizes[at] // s, s]
        axes.append(len(target) - 2)
    dz = tf.reduce_sum(tf.reshape(dz, target), axes)
    return Full(tf.reshape(dz, [use.n, *shape]))


@op_rule("GatherV2", "ResourceGather")
def gather(use, place):
    """The weight: row ids[t] receives dz[t]."""
    inputs = use.op.inputs
    if place != 0:
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
    dz = use.delta(use.dtype(place))
    columns = 1
    for s in shape[1:]:
        columns *= s
    known = positions = ids.shape[1:].num_elements()
    if positions is None:
        positions = tf.reduce_prod(tf.shape(ids)[1:])
    ids = tf.reshape(ids, [use.n, positions])
    dz = tf.reshape(dz, [use.n, positions, columns])
    dz.set_shape([None, known, columns])
    ids.set_shape([None, known])
    return Rows(ids, dz, [shape[0], columns], whole=shape)


def _table_shape(use):
    if use.type == "ResourceGather":
        k = use.variables_in(0)[0]
        return list(use.variables[k].shape)
    return use.op.inputs[0].shape.as_list()
