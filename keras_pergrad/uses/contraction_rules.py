"""The rules of matrix products and einsums.

n sample, T position, i input, o output.
"""

import dataclasses
import math
import string

import tensorflow as tf

from keras_pergrad.factors import Blocks, Outer
from keras_pergrad.factors.base import integers
from keras_pergrad.uses.op_rules import Layout, op_rule

CONTRACTIONS = "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum"


def labelled(op):
    """Return ([labels of each input's axes], labels of the output's axes).

    For an op that has no such form return the reason, a string.
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


@dataclasses.dataclass(frozen=True)
class Axes:
    """The labels of a product's axes, by the tensors in which they stand.

    Labels of data alone, or of the output alone, are summed over.

    Attributes:
        data, weight, output: the labels of each, the samples' one first.
        layout: where the data have their samples.
        blocks: labels of all three: each block has its own weight.
        inputs: labels of data and weight.
        outputs: labels of weight and output.
        positions: labels of data and output.
        sizes: label of the weight → size.
    """

    data: str
    weight: str
    output: str
    layout: Layout
    blocks: list
    inputs: list
    outputs: list
    positions: list
    sizes: dict

    @classmethod
    def of(cls, use, input_index):
        """Return the axes, or the reason why the rule does not serve them."""
        labels = labelled(use.op)
        if isinstance(labels, str):
            return labels
        (weight, data), output = labels[0], labels[1]
        if input_index:
            weight, data = data, weight
        x, y = use.op.inputs[1 - input_index], use.op.outputs[0]
        layout = use.input_layout(1 - input_index)
        layout = layout or _repeated(use, weight, data, output, x)
        if layout is None:
            return "its other input has no samples"
        if set(weight) - set(data) - set(output):
            return "it sums over an axis of the weight alone"
        sample = data[layout.axis]
        place = use.layout
        if output[place.axis : place.axis + 1] != sample:
            return "the samples change their axis in it"
        sizes = _sizes(weight, use.op.inputs[input_index])
        beside = {**_sizes(output, y), **_sizes(data, x)}
        repeated = {c for c in weight if sizes[c] == 1 and beside[c] != 1}
        if sample in weight and sample not in repeated:
            return "the weight has an axis for the samples"
        if repeated & set(data) - set(output):
            return "an axis is broadcast in it"
        weight = [c for c in weight if c != sample and c not in repeated]
        if any(sizes[c] is None for c in weight):
            return "the shape of the weight is not known"
        blocks = [c for c in weight if c in data and c in output]
        for tensor, labels in ((x, data), (use.deltas[0], output)):
            # A reshape to sizes of run time may have made them unknown.
            known = [c in weight and c not in blocks for c in labels]
            tensor.set_shape(
                [sizes[c] if k else None for c, k in zip(labels, known)]
            )
        data, output = layout.labels(data), place.labels(output)
        return cls(
            data,
            "".join(weight),
            output,
            layout,
            blocks=blocks,
            inputs=[c for c in weight if c not in output],
            outputs=[c for c in weight if c not in data],
            positions=[c for c in output[1:] if c in data and c not in weight],
            sizes=sizes,
        )


@op_rule(CONTRACTIONS)
def contraction(use, input_index):
    """Return the per-sample gradients of the weight in a sum of products.

    They are einsum("nbTi,nbTo->nbio", x, dz), b being the blocks.
    """
    axes = Axes.of(use, input_index)
    if isinstance(axes, str):
        return axes
    dtype = use.dtype(input_index)
    shape = use.op.inputs[input_index].shape.as_list()
    x = tf.cast(axes.layout.first(use.op.inputs[1 - input_index], use.n), dtype)
    x, dz = (
        arranged(t, labels, axes.blocks, axes.positions, features, axes.sizes)
        for t, labels, features in (
            (x, axes.data, axes.inputs),
            (use.delta(dtype), axes.output, axes.outputs),
        )
    )
    made = [*axes.blocks, *axes.inputs, *axes.outputs]
    turned = in_order(made, axes.weight, axes.sizes)
    return (Blocks if axes.blocks else Outer)(x, dz, shape, *turned)


def _repeated(use, weight, source, target, x):
    """Return the layout of an input that was repeated for each sample."""
    label = target[use.layout.axis]
    size = use.op.outputs[0].shape[use.layout.axis]
    if label not in source:
        return None
    axis = source.index(label)
    # What the weight has no axis for is not repeated by the product itself.
    same = size is not None and x.shape[axis] == size
    if label in weight and not same:
        return None
    return dataclasses.replace(use.layout, axis=axis)


def in_order(labels, wanted, sizes):
    """Return `perm` and `unpermuted` that bring a factor's axes in an order."""
    perm = [labels.index(c) for c in wanted]
    if perm == sorted(perm):
        return None, None
    return perm, [sizes[c] for c in labels]


def _sizes(labels, tensor):
    return {c: tensor.shape[k] for k, c in enumerate(labels)}


def arranged(tensor, labels, blocks, positions, features, sizes):
    """Return (n, blocks as one axis if there are any, positions, features).

    The first of the tensor's labels is that of the samples. What is in none
    of the three lists is summed over. `sizes` has those of blocks and features.
    """
    order = [labels[0], *blocks, *positions, *features]
    alone = [k for k, c in enumerate(labels) if c not in order]
    if alone:
        tensor = tf.reduce_sum(tensor, integers(*alone))
        labels = [c for c in labels if c in order]
    axes = [labels.index(c) for c in order]
    if axes != sorted(axes):
        tensor = tf.transpose(tensor, axes)
    front = [math.prod(sizes[c] for c in blocks)] if blocks else []
    width = math.prod(sizes[c] for c in features)
    static = tensor.shape.as_list()
    middle = slice(1 + len(blocks), len(static) - len(features))
    count = tf.TensorShape(static[middle]).num_elements()
    known = [*front, count, width]
    if static[1:] == known:
        return tensor
    # One size may be -1: that of the samples, unless it must be the count.
    samples = -1 if count else tf.shape(tensor)[0]
    between = count
    if count is None:
        between = tf.reduce_prod(tf.shape(tensor)[middle])
    tensor = tf.reshape(tensor, integers(samples, *front, between, width))
    tensor.set_shape([None, *known])
    return tensor
