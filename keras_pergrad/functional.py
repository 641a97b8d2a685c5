"""Per-sample gradients of any compiled Keras model, as functions.

What is traced is kept per model for as long as the model lives.

Private names in use: `Model._symbolic_build`.
"""

import weakref

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad import traces
from keras_pergrad.factors import wide
from keras_pergrad.losses import total_loss
from keras_pergrad.modes.samples import Samples
from keras_pergrad.replay import is_composite
from keras_pergrad.samples import Tape
from keras_pergrad.samples.values import first_batch
from keras_pergrad.statistics import GradientStatistics

METHODS = ("vectorized", "per_sample")


def per_sample_gradients(
    model, x, y=None, sample_weight=None, method="vectorized", training=True
):
    """The gradient of every sample of a batch.

    Their mean is the ordinary gradient of the compiled loss, without weight
    regularisers, which belong to no sample.

    Args:
        model: a compiled `keras.Model`, a PerGradModel or not.
        x: the batch's inputs: an array of shape (n, ...), or the list or
            dict of arrays that the model takes.
        y: its targets.
        sample_weight: its weights, (n,), or None.
        method: "vectorized" (layer rules, fast) or "per_sample" (a loop).
        training: whether layers such as Dropout act as in training.

    Returns:
        A list in the order of `model.trainable_variables` of tensors of shape
        (n, *variable.shape); None for a variable that the loss does not
        depend on.

    Raises:
        ValueError: the model is not compiled, the method is unknown, a layer
            couples the samples, or samples have NaN or infinite gradients
            (the message names them).

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((5, 4)), np.ones((5, 3))
    >>> [g.shape for g in kpg.per_sample_gradients(model, x, y)]
    [TensorShape([5, 4, 3]), TensorShape([5, 3])]
    """
    found = _run("gradients", model, x, y, sample_weight, method, training)
    norms = [
        np.abs(tf.reshape(wide(g), [g.shape[0], -1])).sum(1)
        for g in found
        if g is not None
    ]
    if norms:
        _require_finite(sum(norms))
    return found


def per_sample_norms(
    model,
    x,
    y=None,
    sample_weight=None,
    method="vectorized",
    training=True,
    per_variable=False,
):
    """The Euclidean norm of every sample's gradient.

    With the vectorized method no per-sample gradient need be held.

    Args:
        model, x, y, sample_weight, method, training: as for
            `per_sample_gradients`.
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
    found = _run("norms", model, x, y, sample_weight, method, training)
    total = tf.sqrt(
        tf.add_n([tf.square(norms) for norms in found if norms is not None])
    )
    _require_finite(total.numpy())
    return found if per_variable else total


def gradient_statistics(
    model, x, y=None, sample_weight=None, per_variable=False, training=True
):
    """How the gradients of a batch's samples spread around their mean.

    From norms alone: no array of all per-sample gradients need be held.
    Regularisers, which belong to no sample, are left out.

    Args:
        model, x, y, sample_weight, training: as for `per_sample_gradients`.
        per_variable: whether to look at each variable by itself.

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
    found = _run(
        "statistics", model, x, y, sample_weight, "vectorized", training
    )
    pairs = [pair for pair in found if pair is not None]
    dtypes = [square.dtype for pair in pairs for square in pair]
    dtype = tf.float64 if tf.float64 in dtypes else tf.float32
    squares, means = (
        tf.add_n([tf.cast(pair[k], dtype) for pair in pairs]) for k in (0, 1)
    )
    _require_finite(squares.numpy())
    if per_variable:
        return [pair and GradientStatistics.of(*pair) for pair in found]
    return GradientStatistics.of(squares, means)


def _run(what, model, x, y, sample_weight, method, training):
    _require_compiled(model)
    if method not in METHODS:
        raise ValueError(
            f"`method` must be one of {METHODS}. Received: method={method!r}"
        )
    batch = tf.nest.map_structure(_tensor, (x, y, sample_weight))
    _require_lengths(batch)
    if not model.built:
        model(batch[0])
    if not model.trainable_variables:
        raise ValueError(
            f"Model {model.name!r} has no trainable variables, so there is "
            "no gradient to compute."
        )
    model._symbolic_build(data_batch=batch)
    function = traces.kept(
        model,
        (what, method, training),
        lambda: _trace(what, method, training, weakref.ref(model)),
    )
    with first_batch(batch):
        return function(*batch)


def _trace(what, method, training, model_reference):
    compute = _vectorized if method == "vectorized" else _one_by_one

    @tf.function(autograph=False, reduce_retracing=True)
    def function(x, y, sample_weight):
        return compute(what, model_reference(), x, y, sample_weight, training)

    return function


def _vectorized(what, model, x, y, sample_weight, training):
    tape = Tape(model, (x, y, sample_weight), training)
    with tape:
        y_pred = tape.forward(x)
        loss = total_loss(model, x, y, y_pred, sample_weight, training)
    factors = tape.sample_gradients(loss)
    n = tf.shape(tf.nest.flatten(x)[0])[0]
    if what == "norms":
        return [
            f and tf.sqrt(s := f.squared_norms()) * tf.cast(n, s.dtype)
            for f in factors
        ]
    if what == "statistics":
        return [f and _squares(f, n) for f in factors]
    return [f and (g := f.materialize()) * tf.cast(n, g.dtype) for f in factors]


def _squares(factor, n):
    """‖g_i‖², (n,), and ‖ḡ‖² of one variable."""
    squares = factor.squared_norms()
    squares *= tf.square(tf.cast(n, squares.dtype))
    return squares, factor.squared_norm_of_sum()


def _one_by_one(what, model, x, y, sample_weight, training):
    samples = Samples(model, x, y, sample_weight, training=training)
    used = [False] * len(samples.variables)

    def one(i):
        found = samples.contributions(i)
        for k, gradient in enumerate(found):
            used[k] = gradient is not None
        found = [
            tf.zeros(v.shape, v.value.dtype) if g is None else g
            for v, g in zip(samples.variables, found)
        ]
        if what == "norms":
            found = [tf.norm(tf.reshape(wide(g), [-1])) for g in found]
        return [g * tf.cast(samples.n, g.dtype) for g in found]

    values = [v.value for v in samples.variables]
    if what == "norms":
        specs = [tf.TensorSpec([], wide(v).dtype) for v in values]
    else:
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in values]
    result = tf.map_fn(one, tf.range(samples.n), fn_output_signature=specs)
    return [r if keep else None for r, keep in zip(result, used)]


def _tensor(value):
    """None and sparse or ragged tensors stay: layers may densify these."""
    if value is None or is_composite(value):
        return value
    return tf.convert_to_tensor(value)


def _require_compiled(model):
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"{model!r} of type {type(model).__name__}"
        )
    if not model.compiled:
        raise ValueError(
            f"Model {model.name!r} is not compiled, so it has no loss. Call "
            "model.compile(loss=...) first."
        )


def _require_lengths(batch):
    names = ("x", "y", "sample_weight")
    lengths = [
        (name, tensor.shape[0] if tensor.shape.rank else None)
        for name, part in zip(names, batch)
        for tensor in tf.nest.flatten(part)
        if tensor is not None
    ]
    if len({length for _, length in lengths}) > 1:
        raise ValueError(
            "x, y and sample_weight must have as many entries on their first "
            "axis. Received: "
            + ", ".join(f"{name} with {length}" for name, length in lengths)
        )
    if not lengths or lengths[0][1] == 0:
        raise ValueError("x must hold at least one sample. Received: none")


def _require_finite(norms):
    bad = np.flatnonzero(~np.isfinite(norms))
    if bad.size:
        shown = ", ".join(map(str, bad[:20])) + (
            f" and {bad.size - 20} more" if bad.size > 20 else ""
        )
        raise ValueError(
            f"The gradients of samples {shown} are not finite. Look for NaN "
            "or infinity in x[i] and y[i] of these samples, or for a loss "
            "that overflows on them."
        )
