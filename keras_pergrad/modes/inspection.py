"""Checks of a model and a batch for the inspection of their gradients."""

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common import refusal_messages
from keras_pergrad.common.batches import require_arrays
from keras_pergrad.keras_internals.models.parts import (
    layers_of,
    require_targets,
    symbolic_inputs,
    trace_symbolically,
)


def require_model(model):
    """Refuse what is not a model."""
    if isinstance(model, keras.Model):
        return
    received = f"an object of type {type(model).__name__}"
    if isinstance(model, type):
        received = f"the class {model.__name__}; write {model.__name__}(...)"
    raise TypeError(f"`model` must be a keras.Model. Received: {received}")


def require_compiled(model):
    """Refuse what is not a compiled model."""
    require_model(model)
    if not model.compiled:
        raise ValueError(
            f"Model {model.name!r} is not compiled, so it has no loss. Call "
            "model.compile(loss=...) first."
        )


def require_no_data_set(x):
    """Refuse a data set in place of one batch."""
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        name = "Dataset" if isinstance(x, tf.data.Dataset) else "PyDataset"
        example = "next(iter(dataset))" if name == "Dataset" else "dataset[0]"
        raise ValueError(
            "Expected `x` and `y`, the arrays of one batch, such as "
            f"x, y = {example}. Received: a {name}"
        )


def require_one_batch(model, x, y):
    """Refuse what is not one batch of arrays with its targets."""
    require_no_data_set(x)
    require_arrays(x, y)
    if y is None:
        require_targets(model, (x, y), "`y`")


def mixes_in_training_only(model, error):
    """Whether an error is about a model that mixes only in training."""
    return "gradient_mode" in str(error) and any(
        isinstance(layer, keras.layers.BatchNormalization)
        for layer in layers_of(model)
    )


def require_finite(norms):
    """Refuse gradients with NaN or infinity, and name their samples."""
    nonfinite = np.flatnonzero(~np.isfinite(norms))
    if nonfinite.size:
        listing = ", ".join(map(str, nonfinite[:20])) + (
            f" and {nonfinite.size - 20} more" if nonfinite.size > 20 else ""
        )
        raise ValueError(
            f"The gradients of samples {listing} are not finite. Look for NaN "
            "or infinity in x[i] and y[i] of these samples, or for a loss "
            "that overflows on them. Where explain(model) says 'fallback', one "
            "such sample takes all others of its batch with it: pass each "
            "alone."
        )


NOT_IN_TRAINING = (
    " Here you may also pass training=False: the layers then act as in "
    "evaluate(), BatchNormalization by its moving statistics, and every "
    "sample has a gradient of its own, as for finding wrong labels."
)


def require_any_batch_size(
    model,
    user="gradient_mode='per_sample'",
    how="calls it with one sample at a time",
):
    """Refuse a model that is made for batches of one size.

    `user`, `how`: what needs another size, and what it does with it.
    """
    size, reason = fixed_batch_size(model), f"{user} {how}"
    for layer in layers_of(model):
        if getattr(layer, "stateful", False) and size != 1:
            size_text = "one size" if size is None else size
            message = refusal_messages.stateful_batch_size(
                layer, size_text, reason
            )
            raise ValueError(message)
    # A size that the inputs name need not bind: a Sequential built by a call
    # names the size of that call, and Keras takes any. So one sample is tried.
    if size not in (None, 1):
        try:
            trace_symbolically(model, _one_sample(model))
        except Exception as error:  # whatever code of a layer raises
            message = refusal_messages.fixed_batch_size(model, size, reason)
            raise ValueError(message) from error


def fixed_batch_size(model):
    """Return the number of samples that a model's inputs name, or None."""
    sizes = {
        t.shape[0]
        for t in tf.nest.flatten(getattr(model, "inputs", None) or [])
        if len(t.shape)
    }
    sizes -= {None}
    return max(sizes, default=None)


def _one_sample(model):
    """Return symbolic inputs of one sample."""
    inputs = symbolic_inputs(model)
    if inputs is None:  # a Sequential
        (inputs,) = model.inputs
    return tf.nest.map_structure(
        lambda t: keras.KerasTensor((1, *t.shape[1:]), t.dtype, t.sparse),
        inputs,
    )
