"""The tensors through which a loss may depend on a layer's output.

If Keras's crossentropies find the logits behind a softmax or sigmoid output,
they take these, so the loss may not depend on the output itself.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.model_parts import logits_behind


def loss_tensors(outputs):
    """Return all tensors of the outputs, flat, then the logits behind them."""
    flat = [t for t in tf.nest.flatten(outputs) if tf.is_tensor(t)]
    logits = [_logits(t) for t in flat]
    return flat + [t for t in logits if t is not None]


def _logits(tensor):
    logits = logits_behind(tensor)
    if logits is not None:
        return logits
    if tf.executing_eagerly() or not isinstance(tensor, tf.Tensor):
        return None
    behind = tensor.op.type in ("Softmax", "Sigmoid")
    return tensor.op.inputs[0] if behind else None
