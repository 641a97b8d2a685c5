"""What the answers must be: single samples on a plain GradientTape.

Nothing of the package is used here.
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf


@contextlib.contextmanager
def restored(model):
    """Puts back every variable of the model when it closes."""
    kept = [(v, np.array(v)) for v in all_variables(model)]
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)


def all_variables(model):
    """The model's variables, and those that its layers keep by themselves."""
    plain = [
        value
        for layer in model._flatten_layers()
        for value in vars(layer).values()
        if isinstance(value, tf.Variable)
    ]
    return [*model.variables, *plain]


def row(value, i):
    """Sample i of arrays or lists of them, as a batch of one."""
    return tf.nest.map_structure(lambda t: t[i : i + 1], value)


def added_losses(model, n, copies=False):
    """The sum of what layers added in a call on one of n samples.

    Args:
        model: the model.
        n: the number of samples.
        copies: whether the call was on n copies of the sample.
    """
    total = 0.0
    for layer in model._flatten_layers():
        for loss in layer._get_own_losses():
            is_sum = getattr(layer, "added", "mean") == "sum" and not copies
            total += tf.cast(
                loss if is_sum else loss / n, keras.config.floatx()
            )
    return total


def contributions(model, x, y, sample_weight, samples=None, copies=False):
    """n times what each sample adds to the gradient of the batch's loss.

    Sample i goes through the model alone; the other rows of the outputs are
    constants, so that the loss keeps the denominators of the batch.

    Args:
        model, x, y, sample_weight: the compiled model and its data.
        samples: which ones; default: all.
        copies: whether the sample comes with as many copies of itself as
            there are samples: nobody else, but a batch of the same size.

    Returns:
        For each sample a list of arrays, None without influence.
    """
    with restored(model):
        batch = model(x, training=True)
    flat = tf.nest.flatten(batch)
    n = int(flat[0].shape[0])
    found = []
    for i in range(n) if samples is None else samples:
        with restored(model), tf.GradientTape() as tape:
            model._clear_losses()
            alone = row(x, i)
            if copies:
                alone = tf.nest.map_structure(
                    lambda t: np.repeat(t, n, 0), alone
                )
            alone = tf.nest.flatten(model(alone, training=True))
            if copies:
                alone = row(alone, i)
            joined = []
            for rows, one in zip(flat, alone):
                rows = tf.stop_gradient(rows)
                joined.append(tf.concat([rows[:i], one, rows[i + 1 :]], 0))
            for rows, new in zip(flat, joined):
                mask = getattr(rows, "_keras_mask", None)
                if mask is not None:
                    new._keras_mask = mask
            outputs = tf.nest.pack_sequence_as(batch, joined)
            loss = model._compile_loss(y, outputs, sample_weight)
            loss += added_losses(model, n, copies)
            gradients = tape.gradient(loss, model.trainable_variables)
        # Not n times the loss: a gradient that is clipped on its way back
        # would be another.
        found.append([None if g is None else n * _array(g) for g in gradients])
    return found


def batch_gradient(model, x, y, sample_weight):
    """The gradient of the compiled loss and of what layers add."""
    with restored(model), tf.GradientTape() as tape:
        model._clear_losses()
        outputs = model(x, training=True)
        loss = model._compile_loss(y, outputs, sample_weight)
        loss += added_losses(model, 1)
        gradients = tape.gradient(loss, model.trainable_variables)
    return [_array(g) for g in gradients]


def _array(gradient):
    if gradient is None:
        return None
    return np.asarray(tf.convert_to_tensor(gradient), "float64")


def distance(found, expected, finest=1e-3):
    """The largest difference over lists of arrays, as a part of their size.

    Every array is measured by itself, but not more finely than by this part
    of the largest. None is zero. NaN is infinitely far.
    """
    sizes = [0.0 if e is None else np.abs(e).max(initial=0.0) for e in expected]
    least = finest * max(sizes, default=0.0) + 1e-6
    worst = 0.0
    for a, e, size in zip(found, expected, sizes, strict=True):
        if a is None and e is None:
            continue
        a = 0.0 if a is None else np.asarray(a, "float64")
        e = 0.0 if e is None else np.asarray(e, "float64")
        apart = np.abs(a - e).max(initial=0.0) / (size + least)
        worst = max(worst, np.inf if np.isnan(apart) else float(apart))
    return worst


def norms(samples):
    """The norm of each sample's gradient over all variables."""
    return np.array(
        [
            np.sqrt(sum(np.sum(g**2) for g in sample if g is not None))
            for sample in samples
        ]
    )
