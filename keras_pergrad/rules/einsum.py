"""The rule of EinsumDense, and so of the attention layers built from it.

Every label of the equation plays one part:

| label in | part |
|---|---|
| input and output, first | the sample |
| input and output | a position, summed over |
| input and kernel | i, contracted forward |
| kernel and output | o |
| all three | a block: each has a kernel of its own |
| input alone | summed over in the input |

Private names in use: `EinsumDense._kernel` (the kernel without LoRA).
"""

import re
import string

import keras
import tensorflow as tf

from keras_pergrad.factors import Full, Outer, Sum
from keras_pergrad.rules.lora import lora_scale
from keras_pergrad.rules.registry import register_rule


def terms(equation, rank):
    """The labels of input, kernel and output, ellipses spelled out.

    Args:
        equation: of the form "[X],[Y]->[Z]", with "..." in X and Z or not.
        rank: the rank of the input.
    """
    source, kernel, target = re.split(",|->", equation)
    named = len(source.replace("...", ""))
    free = [c for c in string.ascii_letters if c not in equation]
    dots = "".join(free[: rank - named])
    return source.replace("...", dots), kernel, target.replace("...", dots)


def _unsupported(layer, inputs, *args, **kwargs):
    if getattr(layer, "quantization_mode", None):
        return "the layer is quantized"
    source, kernel, target = terms(layer.equation, len(inputs.shape))
    if source[0] != target[0] or source[0] in kernel:
        return f"equation {layer.equation!r} moves the samples off axis 0"
    if any(len(set(term)) < len(term) for term in (source, kernel, target)):
        return f"equation {layer.equation!r} repeats a label in one term"
    if set(kernel) - set(source) - set(target):
        return f"equation {layer.equation!r} sums over a kernel axis"
    if layer.lora_enabled and kernel[-1] in source and kernel[-1] in target:
        return "LoRA acts on an axis of blocks"
    if layer.bias is not None and len(layer.bias.shape) >= len(target):
        return "the bias has an axis for the samples"
    return None


@register_rule(keras.layers.EinsumDense, unsupported=_unsupported)
def einsum_dense(layer, inputs, dz):
    """kernel: sum over positions of x ⊗ dz; bias: sum over its other axes."""
    labels = terms(layer.equation, inputs.shape.rank)
    yield layer._kernel, contributions(labels, inputs, dz, layer._kernel.shape)
    if layer.lora_enabled:
        yield from _low_rank(layer, labels, inputs, dz)
    if layer.bias is not None:
        yield layer.bias, added(dz, layer.bias.shape)


def _low_rank(layer, labels, inputs, dz):
    """LoRA's kernel a·b is two einsums, one after the other."""
    source, kernel, target = labels
    a = tf.cast(tf.convert_to_tensor(layer.lora_kernel_a), dz.dtype)
    b = tf.cast(tf.convert_to_tensor(layer.lora_kernel_b), dz.dtype)
    last = kernel[-1]
    rank = next(c for c in string.ascii_letters if c not in "".join(labels))
    kernel_a, kernel_b = kernel[:-1] + rank, rank + last
    dz *= tf.cast(lora_scale(layer), dz.dtype)
    if last in target:
        between = target.replace(last, rank)
        hidden = tf.einsum(f"{source},{kernel_a}->{between}", inputs, a)
        d_hidden = tf.einsum(f"{target},{kernel_b}->{between}", dz, b)
        for_a = (source, kernel_a, between), inputs, d_hidden
        for_b = (between, kernel_b, target), hidden, dz
    else:
        between = source.replace(last, rank)
        hidden = tf.einsum(f"{source},{kernel_b}->{between}", inputs, b)
        d_hidden = tf.einsum(f"{target},{kernel_a}->{between}", dz, a)
        for_a = (between, kernel_a, target), hidden, dz
        for_b = (source, kernel_b, between), inputs, d_hidden
    yield layer.lora_kernel_a, contributions(*for_a, a.shape)
    yield layer.lora_kernel_b, contributions(*for_b, b.shape)


def contributions(labels, x, dz, shape):
    """The factor of the kernel in einsum(x, kernel) with output gradient dz.

    Args:
        labels: of input, kernel and output, as from `terms`.
        x: the input.
        dz: the gradient of the output.
        shape: the kernel's shape.
    """
    source, kernel, target = labels
    alone = [c for c in source if c not in kernel and c not in target]
    if alone:
        x = tf.reduce_sum(x, [source.index(c) for c in alone])
        source = "".join(c for c in source if c not in alone)
    if any(c in source and c in target for c in kernel):
        return Full(tf.einsum(f"{source},{target}->{source[0]}{kernel}", x, dz))
    lead = [c for c in source if c in target]
    rows = [c for c in source if c not in lead]
    columns = [c for c in target if c not in lead]
    factors = (
        _flattened(x, source, lead, rows),
        _flattened(dz, target, lead, columns),
    )
    order = rows + columns
    perm = [order.index(c) for c in kernel]
    if perm == sorted(perm):
        return Outer(*factors, shape=list(shape))
    sizes = [shape[kernel.index(c)] for c in order]
    return Outer(*factors, shape=list(shape), perm=perm, unpermuted=sizes)


def _flattened(tensor, labels, lead, features):
    """`tensor` as (*lead, the product of the features)."""
    perm = [labels.index(c) for c in lead + features]
    if perm != sorted(perm):
        tensor = tf.transpose(tensor, perm)
    if len(features) == 1:
        return tensor
    sizes = tensor.shape.as_list()
    before = sizes[: len(lead)]
    if before.count(None) > 1:
        before = tf.shape(tensor)[: len(lead)]
    else:
        before = [-1 if size is None else size for size in before]
    size = tensor.shape[len(lead) :].num_elements()
    return tf.reshape(tensor, tf.concat([before, [size]], 0))


def added(dz, shape):
    """The factor of a variable that was added, broadcast, to the output.

    Args:
        dz: the gradient of the output, of a higher rank than the variable.
        shape: the variable's shape.
    """
    shape = list(shape)
    offset = dz.shape.rank - len(shape)
    spread = [
        a + offset
        for a, size in enumerate(shape)
        if size == 1 and dz.shape[a + offset] != 1
    ]
    if not spread:
        return Sum(dz, shape)
    dz = tf.reduce_sum(dz, [*range(1, offset), *spread])
    return Full(tf.reshape(dz, [-1, *shape]))
