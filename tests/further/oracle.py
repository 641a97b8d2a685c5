"""Per-sample gradients by a loop over single samples, on a plain tape."""

import numpy as np
import tensorflow as tf


def one_by_one(model, x, y, *, draws=False):
    """The gradient of the model's whole loss on each sample alone.

    Args:
        model: a compiled model.
        x, y: the batch.
        draws: whether the model draws numbers: then sample i goes through it
            behind those before it, since the draws of fewer samples are the
            first of those of more; what these lose alone is taken off.

    Returns:
        One array (n, *shape) per trainable variable, None without influence.
    """
    n = len(tf.nest.flatten(x)[0])
    found = [
        _difference(model, x, y, i=i)
        if draws
        else _part(model, x, y, begin=i, end=i + 1)
        for i in range(n)
    ]
    return [
        None if column[0] is None else np.stack(column)
        for column in zip(*found)
    ]


def _difference(model, x, y, *, i):
    more = _part(model, x, y, begin=0, end=i + 1)
    if not i:
        return more
    return [
        None if a is None else (i + 1) * a - i * b
        for a, b in zip(more, _part(model, x, y, begin=0, end=i))
    ]


def _part(model, x, y, *, begin, end):
    """The gradient for some samples; the model's state is put back."""
    state = [tf.identity(v.value) for v in model.non_trainable_variables]
    x, y = tf.nest.map_structure(
        lambda a: tf.convert_to_tensor(a[begin:end]), (x, y)
    )
    with tf.GradientTape() as tape:
        y_pred = model(x, training=True)
        loss = model._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=None, training=True
        )
    gradients = tape.gradient(loss, model.trainable_variables)
    for variable, value in zip(model.non_trainable_variables, state):
        variable.assign(value)
    return [
        None if g is None else np.asarray(tf.convert_to_tensor(g))
        for g in gradients
    ]
