"""The optimizers inside of an optimizer.

A `LossScaleOptimizer` has one, a `MultiOptimizer` (Keras 3.13 and later) one
for each part of the variables; these apply the gradients.
"""

import keras
import tensorflow as tf


def all_of(optimizer):
    """List an optimizer and all inside of it, from the outside in."""
    # A `MultiOptimizer` whose parts a function chooses knows them once built.
    optimizers: list = []
    waiting = [optimizer]
    while waiting:
        this = waiting.pop(0)
        if this is None or any(this is other for other in optimizers):
            continue
        optimizers.append(this)
        waiting.append(getattr(this, "inner_optimizer", None))
        waiting += getattr(this, "optimizers", None) or []
    return optimizers


def loss_scale(optimizer):
    """Return the factor by which the optimizer scales the loss, or None."""
    if optimizer is None:
        return None
    wide = keras.config.floatx() == "float64"
    one = tf.ones([], "float64" if wide else "float32")
    scaled = optimizer.scale_loss(one)
    return None if scaled is one else scaled


def learning_rate(optimizer):
    """Return the learning rate of the next update, of the one that updates."""
    rates = [
        part.learning_rate
        for part in all_of(optimizer)
        if getattr(part, "inner_optimizer", None) is None
    ]
    return rates[0]


def accumulating(optimizer):
    """Return the first optimizer inside that accumulates, or None."""
    for part in all_of(optimizer):
        if getattr(part, "gradient_accumulation_steps", None):
            return part
    return None
