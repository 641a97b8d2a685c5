"""Rules of layers with matrix kernels and tables.

n sample, t position, i in, o out.
"""

import keras
import tensorflow as tf

from keras_pergrad.factors import Outer, Rows, Sum
from keras_pergrad.rules import lora
from keras_pergrad.rules.registry import register_rule


def quantized(layer, *args, **kwargs):
    """The reason against a rule for a kernel that is not just read."""
    if getattr(layer, "quantization_mode", None):
        return "the layer is quantized"
    return None


@register_rule(keras.layers.Dense, unsupported=quantized)
def dense(layer, inputs, dz):
    """kernel: sum over positions of x ⊗ dz; bias: sum over positions of dz."""
    if layer.lora_enabled:
        yield from lora.dense_kernel(layer, inputs, dz)
    else:
        yield layer.kernel, Outer(inputs, dz)
    if layer.use_bias:
        yield layer.bias, Sum(dz)


@register_rule(keras.layers.Embedding, unsupported=quantized)
def embedding(layer, inputs, dz):
    """embeddings: each dz is added to the row of its id."""
    ids = inputs
    if ids.dtype not in (tf.int32, tf.int64):
        # As the layer itself does.
        ids = tf.cast(ids, tf.int32)
    # Keras counts negative ids from the end, as NumPy does.
    ids = tf.where(ids < 0, ids + layer.input_dim, ids)
    if layer.lora_enabled:
        yield from lora.embedding_table(layer, ids, dz)
    else:
        yield layer.embeddings, Rows(ids, dz, layer.embeddings.shape)
