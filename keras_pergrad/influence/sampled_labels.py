"""Targets drawn from what the model predicts, for its Fisher matrix.

With them the mean of g gᵀ is the Gauss-Newton matrix of these losses; with
the data's own targets it is not (Kunstner et al., arXiv 1905.12558).
"""

import weakref

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.keras_internals.batches import ranks
from keras_pergrad.keras_internals.model_parts import (
    call_arguments_of,
    call_model,
    compile_arguments,
    compiled_loss,
    entries_of,
)
from keras_pergrad.keras_internals.model_state import (
    random_state_kept,
    run_and_restore,
)
from keras_pergrad.keras_internals.tracing import traced_functions
from keras_pergrad.samples import function_cache

_losses = keras.losses
#: A loss function → its class, and how its targets are drawn.
_KINDS = {
    _losses.sparse_categorical_crossentropy: "sparse",
    _losses.categorical_crossentropy: "one_hot",
    _losses.binary_crossentropy: "binary",
    _losses.mean_squared_error: "normal",
}
_SERVED = (
    "SparseCategoricalCrossentropy, CategoricalCrossentropy, "
    "BinaryCrossentropy and MeanSquaredError"
)


def drawn(model, batch, seed):
    """Return a batch with drawn targets, weighed for their Fisher matrix."""
    # A sample of weight w, or whose loss is a mean over p positions, has p/w
    # times too small a g gᵀ: the roots of w and p are its weight.
    kind, settings = _kind(model)
    x, y, weight = batch
    outputs = _predictions(model, x)
    rng = np.random.default_rng(seed)
    shape = np.shape(outputs)
    positions = np.prod(shape[1:-1], dtype=int)
    if kind == "normal":
        noise = rng.normal(size=shape) * np.sqrt(shape[-1] / 2)
        targets = outputs + noise
    else:
        targets = _classes(kind, settings, outputs, rng)
    if kind == "sparse":
        targets = np.reshape(targets, np.shape(y))
    targets = tf.cast(tf.convert_to_tensor(targets), y.dtype)
    if weight is not None:
        weight = tf.sqrt(tf.cast(weight, keras.config.floatx()))
    if positions > 1:
        root = tf.constant(np.sqrt(positions), keras.config.floatx())
        # Of the rank of the values of the loss.
        shape = [len(outputs)] + [1] * (len(shape) - 2)
        ones = tf.ones(shape, root.dtype)
        weight = root * (ones if weight is None else weight)
    return x, targets, weight


def _kind(model):
    """Return how targets are drawn, and the loss's settings; else refuse."""
    entries = entries_of(compiled_loss(model))
    weighted = compile_arguments(model).get("loss_weights") is not None
    own = type(model).compute_loss is not keras.Model.compute_loss
    if len(entries) != 1 or weighted or own:
        raise ValueError(
            f"Targets are drawn for one compiled loss. Expected a model with "
            f"one output and one of {_SERVED}. Received: {model.name!r} with "
            + (
                "a compute_loss of its own"
                if own
                else "loss_weights"
                if weighted
                else f"{len(entries)} losses"
            )
            + ". Use curvature='exact' or 'projected'."
        )
    loss = entries[0].loss
    kind = _KINDS.get(getattr(loss, "fn", None))
    settings = call_arguments_of(loss) or {} if kind else {}
    if kind is None or settings.get("label_smoothing"):
        raise ValueError(
            "Targets are drawn from what the model predicts. Expected one of "
            f"{_SERVED}, without label smoothing. Received: the loss "
            f"{loss.name!r} of model {model.name!r}. Use curvature='exact' or "
            "'projected'."
        )
    return kind, settings


def _classes(kind, settings, outputs, rng):
    outputs = outputs.astype("float64")
    if kind == "binary":
        chance = outputs
        if settings.get("from_logits"):
            chance = 1 / (1 + np.exp(-outputs))
        return rng.uniform(size=outputs.shape) < chance
    if settings.get("from_logits"):
        outputs = np.exp(outputs - outputs.max(-1, keepdims=True))
    sums = np.cumsum(outputs, -1)
    place = rng.uniform(size=(*outputs.shape[:-1], 1)) * sums[..., -1:]
    classes = np.minimum((sums < place).sum(-1), outputs.shape[-1] - 1)
    if kind == "sparse":
        return classes
    return np.eye(outputs.shape[-1])[classes]


def _predictions(model, x):
    reference = weakref.ref(model)

    def trace():
        return tf.function(
            lambda x: call_model(reference(), x, training=False),
            autograph=False,
            reduce_retracing=True,
        )

    function = function_cache.kept(model, ("predict", ranks(x)), trace)
    with random_state_kept(), traced_functions():
        return tf.cast(run_and_restore(function, x), "float64").numpy()
