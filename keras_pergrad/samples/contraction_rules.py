"""The rules of matrix products and einsums.

n sample, T position, i input, o output.
"""

import dataclasses
import string

import tensorflow as tf

from keras_pergrad.factors import Blocks, Outer
from keras_pergrad.samples.op_rules import op_rule

CONTRACTIONS = (
    "MatMul",
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Einsum",
)


def labelled(op):
    """Return an op of `CONTRACTIONS` as an einsum, or why it has no such form.

    Returns:
        The labels of both inputs' axes, and the labels of the output's axes;
        or a string with the reason why there are none.
    """
    ranks = [t.shape.rank for t in op.inputs]
    if None in ranks:
        return "the rank of an input is not known"
    if op.type == "Einsum":
        return _of_equation(op.get_attr("equation").decode(), ranks)
    names = ("transpose_a", "transpose_b")
    if op.type != "MatMul":
        names = ("adj_x", "adj_y")
    most = max(ranks)
    leading = string.ascii_uppercase[: most - 2]
    labels = []
    for rank, name, pair in zip(ranks, names, ("ab", "bc")):
        pair = pair[::-1] if op.get_attr(name) else pair
        labels.append(leading[most - rank :] + pair)
    return labels, leading + "ac"


def _of_equation(equation, ranks):
    if len(ranks) != 2:
        return "it has one input"
    inputs, target = equation.split("->")
    labels = inputs.split(",")
    if "..." in equation:
        free = [c for c in string.ascii_letters if c not in equation]
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
    return labels, target


@op_rule(*CONTRACTIONS)
def contraction(use, place):
    """Return the per-sample gradients of the weight in a sum of products.

    A label in data, weight and output is a block: each block has its own
    weight. A label in data and output alone is a position.
    """
    found = labelled(use.op)
    if isinstance(found, str):
        return found
    labels, target = found
    weight, source = labels[place], labels[1 - place]
    w, x = use.op.inputs[place], use.op.inputs[1 - place]
    shape = w.shape.as_list()
    dtype = use.dtype(place)
    layout = use.input_layout(1 - place)
    if layout is None:
        layout = _repeated(use, source, target, x)
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
    x = arranged(x, source, [*order, *i], len(blocks), len(i), sizes)
    dz = arranged(dz, target, [*order, *o], len(blocks), len(o), sizes)
    order = in_order([*blocks, *i, *o], kept, sizes)
    return (Blocks if blocks else Outer)(x, dz, shape, *order)


def _repeated(use, source, target, x):
    """Return the layout of an input that was repeated for each sample."""
    label = target[use.layout.axis]
    size = use.op.outputs[0].shape[use.layout.axis]
    if label not in source or size is None:
        return None
    axis = source.index(label)
    if x.shape[axis] != size:
        return None
    return dataclasses.replace(use.layout, axis=axis)


def in_order(labels, wanted, sizes):
    """Return `perm` and `unpermuted` of a factor whose axes have labels.

    Args:
        labels: the labels of its axes in their present order.
        wanted: the same labels in the order of the variable's axes.
        sizes: label to size.
    """
    perm = [labels.index(c) for c in wanted]
    if perm == sorted(perm):
        return None, None
    return perm, [sizes[c] for c in labels]


def _first(term, layout):
    """Return the labels after `layout.first`; a merged axis gives others."""
    sample = term[layout.axis]
    return sample + term.replace(sample, "01"[: layout.added])


def _size(op, place, source, target, label):
    if label in source:
        return op.inputs[place].shape[source.index(label)]
    return op.outputs[0].shape[target.index(label)]


def arranged(tensor, labels, order, blocks, last, sizes):
    """Return (n, blocks as one axis if there are any, positions, features).

    Args:
        tensor: the tensor.
        labels: the labels of its axes.
        order: the same labels in the wanted order, the samples first.
        blocks: how many labels after the samples are blocks.
        last: how many labels at the end are features.
        sizes: label to size, of blocks and features.
    """
    axes = [labels.index(c) for c in order]
    if axes != sorted(axes):
        tensor = tf.transpose(tensor, axes)
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
        end = len(static) - last
        middle = tf.reduce_prod(tf.shape(tensor)[1 + blocks : end])
    else:
        middle = count
    samples = -1 if count else tf.shape(tensor)[0]
    shape = [samples, *front, middle, features]
    if len(shape) == len(static) and static[1:] == [*front, count, features]:
        return tensor
    tensor = tf.reshape(tensor, shape)
    tensor.set_shape([None, *front, count, features])
    return tensor
