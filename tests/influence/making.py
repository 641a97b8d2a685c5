"""Scores of small models, and their gradients in rows."""

import numpy as np

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


def two_checkpoints(model, x, y, *, scores, folder):
    """Train a model; return two weights files, and the sum of both scores."""
    paths, parts = [], []
    for k in range(2):
        paths.append(folder / f"{k}.weights.h5")
        model.save_weights(paths[-1])
        parts.append(scores())
        trained(model, x, y)
    return paths, sum(parts)
