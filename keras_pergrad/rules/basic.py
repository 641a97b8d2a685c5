"""Rules of layers with matrix kernels, tables and scales.

n sample, t position, i in, o out.
"""

import keras

from keras_pergrad.factors import Outer, Rows, Sum
from keras_pergrad.rules.registry import register_rule


def _plain_kernel(layer, *args, **kwargs):
    """The reason against a matmul rule, for kernels that are not just read."""
    if getattr(layer, "lora_enabled", False):
        return "LoRA is enabled"
    if getattr(layer, "quantization_mode", None):
        return "the layer is quantized"
    return None


@register_rule(keras.layers.Dense, unsupported=_plain_kernel)
def dense(layer, inputs, dz):
    """kernel: sum over positions of x ⊗ dz; bias: sum over positions."""
    yield layer.kernel, Outer(inputs, dz)
    if layer.use_bias:
        yield layer.bias, Sum(dz)


@register_rule(keras.layers.Embedding, unsupported=_plain_kernel)
def embedding(layer, inputs, dz):
    """embeddings: each dz is added to the row of its id."""
    yield layer.embeddings, Rows(inputs, dz, layer.embeddings.shape)
