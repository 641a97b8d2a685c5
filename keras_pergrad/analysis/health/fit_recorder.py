"""Notes that are taken during a `fit`, for advice on it."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.health import probe_losses
from keras_pergrad.analysis.health.fit_record import Fit
from keras_pergrad.analysis.health.layer_origins import origins
from keras_pergrad.keras_internals.model_parts import layers_of


class FitRecorder:
    """Notes what advice needs beside the readings.

    Made before the first update; `batch` is the probe, (x, y, sample_weight).
    """

    def __init__(self, model, batch, batch_size=None):
        self._model, self._batch = model, batch
        whole, *halves = probe_losses.of_halves(model, batch)
        trained, untrained, frozen = origins(layers_of(model))
        variables = model.trainable_variables
        self._fit = Fit(
            batch_size=batch_size,
            optimizer=type(model.optimizer).__name__,
            first_loss=whole,
            half_losses=tuple(halves),
            input_scale=_largest_scale(batch[0]),
            shapes=tuple(tuple(v.shape) for v in variables),
            weight_norms=tuple(map(_norm, variables)),
            frozen_norm=math.hypot(*map(_norm, model.non_trainable_variables)),
            trained_before=trained,
            untrained=untrained,
            untrained_frozen=frozen,
        )

    def reading(self, loss):
        """Note the probe's loss, and the rate, at a reading."""
        optimizer = self._model.optimizer
        rate = float(tf.convert_to_tensor(optimizer.learning_rate))
        self._fit = dataclasses.replace(
            self._fit,
            losses=(*self._fit.losses, float(loss)),
            learning_rates=(*self._fit.learning_rates, rate),
        )

    def record(self):
        """Return the `Fit` up to now."""
        # What is frozen may be set from outside, as target networks are.
        _, _, frozen = origins(layers_of(self._model))
        still = [p for p in self._fit.untrained_frozen if p in frozen]
        labels = ()
        if not self._fit.learned:
            labels = probe_losses.of_other_labels(self._model, self._batch)
        return dataclasses.replace(
            self._fit, untrained_frozen=tuple(still), label_losses=labels
        )


def _norm(variable):
    """Return the norm of a float variable; 0 of others, such as seeds."""
    if not tf.as_dtype(variable.dtype).is_floating:
        return 0.0
    return float(np.linalg.norm(np.asarray(variable).astype("float64")))


def _largest_scale(x):
    """Return the largest root mean square of a float input, or None."""
    scales = [
        float(np.sqrt(np.mean(np.square(np.asarray(t, "float64")))))
        for t in tf.nest.flatten(x)
        if t.dtype.is_floating
    ]
    return max(scales, default=None)
