"""Per-sample gradients of any compiled Keras model, as functions."""

import weakref
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.common.deprecation import former
from keras_pergrad.factors import wide
from keras_pergrad.keras_internals.batches import ranks
from keras_pergrad.keras_internals.data_batches import batches_of
from keras_pergrad.keras_internals.inspection_checks import (
    NOT_IN_TRAINING,
    mixes_in_training_only,
    require_any_batch_size,
    require_compiled,
    require_finite,
    require_targets,
)
from keras_pergrad.keras_internals.losses import total_loss
from keras_pergrad.keras_internals.model_parts import build_symbolically
from keras_pergrad.keras_internals.model_state import (
    random_state_kept,
    run_and_restore,
)
from keras_pergrad.keras_internals.overwritten import SetApart
from keras_pergrad.keras_internals.tracing import traced_functions
from keras_pergrad.modes.microbatch_sums import plus
from keras_pergrad.modes.one_step import WholeBatch
from keras_pergrad.modes.single_samples import Samples
from keras_pergrad.samples import TracedStep, function_cache
from keras_pergrad.statistics import GradientStatistics

METHODS = ("vectorized", "per_sample")
Method = Literal["vectorized", "per_sample"]


@former("method", "training", "batch_size", "verbose")
def per_sample_gradients(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    method: Method = "vectorized",
    training: bool = True,
    batch_size: int | None = None,
    verbose: int | bool = 1,
) -> list[tf.Tensor | None]:
    """Return the gradient of every sample.

    Their mean over a batch is the ordinary gradient of the compiled loss,
    without weight regularisers, which belong to no sample. The model is left
    as it is: weights, seeds, moving statistics and counters.

    Args:
        model: a compiled `keras.Model`, a PerGradModel or not.
        x: inputs: an array of shape (n, ...), memory-mapped or not, or the
            list or dict of arrays that the model takes, or a `tf.data.Dataset`
            of batches of (x, y) or (x, y, sample_weight). Do not shuffle it if
            you want to know which sample is which.
        y: the targets; None with a dataset, or for a loss without targets.
        sample_weight: the weights, (n,), or None.
        method: "vectorized" (one pass, fast) or "per_sample" (a loop).
        training: whether layers such as Dropout act as in training. Use False,
            as in `evaluate`, to find unusual samples or wrong labels: dropout
            then has no effect, and BatchNormalization, which mixes the samples
            in training, is supported.
        batch_size: how many samples go through the model at a time; batches
            are independent, as in `fit`. None: all of x, or the dataset's own
            batches.
        verbose: whether to show a progress bar for several batches.

    Returns:
        A list of tensors of shape (n, *variable.shape), in the order of
        `model.trainable_variables`; None for a variable that the loss does not
        depend on.

    Raises:
        ValueError: the model is not compiled, the method is unknown, y is
            missing, a layer couples the samples, or samples have NaN or
            infinite gradients (the message names them).

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((5, 4)), np.ones((5, 3))
    >>> [g.shape for g in kpg.per_sample_gradients(model, x, y)]
    [TensorShape([5, 4, 3]), TensorShape([5, 3])]
    """
    data = x, y, sample_weight, batch_size, verbose
    gradients = _joined(list(_run("gradients", model, data, method, training)))
    sizes = [
        np.abs(tf.reshape(wide(g), [g.shape[0], -1])).sum(1)
        for g in gradients
        if g is not None
    ]
    if sizes:
        require_finite(sum(sizes))
    return gradients


@former("method", "training", "per_variable", "batch_size", "verbose")
def per_sample_norms(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    method: Method = "vectorized",
    training: bool = True,
    batch_size: int | None = None,
    verbose: int | bool = 1,
    per_variable: bool = False,
) -> Any:
    """Return the Euclidean norm of every sample's gradient.

    The vectorized method need not hold the per-sample gradients in memory.

    Args:
        model, x, y, sample_weight, method, training, batch_size, verbose: as
            for `per_sample_gradients`.
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
    data = x, y, sample_weight, batch_size, verbose
    norms = _joined(list(_run("norms", model, data, method, training)))
    total = tf.sqrt(
        tf.add_n([tf.square(part) for part in norms if part is not None])
    )
    require_finite(total.numpy())
    return norms if per_variable else total


@former("per_variable", "training", "batch_size", "verbose")
def gradient_statistics(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    method: Method = "vectorized",
    training: bool = True,
    batch_size: int | None = None,
    verbose: int | bool = 1,
    per_variable: bool = False,
) -> Any:
    """Measure how the samples' gradients spread around their mean.

    It uses norms alone and need not hold an array of all per-sample gradients.
    Regularisers, which belong to no sample, are left out.

    Args:
        model, x, y, sample_weight, method, training, batch_size, verbose: as
            for `per_sample_gradients`. With several batches the mean is over
            all samples.
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
    data = x, y, sample_weight, batch_size, verbose
    pairs = _over_batches(_run("statistics", model, data, method, training))
    known = [pair for pair in pairs if pair is not None]
    dtypes = [part.dtype for pair in known for part in pair]
    dtype = tf.float64 if tf.float64 in dtypes else tf.float32
    squares, means = (
        tf.add_n([tf.cast(pair[k], dtype) for pair in known]) for k in (0, 1)
    )
    require_finite(squares.numpy())
    if per_variable:
        return [pair and GradientStatistics.of(*pair) for pair in pairs]
    return GradientStatistics.of(squares, means)


def _over_batches(batches):
    """Return (‖g_i‖², ‖ḡ‖²) by variable, over the samples of all batches."""
    squares, totals, first = [], [], None
    for parts in batches:
        first = first or parts
        squares.append([part and part[0] for part in parts])
        sums = [
            None
            if part is None or part[2] is None
            else wide(part[2]) * tf.cast(tf.size(part[0]), wide(part[2]).dtype)
            for part in parts
        ]
        # Of the gradients only their sum so far is held.
        totals = plus(totals, sums) if totals else sums
    pairs = []
    for norms, total, part in zip(zip(*squares), totals, first or ()):
        if part is None:
            pairs.append(None)
            continue
        joined, squared_mean = tf.concat(norms, 0), part[1]
        if len(squares) > 1:
            mean = total / tf.cast(tf.size(joined), total.dtype)
            squared_mean = tf.reduce_sum(tf.square(mean))
        pairs.append((joined, squared_mean))
    return pairs


def _joined(several) -> Any:
    """Return what is known of the samples of all batches, by variable."""
    if len(several) == 1:
        return several[0]
    return [
        None if parts[0] is None else tf.concat(parts, 0)
        for parts in zip(*several)
    ]


def _run(what, model, data, method, training, *more):
    """Yield the gradients, norms or statistics of each batch.

    Or else what the object `what` makes of them with the tensors `more`.
    """
    require_compiled(model)
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {METHODS}. Received: method={method!r}"
        )
    *data, verbose = data
    batches = batches_of(*data)
    count = batches.count
    if what == "statistics" and count != 1:
        what = "sums"
    verbose = 0 if count == 1 else verbose
    bar = keras.utils.Progbar(count, verbose=verbose, unit_name="batch")
    number = 0
    for number, batch in enumerate(batches, 1):
        yield _of_batch(what, model, batch, method, training, more)
        bar.update(number, finalize=number == count)
    if count is None:
        bar.update(number, finalize=True)


def _of_batch(what, model, batch, method, training, more):
    require_targets(model, batch)
    with random_state_kept():
        if not model.built or not model.trainable_variables:
            _build(model, batch)
        if not model.trainable_variables:
            raise ValueError(
                f"Model {model.name!r} has no trainable variables, so there "
                "is no gradient to compute."
            )
        build_symbolically(model, batch)
        # For as long as the model lives.
        function = function_cache.kept(
            model,
            (what, method, training, ranks(batch)),
            lambda: _trace(what, method, training, weakref.ref(model)),
        )
        try:
            with traced_functions():
                return run_and_restore(function, *batch, *more)
        except ValueError as error:
            if training and mixes_in_training_only(model, error):
                raise ValueError(f"{error}{NOT_IN_TRAINING}") from error
            raise


def _build(model, batch):
    try:
        build_symbolically(model, batch)
    except RuntimeError:  # its call needs numbers
        model(batch[0])


def _trace(what, method, training, model_reference):
    compute = _vectorized if method == "vectorized" else _one_by_one

    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, y, sample_weight, *more):
        model = model_reference()
        with SetApart(model) as apart:
            parts = compute(what, model, x, y, sample_weight, training, *more)
        return apart.merged(parts)

    return function


def _vectorized(what, model, x, y, sample_weight, training, *more):
    traced = TracedStep(model, (x, y, sample_weight), training)
    with traced:
        y_pred = traced.forward(x)
        loss = total_loss(model, x, y, y_pred, sample_weight, training)
    factors = traced.sample_gradients(loss)
    n = tf.shape(tf.nest.flatten(x)[0])[0]
    if what == "norms":
        return [
            f and tf.sqrt(s := f.squared_norms()) * tf.cast(n, s.dtype)
            for f in factors
        ]
    if what in ("statistics", "sums"):
        return [f and _squares(f, n, what == "sums") for f in factors]
    if more:
        return what.of_factors(factors, n, *more)
    return [f and (g := f.materialize()) * tf.cast(n, g.dtype) for f in factors]


def _squares(factor, n, with_mean):
    """‖g_i‖², (n,), ‖ḡ‖² and, where it is wanted, ḡ of one variable."""
    squares = factor.squared_norms()
    squares *= tf.square(tf.cast(n, squares.dtype))
    total = factor.weighted_sum(None) if with_mean else None
    mean = None if total is None else tf.convert_to_tensor(total)
    return squares, factor.squared_norm_of_sum(), mean


def _one_by_one(what, model, x, y, sample_weight, training, *more):
    require_any_batch_size(model)
    samples = Samples(model, WholeBatch(model, (x, y, sample_weight)), training)
    used = [False] * len(samples.variables)

    def one(i):
        contributions = samples.contributions(i)
        used[:] = [gradient is not None for gradient in contributions]
        parts = [
            tf.zeros(v.shape, v.value.dtype) if g is None else g
            for v, g in zip(samples.variables, contributions)
        ]
        if what == "norms":
            parts = [tf.norm(tf.reshape(wide(g), [-1])) for g in parts]
        if more:
            parts = what.of_one(parts, *more)
        return [p * tf.cast(samples.n, p.dtype) for p in parts]

    values = [v.value for v in samples.variables]
    if what in ("statistics", "sums"):
        parts = _summed(one, samples.n, values)
        return [p if keep else None for p, keep in zip(parts, used)]
    if what == "norms" or more:
        specs = [tf.TensorSpec([], wide(v).dtype) for v in values]
    else:
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in values]
    result = tf.map_fn(one, tf.range(samples.n), fn_output_signature=specs)
    return [r if keep else None for r, keep in zip(result, used)]


def _summed(one, n, values):
    """‖g_i‖², (n,), ‖ḡ‖² and ḡ by variable, of one gradient at a time."""
    dtypes = [wide(v).dtype for v in values]
    squares = tuple(tf.TensorArray(dtype, n) for dtype in dtypes)
    sums = tuple(tf.zeros(v.shape, dtype) for v, dtype in zip(values, dtypes))

    def add(i, squares, sums):
        gradients = [wide(g) for g in one(i)]
        squares = tuple(
            array.write(i, tf.reduce_sum(tf.square(g)))
            for array, g in zip(squares, gradients)
        )
        return i + 1, squares, tuple(s + g for s, g in zip(sums, gradients))

    _, squares, sums = tf.while_loop(
        lambda i, *_: i < n, add, (0, squares, sums), parallel_iterations=1
    )
    means = [total / tf.cast(n, total.dtype) for total in sums]
    return [
        (array.stack(), tf.reduce_sum(tf.square(mean)), mean)
        for array, mean in zip(squares, means)
    ]
