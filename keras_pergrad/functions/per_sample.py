"""Functions of a model and a batch: gradients, norms, inner products."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.statistics import GradientStatistics
from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.factors import wide
from keras_pergrad.factors.written_out import as_norms
from keras_pergrad.functions.data_passes import (
    Method,
    concatenate_results,
    over_batches,
    pass_data,
    run_passes,
)
from keras_pergrad.functions.given_loss import given_loss
from keras_pergrad.keras_internals.replicas.hooks import not_converted
from keras_pergrad.modes.inspection import require_finite


@not_converted
@named_arguments
def per_sample_gradients(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    loss: Any = None,
    method: Method = "vectorized",
    training: bool = True,
    batch_size: int | None = None,
    verbose: int | bool = 1,
) -> list[tf.Tensor | None]:
    """Return the gradient of each sample.

    Their mean over a batch is the ordinary gradient of the compiled loss,
    without weight regularisers, which belong to no sample. The model is left
    as it is: weights, seeds, moving statistics and counters.

    Args:
        model: a `keras.Model`, a PerGradModel or not, that is compiled or gets
            a `loss` here.
        x: inputs: an array of shape (n, ...), memory-mapped or not, or the
            list or dict of arrays that the model takes, or a `tf.data.Dataset`
            of batches of (x, y) or (x, y, sample_weight). Do not shuffle it if
            you want to know which sample is which.
        y: the targets; None with a dataset, or for a loss without targets.
        sample_weight: the weights, (n,), or None.
        loss: None: the compiled loss. Else the loss of this call, of a model
            that need not be compiled: what `compile` takes, such as "mse", a
            `keras.losses.Loss`, or a function loss(y_true, y_pred) that gives
            one value per sample. The compiled loss stays. Each such call traces
            the model anew: for many calls compile it.
        method: "vectorized" (one pass, fast) or "per_sample" (a loop).
        training: whether layers such as Dropout act as in training. Use False,
            as in `evaluate`, to find unusual samples or wrong labels: dropout
            then has no effect, and BatchNormalization, which mixes the samples
            in training, is supported.
        batch_size: how many samples go through the model at a time; batches
            are independent, as in `fit`. None: 256 of arrays, the dataset's
            own batches; all of x where a batch's loss depends on more than its
            samples' own (masks or weights that are counted, `add_loss`, a sum).
        verbose: whether to show a progress bar for several batches.

    Returns:
        A list of tensors of shape (n, *variable.shape), in the order of
        `model.trainable_variables`; None for a variable that the loss does not
        depend on.

    Raises:
        ValueError: the model is not compiled and no `loss` is given, or has a
            `compute_loss` of its own and one is given; the method is unknown,
            y is missing, a layer couples the samples, or samples have NaN or
            infinite gradients (the message names them).

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((5, 4)), np.ones((5, 3))
    >>> [g.shape for g in kpg.per_sample_gradients(model, x, y)]
    [TensorShape([5, 4, 3]), TensorShape([5, 3])]
    >>> gradients = kpg.per_sample_gradients(model, x, y, loss="mae")
    """
    with given_loss(model, loss):
        data = pass_data(
            model, x, y, sample_weight, batch_size=batch_size, verbose=verbose
        )
        gradients = concatenate_results(
            run_passes(
                "gradients", model, data, method=method, training=training
            )
        )
    # The L1 norm of each sample's gradient is finite only if all entries are.
    magnitudes = [
        np.abs(tf.reshape(wide(g), [g.shape[0], -1])).sum(1)
        for g in gradients
        if g is not None
    ]
    if magnitudes:
        require_finite(sum(magnitudes))
    return gradients


@not_converted
@named_arguments
def per_sample_norms(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    loss: Any = None,
    method: Method = "vectorized",
    training: bool = True,
    batch_size: int | None = None,
    verbose: int | bool = 1,
    per_variable: bool = False,
) -> Any:
    """Return the Euclidean norm of every sample's gradient.

    The vectorized method need not hold the per-sample gradients in memory.

    Args:
        model, x, y, sample_weight, loss, method, training, batch_size, verbose:
            as for `per_sample_gradients`.
        per_variable: whether to return the norms variable by variable.

    Returns:
        A tensor of shape (n,), over all trainable variables; with
        `per_variable` a list of such tensors in the order of
        `model.trainable_variables` (None: the loss does not depend on it).

    Raises:
        ValueError: as for `per_sample_gradients`.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> kpg.per_sample_norms(model, np.ones((5, 4)), np.ones((5, 3))).shape
    TensorShape([5])
    """
    with given_loss(model, loss):
        data = pass_data(
            model, x, y, sample_weight, batch_size=batch_size, verbose=verbose
        )
        norms = concatenate_results(
            run_passes("norms", model, data, method=method, training=training)
        )
    total = tf.sqrt(tf.add_n([tf.square(norm) for norm in as_norms(norms)]))
    require_finite(total.numpy())
    return norms if per_variable else total


@not_converted
@named_arguments
def gradient_statistics(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    loss: Any = None,
    method: Method = "vectorized",
    training: bool = True,
    batch_size: int | None = None,
    verbose: int | bool = 1,
    per_variable: bool = False,
) -> Any:
    """Measure how the samples' gradients vary around their mean.

    It uses norms alone and need not hold an array of all per-sample gradients.
    Regularisers, which belong to no sample, are left out.

    Args:
        model, x, y, sample_weight, loss, method, training, batch_size, verbose:
            as for `per_sample_gradients`. The mean is over all samples.
        per_variable: whether to measure each variable separately.

    Returns:
        A `GradientStatistics` over all trainable variables; with
        `per_variable` a list of them in the order of
        `model.trainable_variables` (None: the loss does not depend on it).

    Raises:
        ValueError: as for `per_sample_gradients`.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.eye(4), np.ones((4, 3))
    >>> kpg.gradient_statistics(model, x, y).variance > 0
    True
    """
    with given_loss(model, loss):
        data = pass_data(
            model, x, y, sample_weight, batch_size=batch_size, verbose=verbose
        )
        pairs = over_batches(
            run_passes(
                "statistics", model, data, method=method, training=training
            )
        )
    squares, means = (
        tf.add_n(as_norms([pair and pair[k] for pair in pairs])) for k in (0, 1)
    )
    require_finite(squares.numpy())
    if per_variable:
        return [pair and GradientStatistics.of(*pair) for pair in pairs]
    return GradientStatistics.of(squares, means)
