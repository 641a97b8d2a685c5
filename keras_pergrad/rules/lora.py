"""Layers with LoRA enabled: the kernel is K + s·a·b, and K is frozen.

Private names in use: `Dense._kernel`, `BaseConv._kernel`,
`Embedding._embeddings`.
"""

import tensorflow as tf

from keras_pergrad.factors import Outer, Patches, Rows


def lora_scale(layer):
    """The factor s of a·b; Keras has `lora_alpha` from 3.9 on."""
    alpha = getattr(layer, "lora_alpha", None) or layer.lora_rank
    return alpha / layer.lora_rank


def dense_kernel(layer, inputs, dz):
    """x·(K + s·a·b): a sees x and s·dz·bᵀ, b sees s·x·a and dz."""
    a, b = _values(layer.lora_kernel_a, layer.lora_kernel_b, dz.dtype)
    dz_scaled = dz * tf.cast(lora_scale(layer), dz.dtype)
    # tensordot works in two dimensions: a batch matmul with a broadcast
    # right side goes wrong in oneDNN for shape (n, 1, t, i).
    yield layer._kernel, Outer(inputs, dz)
    yield (
        layer.lora_kernel_a,
        Outer(inputs, tf.tensordot(dz_scaled, tf.transpose(b), 1)),
    )
    yield layer.lora_kernel_b, Outer(tf.tensordot(inputs, a, 1), dz_scaled)


def embedding_table(layer, ids, dz):
    """(E + s·a·b)[ids]: a is a table, too; b sees s·a[ids] and dz."""
    a, b = _values(layer.lora_embeddings_a, layer.lora_embeddings_b, dz.dtype)
    dz_scaled = dz * tf.cast(lora_scale(layer), dz.dtype)
    yield layer._embeddings, Rows(ids, dz, layer._embeddings.shape)
    yield (
        layer.lora_embeddings_a,
        Rows(ids, tf.tensordot(dz_scaled, tf.transpose(b), 1), a.shape),
    )
    yield layer.lora_embeddings_b, Outer(tf.gather(a, ids), dz_scaled)


def convolution_kernel(layer, x, dz, windows):
    """x∗(K + s·a·b): a sees x and s·dz·bᵀ, b sees s·(x∗a) and dz.

    Channels last, one group.
    """
    a, b = _values(layer.lora_kernel_a, layer.lora_kernel_b, dz.dtype)
    dz_scaled = dz * tf.cast(lora_scale(layer), dz.dtype)
    yield layer._kernel, Patches(x, dz, windows, layer._kernel.shape)
    yield (
        layer.lora_kernel_a,
        Patches(
            x, tf.tensordot(dz_scaled, tf.transpose(b), 1), windows, a.shape
        ),
    )
    between = tf.nn.convolution(
        windows.pad(x),
        a,
        windows.strides,
        "VALID",
        dilations=windows.dilation,
    )
    yield layer.lora_kernel_b, Outer(between, dz_scaled)


def _values(a, b, dtype):
    return [tf.cast(tf.convert_to_tensor(v), dtype) for v in (a, b)]
