"""The numbers that the random layers of a model draw for a batch."""

import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals import draws, onednn
from keras_pergrad.keras_internals.graph_session import trace_step
from keras_pergrad.keras_internals.model_parts import call_model


def record(model, x):
    """Return what random layers draw for a batch, in order; seeds advance."""
    found = []

    def forward(batch):
        found.clear()
        with draws.recording(found.append):
            return call_model(model, batch)

    concrete, _ = trace_step(forward, x)
    if not found:
        return []
    harm = onednn.defect(concrete.graph)
    if harm:
        raise ValueError(f"The model cannot be checked here: {harm}.")
    with tf.device("/device:CPU:0"):
        forward(tf.nest.map_structure(tf.constant, x))
    n = len(tf.nest.flatten(x)[0])
    for draw in found:
        shape = draw.result.shape
        if draw.name == "shuffle" or not shape.rank or shape[0] not in (1, n):
            raise ValueError(
                f"Expected random draws of a row for each sample. Received: "
                f"keras.random.{draw.name} of shape {tuple(shape)} in "
                f"{model.name!r}, of which a sample alone cannot be given "
                f"its own. Draw numbers of shape (batch, ...)."
            )
    return [np.asarray(draw.rows()) for draw in found]
