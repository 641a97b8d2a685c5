"""The gradient of a training batch, read in the step that trains on it."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.measurement.batch_gradient import (
    BatchGradient,
    variances_of,
)
from keras_pergrad.common.squared_norms import squared_norm
from keras_pergrad.keras_internals.penalties import regularization_loss
from keras_pergrad.modes.step_reading import StepReader


class TrainingReader(StepReader):
    """Reads the gradient of the batch, and what instruments are made of.

    Args:
        quantities: a function of the model, once it is built; returns the
            `SampleQuantities`.

    Attributes:
        is_wanted: whether the next step is read.
        measured: the `BatchGradient` of the last one, or None.
    """

    def __init__(self, quantities):
        self._quantities = quantities
        self.is_wanted, self.measured = False, None

    def is_due(self):
        return self.is_wanted

    def read(self, samples):
        dtype, known = samples.dtype, {}
        known["squared_norms"] = samples.squared_norms()
        known["mean"] = samples.mean()
        given = samples.n, samples.factors, known["mean"], dtype
        known |= self._quantities(samples.model)(*given)
        loss = known["loss_with_penalties"] = samples.loss
        if type(samples.model).compute_loss is keras.Model.compute_loss:
            penalty = regularization_loss(samples.variables)
            loss -= tf.cast(penalty, loss.dtype)
        return {**known, "loss": loss}

    def receive(self, values):
        known = tf.nest.map_structure(np.asarray, values)
        gradient, loss = known.pop("mean"), known.pop("loss_with_penalties")
        norms = known["squared_norms"]
        n = norms.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):
            squares = np.array([squared_norm(g) for g in gradient])
            variances = variances_of(norms, squares) if n > 1 else None
        given = n, float(loss), list(gradient), squares, variances
        self.measured = BatchGradient(*given, observed=known)
