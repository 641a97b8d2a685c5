"""The effect of each training sample on the validation loss, step by step.

n samples, c_i = g_i / n the part of sample i in the gradient G = Σ c_i that is
applied, η the learning rate, v and H the gradient and the Hessian of the
validation loss. A step of SGD, w − ηG, lowers that loss by

    η ⟨G, v⟩ − η²/2 ⟨G, H G⟩ + …,   of which sample i has
    η ⟨c_i, v⟩ − η²/2 ⟨c_i, H G⟩ = η ⟨c_i, v − η/2 · H G⟩

the first- and second-order in-run Data Shapley values, with the other sign
(Wang et al., arXiv 2406.11011, theorems 3 and 4).
"""

import dataclasses
import operator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    Mean,
    is_finite,
    of_samples,
    variable_weights,
)
from keras_pergrad.aggregations.clipping import ClippedMean
from keras_pergrad.common.batches import is_numbered, with_numbers
from keras_pergrad.common.callback_list import as_callback_list
from keras_pergrad.common.gradients import dense_gradients
from keras_pergrad.factors import wide
from keras_pergrad.influence.projected_factors import dot_is_less, project
from keras_pergrad.influence.projection import projections
from keras_pergrad.influence.validation_gradient import ValidationGradient
from keras_pergrad.keras_internals.models.optimizers import (
    accumulating_optimizer,
    learning_rate,
    nested_optimizers,
)
from keras_pergrad.modes.one_step import current_aggregation
from keras_pergrad.modes.step_readers import StepReader, require_readable
from keras_pergrad.modes.vectorized import sample_norms


@dataclasses.dataclass(eq=False)
class ValueReader(StepReader):
    """Adds up the values of the samples of each step in a `ValueState`.

    Attributes:
        state: the `ValueState` of the model.
        validation: (x, y, sample_weight), tensors.
        order: 1 or 2.
        every: after how many steps the validation gradient is computed anew.
        projection: numbers that gradients become, or None: they stay.
        seed: of the projections.
        checks_numbers: whether to check them: not if they are rows of arrays.
    """

    needs_numbers = True

    state: Any
    validation: tuple[Any, ...]
    _: dataclasses.KW_ONLY
    order: int
    every: int
    projection: int | None
    seed: int
    checks_numbers: bool = True

    def __post_init__(self):
        self._step_count: Any = tf.Variable(
            tf.zeros([], tf.int64), trainable=False
        )
        self._stored_gradient: Any = None

    def read(self, samples):
        variables, factors = samples.variables, samples.factors
        weights, batch_scale, finite = _aggregation_weights(
            samples, list(factors)
        )
        validation_gradient = ValidationGradient(
            samples.model, self.validation, variables
        )
        rate = tf.cast(learning_rate(samples.model.optimizer), samples.dtype)
        if self.order == 2:
            mean_gradient = samples.mean()
            if weights is not None:
                sums = [
                    f and f.weighted_sum(weights(k))
                    for k, f in enumerate(factors)
                ]
                mean_gradient = dense_gradients(sums, variables)
            v, product = validation_gradient.gradient_and_product(mean_gradient)
            directions = [
                a - tf.cast(rate * batch_scale / 2, a.dtype) * b
                for a, b in zip(v, product)
            ]
        elif self.every == 1:
            directions = validation_gradient.gradient()
        else:
            directions = self._periodic_gradient(validation_gradient, variables)
        projection_maps = [None] * len(variables)
        if self.projection is not None:
            shapes = [v.shape for v in variables]
            projection_maps = projections(shapes, self.projection, self.seed)
        total = tf.zeros([samples.n], samples.dtype)
        for k, factor in enumerate(factors):
            if factor is None:
                continue
            dots = tf.cast(
                _sample_dots(factor, directions[k], projection_maps[k]),
                total.dtype,
            )
            if weights is not None:
                dots *= tf.cast(weights(k), dots.dtype)
            total += dots
        values = rate * batch_scale * total
        finite = tf.logical_and(finite, tf.math.is_finite(values))
        return {"values": values, "finite": finite}

    def checks(self, numbers: Any):
        if not self.checks_numbers:
            return []
        is_inside = self._is_inside(
            tf.reshape(tf.cast(numbers, tf.int64), [-1])
        )
        outside = tf.math.count_nonzero(tf.logical_not(is_inside))
        message = _OUTSIDE_ERROR.format(self.state.sums.shape[0] - 1)
        check = tf.debugging.Assert(tf.equal(outside, 0), [message, outside])
        return [] if check is None else [check]

    def _is_inside(self, numbers):
        samples = self.state.sums.shape[0]
        return tf.logical_and(numbers >= 0, numbers < samples)

    def collect(self, read, numbers: Any):
        """Add a step's values up; (n,) `numbers` are those of its samples."""
        numbers = tf.reshape(tf.cast(numbers, tf.int64), [-1])
        sums = self.state.sums
        is_inside = self._is_inside(numbers)
        is_counted = tf.logical_and(is_inside, read["finite"])
        rows = tf.where(is_inside, numbers, tf.zeros_like(numbers))
        values = tf.cast(read["values"], sums.dtype)
        values = tf.where(is_counted, values, tf.zeros_like(values))
        self.state.add(rows, values, tf.cast(is_counted, tf.int64))
        return {}

    def _periodic_gradient(self, validation_gradient, variables):
        """Return the gradient, computed anew every `every` steps."""
        if self._stored_gradient is None:
            # Variables must be made outside the graph of the step.
            with tf.init_scope():
                zeros = [wide(tf.zeros(v.shape, v.dtype)) for v in variables]
                self._stored_gradient = [
                    tf.Variable(z, trainable=False) for z in zeros
                ]
        is_due = tf.equal(self._step_count % self.every, 0)
        self._step_count.assign_add(1)

        def refresh():
            for stored, gradient in zip(
                self._stored_gradient, validation_gradient.gradient()
            ):
                stored.assign(tf.cast(gradient, stored.dtype))
            return 0

        tf.cond(is_due, refresh, lambda: 0)
        return [stored.read_value() for stored in self._stored_gradient]


_OUTSIDE_ERROR = (
    "SampleValues expected numbers of samples from 0 to {}, one for each id. "
    "Count the samples as `ids` does. Received so many others:"
)


def _sample_dots(factor, direction, projection):
    """Return ⟨c_i, direction⟩, (n,), by projections if that is cheaper."""
    if projection is None or dot_is_less(factor, projection):
        return factor.dot(direction)
    sample_rows = project(factor, projection)
    direction_rows = projection.of_gradients(direction[None])
    return tf.linalg.matvec(
        sample_rows, tf.cast(direction_rows[0], sample_rows.dtype)
    )


def _aggregation_weights(samples, factors):
    """Return how the aggregation weighs each sample's contribution.

    Three things: a function from a variable's index to weights (n,), or None
    if all are 1; one scale for all; and which samples are finite.
    """
    model, scale = samples.model, tf.ones([], samples.dtype)
    aggregation = current_aggregation(model.gradient_mode, model)
    if aggregation.needs == "nothing":
        return None, scale, tf.ones([samples.n], tf.bool)
    # Those whose values are read: the others are left out meanwhile.
    groups = aggregation.groups(model.trainable_variables)
    norms = sample_norms(factors, samples.n, groups)
    weights = aggregation.weights(norms)
    finite = is_finite(of_samples(norms))
    size = aggregation.expected_batch_size
    if size is not None:
        scale = tf.cast(samples.n, scale.dtype) / tf.cast(size, scale.dtype)
    return lambda k: variable_weights(weights, groups, k), scale, finite


def require_value_support(model, callback, callbacks):
    """Refuse what has no values, before a `fit` begins."""
    others = [
        c for c in as_callback_list(callbacks) if type(c) is type(callback)
    ]
    if len(others) > 1:
        raise ValueError(
            "The values are saved with the model, one a sample. Expected one "
            f"SampleValues in a `fit`. Received: {len(others)}"
        )
    require_readable(model)
    aggregation = model.gradient_mode.aggregation
    if not isinstance(aggregation, (Mean, ClippedMean)):
        raise ValueError(
            "A sample's value is that of its own part of the update. Expected "
            "the aggregation 'mean' or a ClippedMean. Received: "
            f"{aggregation!r}"
        )
    optimizer = accumulating_optimizer(model.optimizer)
    if optimizer is not None:
        raise ValueError(
            "A sample's value is that of its own step. Expected an optimizer "
            "that updates in each step. Received: gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} in "
            f"{type(optimizer).__name__}"
        )
    optimizers = [
        o
        for o in nested_optimizers(model.optimizer)
        if getattr(o, "inner_optimizer", None) is None
    ]
    if len(optimizers) != 1:
        raise ValueError(
            "A sample's value needs the learning rate of the step. Expected "
            f"one optimizer. Received: a {type(model.optimizer).__name__} of "
            "several"
        )


def value_dtype(model):
    """Return the type in which values are added up."""
    types = [v.dtype for v in model.trainable_variables]
    is_wide = "float64" in (*types, keras.config.floatx())
    return "float64" if is_wide else "float32"


def number_arrays(arguments):
    """Put row numbers beside arrays; return how many, None without arrays."""
    x = arguments.get("x")
    parts = keras.tree.flatten(x)
    if is_numbered(x) or not parts or not all(map(_has_rows, parts)):
        return None
    rows = int(parts[0].shape[0])
    arguments["x"] = with_numbers(x, np.arange(rows))
    return rows


def ids_of(ids, rows):
    """Return the ids of the samples as an array, one for each number."""
    if ids is None and rows is None:
        raise ValueError(
            "`ids` expected the ids of all samples, or how many there are, "
            "since a data set does not say. Received: ids=None. Give "
            "SampleValues(..., ids=len(data)), and a data set whose samples "
            "have numbers: SampleValues.with_numbers(x, numbers) in place of x."
        )
    if ids is None:
        return np.arange(rows)
    if isinstance(ids, (str, bytes)) or np.ndim(ids) == 0:
        ids = range(_number_of_samples(ids))
    ids = np.asarray(ids)
    if ids.ndim != 1 or not len(ids) or rows not in (None, len(ids)):
        expected = "at least one" if rows is None else f"{rows}, one a row of x"
        raise ValueError(
            f"`ids` expected a list of {expected}. Received: ids of shape "
            f"{ids.shape}"
        )
    return ids


def _number_of_samples(ids):
    try:
        return operator.index(ids)
    except TypeError:
        raise ValueError(
            "`ids` expected one id for each sample, (samples,), or the number "
            f"of samples. Received: ids={ids!r}"
        ) from None


def _has_rows(part):
    shape = getattr(part, "shape", None)
    return shape is not None and len(shape) > 0 and shape[0] is not None
