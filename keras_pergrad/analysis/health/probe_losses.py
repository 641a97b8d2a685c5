"""Losses of the probe that tell what a gradient does not.

Layers act as in prediction, so that samples are apart and nothing is drawn.
The model is left as it was.
"""

import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.measured_loss import measured_loss
from keras_pergrad.keras_internals.model_parts import call_model
from keras_pergrad.keras_internals.model_state import unchanged

DRAWS = 99


def of_halves(model, batch):
    """Return the loss of the whole probe and of its two halves."""
    n = len(tf.nest.flatten(batch[0])[0])
    parts = [slice(0, n), slice(0, n // 2), slice(n // 2, n)]
    with unchanged(model):
        return tuple(_loss(model, *_rows(batch, part)) for part in parts)


def of_other_labels(model, batch, draws=DRAWS):
    """Return the probe's loss, then with labels of other samples, (1 + D,).

    Empty if there are no labels.
    """
    x, y, sample_weight = batch
    if y is None:
        return ()
    n = len(tf.nest.flatten(y)[0])
    generator = np.random.default_rng(0)
    with unchanged(model):
        y_pred = call_model(model, x, training=False)
        orders = [np.arange(n)]
        orders += [generator.permutation(n) for _ in range(draws)]
        return tuple(
            float(
                measured_loss(
                    model, x, _rows(y, order), y_pred, sample_weight, False
                )
            )
            for order in orders
        )


def _loss(model, x, y, sample_weight):
    y_pred = call_model(model, x, training=False)
    return float(measured_loss(model, x, y, y_pred, sample_weight, False))


def _rows(batch, rows):
    """Return some rows of all tensors of a batch."""
    if isinstance(rows, slice):
        return tf.nest.map_structure(
            lambda t: None if t is None else t[rows], batch
        )
    return tf.nest.map_structure(
        lambda t: None if t is None else tf.gather(t, rows), batch
    )
