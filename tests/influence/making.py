"""Scores of small models, and their gradients in rows."""

import numpy as np
import tensorflow as tf

import keras_pergrad as kpg
from tests.models.making import trained


def influence_of(model, *data, curvature="none", **how):
    """An `Influence` that shows no progress."""
    how = {"verbose": 0, **how}
    return kpg.influence.Influence(model, *data, curvature=curvature, **how)


def rows_of(gradients):
    """Gradients of n samples by variable → those of all in use, (n, P)."""
    used = [g for g in gradients if g is not None]
    return np.concatenate([np.reshape(g, (len(g), -1)) for g in used], 1)


def gradient_of(model, value):
    """The gradient of `value()`, of all variables in use in one row."""
    with tf.GradientTape() as tape:
        result = value()
    gradients = tape.gradient(
        result, [v.value for v in model.trainable_variables]
    )
    return rows_of(
        [g if g is None else tf.convert_to_tensor(g)[None] for g in gradients]
    )[0]


def assert_near(found, right, share):
    """Assert that errors are at most a share of the largest right number."""
    limit = share * np.abs(right).max()
    np.testing.assert_allclose(found, right, rtol=0, atol=limit)


def two_checkpoints(model, x, y, *, scores, folder):
    """Train a model; return two weights files, and the sum of both scores."""
    paths, parts = [], []
    for k in range(2):
        paths.append(folder / f"{k}.weights.h5")
        model.save_weights(paths[-1])
        parts.append(scores())
        trained(model, x, y)
    return paths, sum(parts)
