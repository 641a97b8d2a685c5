"""Inner products of the samples' gradients with a given gradient."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.factors import wide
from keras_pergrad.factors.written_out import as_norms
from keras_pergrad.functions.data_passes import (
    Method,
    concatenate_results,
    pass_data,
    run_passes,
)
from keras_pergrad.functions.given_loss import given_loss
from keras_pergrad.modes.inspection import require_finite


@named_arguments
def per_sample_dots(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    direction: Any,
    loss: Any = None,
    method: Method = "vectorized",
    training: bool = True,
    batch_size: int | None = None,
    verbose: int | bool = 1,
    per_variable: bool = False,
) -> Any:
    """Return the inner product of every sample's gradient with a direction.

    A step along −direction lowers the loss of a sample by about its inner
    product times the learning rate: with the gradient of a validation batch it
    is the sample's value for that batch (Wang et al., arXiv 2406.11011). The
    gradients are those of `per_sample_gradients`: their mean is the ordinary
    gradient, so the mean of the inner products with the batch's own gradient ḡ
    is ‖ḡ‖². The vectorized method need not hold them in memory.

    Args:
        model: a built `keras.Model`, a PerGradModel or not, that is compiled or
            gets a `loss` here.
        x, y, sample_weight, loss, method, training, batch_size, verbose: as for
            `per_sample_gradients`.
        direction: an array of the variable's shape (or `tf.IndexedSlices`) for
            each of `model.trainable_variables`, in this order; None for a
            variable that is not to count.
        per_variable: whether to return the products variable by variable.

    Returns:
        A tensor of shape (n,), over all variables that count; with
        `per_variable` a list of such tensors in the order of
        `model.trainable_variables` (None: the loss does not depend on it, or
        it does not count). Half precision is widened first.

    Raises:
        ValueError: as for `per_sample_gradients`; the model is not built; an
            entry of `direction` is missing, has another shape than its
            variable, or is not finite (the message names the variable).

    Example:

    >>> import keras, numpy as np, tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((5, 4)), np.ones((5, 3))
    >>> gradients = kpg.per_sample_gradients(model, x, y)
    >>> mean = [tf.reduce_mean(g, 0) for g in gradients]
    >>> kpg.per_sample_dots(model, x, y, direction=mean).shape
    TensorShape([5])
    """
    with given_loss(model, loss):
        tensors = _check_direction(model, direction)
        data = pass_data(
            model, x, y, sample_weight, batch_size=batch_size, verbose=verbose
        )
        dots = concatenate_results(
            run_passes(
                DOT_PRODUCTS,
                model,
                data,
                tensors,
                method=method,
                training=training,
            )
        )
    dots = [
        None if d is None else products for products, d in zip(dots, direction)
    ]
    counted = [products for products in dots if products is not None]
    if not counted:
        raise ValueError(
            "Expected in `direction` a gradient of a variable on which the "
            f"loss of model {model.name!r} depends. Received: only others. "
            "per_sample_gradients gives None for these."
        )
    total = tf.add_n(as_norms(counted))
    require_finite(total.numpy())
    return dots if per_variable else total


class _DotProducts:
    """The inner products of the samples' gradients with a direction."""

    def of_factors(self, factors, n, direction):
        """Return the products of all samples, (n,), by variable."""
        return [
            None
            if factor is None or entry is None
            else (dots := factor.dot(entry)) * tf.cast(n, dots.dtype)
            for factor, entry in zip(factors, direction, strict=True)
        ]

    def of_one(self, gradients, direction):
        """Return one sample's products, scalars; 0 where there is no entry."""
        return [
            tf.zeros([], wide(gradient).dtype)
            if entry is None
            else tf.reduce_sum(wide(gradient) * tf.convert_to_tensor(entry))
            for gradient, entry in zip(gradients, direction, strict=True)
        ]


DOT_PRODUCTS = _DotProducts()


def _check_direction(model, direction):
    """Return the direction as tensors; refuse entries that do not fit."""
    if not model.built:
        raise ValueError(
            f"Expected a built model, since `direction` has a gradient for "
            f"each of its variables. Received: {model.name!r}, which has none "
            "yet: call it on a batch, or model.build(...)."
        )
    variables = model.trainable_variables
    if not isinstance(direction, (list, tuple)) or len(direction) != len(
        variables
    ):
        count = (
            f"{len(direction)} of them"
            if isinstance(direction, (list, tuple))
            else type(direction).__name__
        )
        raise ValueError(
            f"`direction` expected a list of {len(variables)} gradients, one "
            "for each of model.trainable_variables (None: it does not count). "
            f"Received: {count}"
        )
    tensors = [
        None if entry is None else _check_entry(variable, entry)
        for variable, entry in zip(variables, direction)
    ]
    if all(entry is None for entry in tensors):
        raise ValueError(
            "`direction` expected at least one gradient. Received: only None, "
            "so no variable counts."
        )
    return tensors


def _check_entry(variable, entry):
    """Return a variable's entry, checked, in the dtype of its norms."""
    label = f"`direction` of {variable.path!r}"
    dtype = wide(variable.value).dtype
    is_sliced = isinstance(entry, tf.IndexedSlices)
    if is_sliced and entry.dense_shape is None:
        shape = (*variable.shape[:1], *entry.values.shape[1:])
    else:
        shape = entry.shape if is_sliced else np.shape(entry)
    if tuple(shape) != tuple(variable.shape):
        raise ValueError(
            f"{label} expected the variable's shape, {tuple(variable.shape)}. "
            f"Received: shape {tuple(shape)}"
        )
    if isinstance(entry, (list, tuple)):
        entry = np.asarray(entry)  # TensorFlow would round it to float32
    values = tf.convert_to_tensor(entry.values if is_sliced else entry)
    if not (values.dtype.is_floating or values.dtype.is_integer):
        raise ValueError(
            f"{label} expected real numbers. Received: {values.dtype.name}"
        )
    values = tf.cast(values, dtype)
    if not np.isfinite(values).all():
        raise ValueError(
            f"{label} expected finite numbers. Received: NaN or infinity, as "
            f"{dtype.name}"
        )
    if is_sliced:
        return _check_slices(label, variable, values, indices=entry.indices)
    return values


def _check_slices(label, variable, values, *, indices):
    """Return an entry of single rows, checked, as `tf.IndexedSlices`."""
    ids = np.asarray(indices)
    rows, *inner_shape = variable.shape
    has_row_shape = (
        list(values.shape) == [ids.size, *inner_shape] and ids.ndim == 1
    )
    if not has_row_shape or not np.all((ids >= 0) & (ids < rows)):
        raise ValueError(
            f"{label} expected tf.IndexedSlices with one of the {rows} rows "
            f"for each of its values, of shape {tuple(inner_shape)}. Received: "
            f"values of shape {tuple(values.shape)} and indices {ids}"
        )
    if not ids.size:
        return tf.zeros(variable.shape, values.dtype)
    return tf.IndexedSlices(
        values, tf.convert_to_tensor(ids), tf.constant(variable.shape)
    )
