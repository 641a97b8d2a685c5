"""The tensors through which a loss may depend on a layer's output.

If Keras's crossentropies find the logits behind a softmax or sigmoid output,
they take these, so the loss may not depend on the output itself.
"""

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.model_parts import logits_behind


def loss_tensors(outputs):
    """Return all tensors of the outputs, flat, then the logits behind them."""
    flat = [t for t in tf.nest.flatten(outputs) if tf.is_tensor(t)]
    logits = [_logits(t) for t in flat]
    return flat + [t for t in logits if t is not None]


def read_by_crossentropy(tensor, activation):
    """Return what Keras's crossentropy reads, and whether these are logits.

    It takes the logits that any activation left at an output, or those in
    front of an op of its own `activation` ("Softmax", "Sigmoid"), whatever
    its `from_logits` says. In another type than the loss's it finds none.
    """
    if tensor.dtype != keras.config.floatx():
        return tensor, False
    logits = logits_behind(tensor)
    if logits is None and _is_made_by(tensor, activation):
        logits = tensor.op.inputs[0]
    # Without the mark of an activation in front of that one.
    return (tensor, False) if logits is None else (tf.identity(logits), True)


def _is_made_by(tensor, *activations):
    graph = not tf.executing_eagerly() and isinstance(tensor, tf.Tensor)
    return graph and tensor.op.type in activations


def _logits(tensor):
    logits = logits_behind(tensor)
    if logits is not None:
        return logits
    behind = _is_made_by(tensor, "Softmax", "Sigmoid")
    return tensor.op.inputs[0] if behind else None
