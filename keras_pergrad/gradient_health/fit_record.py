"""The record of a `fit` that advice is given on, beside the readings."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from keras_pergrad.functions.batch_loss import measured_loss
from keras_pergrad.gradient_health.premises import (
    calls_per_update,
    facts_of_updates,
)
from keras_pergrad.keras_internals.models.optimizers import learning_rate
from keras_pergrad.keras_internals.models.parts import call_model
from keras_pergrad.keras_internals.state.model import unchanged


@dataclasses.dataclass(frozen=True)
class FitRecord:
    """What is known of a `fit`; None or empty: not known.

    Attributes:
        batch_size: samples of an update.
        optimizer: the name of its class, such as "SGD"; of one inside another
            the innermost.
        follows_mean: whether updates follow the mean of the samples'
            gradients: none is clipped, noisy, or weighed otherwise. Else the
            loss may stay high, and the gradient may not vanish, at the best
            weights that can be had.
        adds_noise: whether gradients are made noisy.
        has_single_updates: whether a call of the train function makes one
            update at most.
        learning_rates: the rate at each reading.
        losses: the probe's loss at each reading.
        first_loss: the probe's loss before the first update.
        half_losses: the same of its first and of its second half.
        weight_norms: ‖w‖ of each trainable variable before the first update.
        frozen_norm: that of all weights that are not trained.
    """

    batch_size: int | None = None
    optimizer: str = ""
    follows_mean: bool = True
    adds_noise: bool = False
    has_single_updates: bool = True
    learning_rates: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    first_loss: float | None = None
    half_losses: tuple[float, ...] = ()
    weight_norms: tuple[float, ...] = ()
    frozen_norm: float = 0.0

    @property
    def has_no_noise(self):
        """Whether an update shows what its gradient does."""
        return not self.adds_noise

    @property
    def learned(self):
        """Whether the probe's loss has come down by half at least."""
        finite_losses = [v for v in self.losses[-3:] if math.isfinite(v)]
        if not finite_losses or self.first_loss is None:
            return False
        return min(finite_losses) < 0.5 * self.first_loss

    @property
    def rate(self):
        """The largest learning rate at a reading, or None."""
        return max(self.learning_rates, default=None)


class FitRecorder:
    """Notes what advice needs beside the readings.

    Made before the first update; `batch` is the probe, (x, y, sample_weight).

    Attributes:
        record: the `FitRecord` up to now.
    """

    def __init__(self, model, batch, batch_size=None):
        self._model = model
        if batch_size is not None:
            batch_size *= calls_per_update(model)
        first_loss, *half_losses = _losses(model, batch)
        self.record: FitRecord = FitRecord(
            **facts_of_updates(model),
            batch_size=batch_size,
            first_loss=first_loss,
            half_losses=tuple(half_losses),
            weight_norms=tuple(map(_norm, model.trainable_variables)),
            frozen_norm=math.hypot(*map(_norm, model.non_trainable_variables)),
        )

    def record_reading(self, loss):
        """Note the probe's loss, and the rate, at a reading."""
        rate = learning_rate(self._model.optimizer)
        rate = float(tf.convert_to_tensor(rate))
        self.record = dataclasses.replace(
            self.record,
            losses=(*self.record.losses, float(loss)),
            learning_rates=(*self.record.learning_rates, rate),
        )


def _losses(model, batch):
    """Return the loss of the whole probe and of its halves.

    Layers act as in prediction, so that no sample depends on another one and
    nothing is random. The model is left as it was.
    """
    n = len(tf.nest.flatten(batch[0])[0])

    def loss_of(rows):
        x, y, sample_weight = tf.nest.map_structure(
            lambda t: None if t is None else t[rows], batch
        )
        loss = measured_loss(
            model,
            x,
            y,
            y_pred=call_model(model, x, training=False),
            sample_weight=sample_weight,
            training=False,
        )
        return float(loss)

    parts = slice(0, n), slice(0, n // 2), slice(n // 2, n)
    with unchanged(model):
        return [loss_of(rows) for rows in parts]


def _norm(variable):
    """Return the norm of a float variable; 0 of others, such as seeds."""
    if not tf.as_dtype(variable.dtype).is_floating:
        return 0.0
    return float(np.linalg.norm(np.asarray(variable).astype("float64")))
