"""The rules of matrix products and einsums.

n sample, T position, i input, o output.
"""

import dataclasses
import math

import tensorflow as tf

from keras_pergrad.factors import Blocks, Outer
from keras_pergrad.factors.written_out import integers
from keras_pergrad.proof.contraction_rules import labelled
from keras_pergrad.proof.layout import Layout
from keras_pergrad.uses.op_rules import op_rule

CONTRACTIONS = "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum"


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
        layout = layout or _repeated_layout(
            use, weight, data, output=output, x=x
        )
        if layout is None:
            return "its other input has no samples"
        if set(weight) - set(data) - set(output):
            return "it sums over an axis of the weight alone"
        sample = data[layout.axis]
        output_layout = use.layout
        if output[output_layout.axis : output_layout.axis + 1] != sample:
            return "the samples change their axis in it"
        sizes = dict(zip(weight, use.op.inputs[input_index].shape))
        other_sizes = dict(zip(output + data, [*y.shape, *x.shape]))
        broadcast_labels = {
            c for c in weight if sizes[c] == 1 and other_sizes[c] != 1
        }
        if sample in weight and sample not in broadcast_labels:
            return "the weight has an axis for the samples"
        if broadcast_labels & set(data) - set(output):
            return "an axis is broadcast in it"
        weight = [
            c for c in weight if c != sample and c not in broadcast_labels
        ]
        if any(sizes[c] is None for c in weight):
            return "the shape of the weight is not known"
        blocks = [c for c in weight if c in data and c in output]
        features = {c: sizes[c] for c in weight if c not in blocks}
        # A reshape to sizes of run time has lost those of other axes.
        x.set_shape(list(map(features.get, data)))
        use.deltas[0].set_shape(list(map(features.get, output)))
        data, output = layout.labels(data), output_layout.labels(output)
        return cls(
            data,
            "".join(weight),
            output,
            layout=layout,
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
    dz = use.delta(dtype)
    others = dict(positions=axes.positions, sizes=axes.sizes)
    x = arrange_axes(x, axes.data, axes.blocks, features=axes.inputs, **others)
    dz = arrange_axes(
        dz, axes.output, axes.blocks, features=axes.outputs, **others
    )
    factor_labels = [*axes.blocks, *axes.inputs, *axes.outputs]
    perm, unpermuted = permutation_to(factor_labels, axes.weight, axes.sizes)
    kind = Blocks if axes.blocks else Outer
    return kind(x, dz, shape, perm=perm, unpermuted=unpermuted)


def _repeated_layout(use, weight, data, *, output, x):
    """Return the layout of an input that was repeated for each sample."""
    label = output[use.layout.axis]
    size = use.op.outputs[0].shape[use.layout.axis]
    if label not in data:
        return None
    axis = data.index(label)
    # What the weight has no axis for is not repeated by the product itself.
    is_sample_axis = size is not None and x.shape[axis] == size
    if label in weight and not is_sample_axis:
        return None
    return dataclasses.replace(use.layout, axis=axis)


def permutation_to(labels, target, sizes):
    """Return `perm` and `unpermuted` that bring a factor's axes in an order."""
    perm = [labels.index(c) for c in target]
    if perm == sorted(perm):
        return None, None
    return perm, [sizes[c] for c in labels]


def arrange_axes(tensor, labels, blocks, *, positions, features, sizes):
    """Return (n, blocks as one axis if there are any, positions, features).

    The first of the tensor's labels is that of the samples. What is in none
    of the three lists is summed over. `sizes` has those of blocks and features.
    """
    order = [labels[0], *blocks, *positions, *features]
    summed_axes = [k for k, c in enumerate(labels) if c not in order]
    if summed_axes:
        tensor = tf.reduce_sum(tensor, integers(*summed_axes))
        labels = [c for c in labels if c in order]
    axes = [labels.index(c) for c in order]
    if axes != sorted(axes):
        tensor = tf.transpose(tensor, axes)
    block_size = [math.prod(map(sizes.get, blocks))] if blocks else []
    feature_size = math.prod(map(sizes.get, features))
    static_shape = tensor.shape.as_list()
    position_axes = slice(1 + len(blocks), len(static_shape) - len(features))
    static_count = tf.TensorShape(static_shape[position_axes]).num_elements()
    static_tail = [*block_size, static_count, feature_size]
    if static_shape[1:] == static_tail:
        return tensor
    # One size may be -1: that of the samples, unless it must be the count.
    sample_count = -1 if static_count else tf.shape(tensor)[0]
    position_count = static_count
    if static_count is None:
        position_count = tf.reduce_prod(tf.shape(tensor)[position_axes])
    tensor = tf.reshape(
        tensor,
        integers(sample_count, *block_size, position_count, feature_size),
    )
    tensor.set_shape([None, *static_tail])
    return tensor
