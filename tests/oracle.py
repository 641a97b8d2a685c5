"""The only reference: one sample after the other on a plain GradientTape."""

import importlib
from unittest import mock

import numpy as np
import tensorflow as tf


def per_sample_gradients(
    model, x, y, sample_weight=None, training=False, alone=True
):
    """n times what each sample contributes to the batch's gradient.

    Sample i alone goes through the model under the tape; the other rows of
    the prediction are constants. So the loss keeps the batch's denominators,
    whatever its reduction, weights and masks.

    Args:
        alone: False: the others go through the model with it, for models
            whose outputs depend on the number of samples.

    Returns:
        One array (n, *shape) per trainable variable, None without influence.
    """
    batch = _call(model, x, training)
    flat = tf.nest.flatten(batch)
    n = int(flat[0].shape[0])
    samples = []
    for i in range(n):
        row = tf.nest.map_structure(lambda t, i=i: t[i : i + 1], x)
        with tf.GradientTape() as tape:
            if alone:
                single = tf.nest.flatten(_call(model, row, training))
            else:
                whole = tf.nest.flatten(_call(model, x, training))
                single = [t[i : i + 1] for t in whole]
            joined = [_insert(b, s, i) for b, s in zip(flat, single)]
            y_pred = tf.nest.pack_sequence_as(batch, joined)
            loss = model._compile_loss(y, y_pred, sample_weight)
        gradients = tape.gradient(loss, model.trainable_variables)
        samples.append(
            [
                None if g is None else n * np.asarray(tf.convert_to_tensor(g))
                for g in gradients
            ]
        )
    return [
        None if column[0] is None else np.stack(column)
        for column in zip(*samples)
    ]


def _call(model, x, training):
    """Keras's own recurrent loops: with masks cuDNN gives something else."""
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    with mock.patch.object(rnn, "_is_gpu_available", return_value=False):
        return model(x, training=training)


def _insert(batch, single, i):
    joined = tf.concat(
        [tf.stop_gradient(batch[:i]), single, tf.stop_gradient(batch[i + 1 :])],
        0,
    )
    mask = getattr(batch, "_keras_mask", None)
    if mask is not None:
        joined._keras_mask = mask
    return joined


def batch_gradient(model, x, y, sample_weight=None, training=False):
    """The ordinary gradient of the compiled loss, regularisers left out."""
    with tf.GradientTape() as tape:
        y_pred = _call(model, x, training)
        loss = model._compile_loss(y, y_pred, sample_weight)
    return [
        None if g is None else np.asarray(tf.convert_to_tensor(g))
        for g in tape.gradient(loss, model.trainable_variables)
    ]


def tolerance(dtype):
    """rtol and atol: what rounding may do in this float type."""
    if dtype == "float64":
        return {"rtol": 1e-10, "atol": 1e-10}
    return {"rtol": 1e-4, "atol": 1e-5}


def assert_agree(found, expected):
    """Asserts that two lists of gradients are equal up to rounding."""
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected)):
        assert (a is None) == (b is None), f"variable {k}: {a} against {b}"
        if a is not None:
            a, b = np.asarray(a), np.asarray(b)
            assert a.shape == b.shape
            scale = max(1.0, float(np.abs(b).max(initial=0.0)))
            limits = tolerance(b.dtype.name)
            limits["atol"] *= scale
            np.testing.assert_allclose(a, b, **limits, err_msg=f"variable {k}")


def check(per_sample, model, x, y, sample_weight=None, training=False):
    """Asserts that `per_sample` is the oracle's, and means to the batch's."""
    expected = per_sample_gradients(model, x, y, sample_weight, training)
    assert_agree(per_sample, expected)
    means = [None if g is None else np.mean(g, 0) for g in per_sample]
    assert_agree(means, batch_gradient(model, x, y, sample_weight, training))
