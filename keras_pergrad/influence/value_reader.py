"""The effect of each training sample on the validation loss, step by step.

n samples, c_i = g_i / n the part of sample i in the gradient G = Σ c_i that is
applied, η the learning rate, v and H the gradient and the Hessian of the
validation loss. A step of SGD, w − ηG, lowers that loss by

    η ⟨G, v⟩ − η²/2 ⟨G, H G⟩ + …,   of which sample i has
    η ⟨c_i, v⟩ − η²/2 ⟨c_i, H G⟩ = η ⟨c_i, v − η/2 · H G⟩

the first- and second-order in-run Data Shapley values, with the other sign
(Wang et al., arXiv 2406.11011, theorems 3 and 4).
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    Mean,
    is_finite,
    of_samples,
    weight_of,
)
from keras_pergrad.aggregations.clipping import ClippedMean
from keras_pergrad.common.batch_marks import is_numbered, with_numbers
from keras_pergrad.factors import projections, wide
from keras_pergrad.keras_internals.fit.callback_list import listed
from keras_pergrad.keras_internals.losses.compiled import (
    is_overwritten,
    no_running_means,
)
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.keras_internals.losses.terms import without_gradients
from keras_pergrad.keras_internals.models.parts import (
    accumulating,
    all_of,
    call_model,
    compiled_loss,
    learning_rate,
    loss_scale,
)
from keras_pergrad.keras_internals.state.model import twice_differentiable
from keras_pergrad.modes.one_step import aggregation_now
from keras_pergrad.modes.step_readers import StepReader, require_readable
from keras_pergrad.modes.vectorized import sample_norms

# The slope of the loss of validation data, within a training step.


_ASSIGNS = ("Assign", "ResourceScatter")


class ValidationSlope:
    """The gradient of the validation loss, without weight regularisers.

    Layers act as in inference: it is the loss that `evaluate` reports.
    """

    def __init__(self, model, batch, variables):
        self.model, self.batch, self.variables = model, batch, variables

    def gradient(self):
        """Return the gradient, a dense tensor for each variable."""
        with tf.GradientTape() as tape:
            loss = self._loss()
        return self._unscaled(tape.gradient(loss, self._values()))

    def gradient_and_product(self, directions):
        """Return the gradient, and the Hessian times a direction.

        The product is the gradient of ⟨gradient, direction⟩ (Pearlmutter).
        """
        with twice_differentiable():
            loss = self._loss()
        gradients = _dense(tf.gradients(loss, self._values()))
        terms = [
            tf.reduce_sum(g * tf.cast(tf.stop_gradient(d), g.dtype))
            for g, d in zip(gradients, directions)
            if g is not None
        ]
        slope = tf.add_n(terms) if terms else tf.zeros([], loss.dtype)
        products = tf.gradients(slope, self._values())
        return self._unscaled(gradients), self._unscaled(products)

    def _loss(self):
        x, y, sample_weight = self.batch
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        compiled = compiled_loss(self.model)
        # Without Keras's running means of the losses of several outputs.
        with without_gradients(self.variables), no_running_means(compiled):
            y_pred = call_model(self.model, x, training=False)
            given = x, y, y_pred, sample_weight
            loss = total_loss(self.model, *given, training=False)
        for op in graph.get_operations()[before:]:
            if op.type.startswith(_ASSIGNS):
                raise ValueError(
                    "Sample values call the model on the validation data in "
                    "each step, which must leave it as it is. Expected a "
                    "model without a state that a call with training=False "
                    f"changes. Received: the op {op.name!r} of type "
                    f"{op.type}. Such as stateful=True in a recurrent layer: "
                    "leave it out."
                )
        scale = loss_scale(self.model.optimizer)
        return loss if scale is None else loss * tf.cast(scale, loss.dtype)

    def _values(self):
        return [v.value for v in self.variables]

    def _unscaled(self, gradients):
        scale = loss_scale(self.model.optimizer)
        gradients = [
            tf.zeros(v.shape, wide(v.value).dtype) if g is None else wide(g)
            for v, g in zip(self.variables, _dense(gradients))
        ]
        if scale is None:
            return gradients
        return [g / tf.cast(scale, g.dtype) for g in gradients]


def _dense(gradients):
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


# The value of each sample of a step for the validation loss, in that step.
#
# n samples, c_i = g_i / n the part of sample i in the gradient G = Σ c_i that
# is applied, η the learning rate, v and H the gradient and the Hessian of the
# validation loss. A step of SGD, w − ηG, lowers that loss by
#
#     η ⟨G, v⟩ − η²/2 ⟨G, H G⟩ + …,   of which sample i has
#     η ⟨c_i, v⟩ − η²/2 ⟨c_i, H G⟩ = η ⟨c_i, v − η/2 · H G⟩
#
# the first- and second-order in-run Data Shapley values, with the other sign
# (Wang et al., arXiv 2406.11011, theorems 3 and 4).


class ValueReader(StepReader):
    """Adds up the values of the samples of each step in a `ValueState`.

    Args:
        state: the `ValueState` of the model.
        validation: (x, y, sample_weight), tensors.
        order: 1 or 2.
        every: after how many steps the validation gradient is computed anew.
        projection: numbers that gradients become, or None: they stay.
        seed: of the projections.
        are_rows: whether numbers are those of arrays' rows, and so right.
    """

    needs_numbers = True

    def __init__(
        self,
        state,
        validation,
        order,
        every,
        projection,
        seed,
        are_rows=False,
    ):
        self.state, self.validation = state, validation
        self.order, self.every = order, every
        self.projection, self.seed = projection, seed
        self._steps = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self._held: Any = None
        self.checks_numbers = not are_rows

    def read(self, samples):
        known = [
            (v, f)
            for v, f in zip(samples.variables, samples.factors)
            if not is_overwritten(v)
        ]
        variables, factors = zip(*known)
        weights, share, finite = _applied(samples, list(factors))
        slope = ValidationSlope(samples.model, self.validation, variables)
        rate = tf.cast(learning_rate(samples.model.optimizer), samples.dtype)
        if self.order == 2:
            mean = self._mean(samples, variables, factors, weights)
            v, product = slope.gradient_and_product(mean)
            directions = [
                a - tf.cast(rate * share / 2, a.dtype) * b
                for a, b in zip(v, product)
            ]
        elif self.every == 1:
            directions = slope.gradient()
        else:
            directions = self._now_and_then(slope, variables)
        maps = [None] * len(variables)
        if self.projection is not None:
            shapes = [v.shape for v in variables]
            maps = projections(shapes, self.projection, self.seed)
        total = tf.zeros([samples.n], samples.dtype)
        for k, factor in enumerate(factors):
            if factor is None:
                continue
            dots = tf.cast(_dots(factor, directions[k], maps[k]), total.dtype)
            if weights is not None:
                dots *= tf.cast(weights(k), dots.dtype)
            total += dots
        values = rate * share * total
        finite = tf.logical_and(finite, tf.math.is_finite(values))
        return {"values": values, "finite": finite}

    def checks(self, numbers):
        if not self.checks_numbers:
            return []
        inside = self._inside(tf.reshape(tf.cast(numbers, tf.int64), [-1]))
        outside = tf.math.count_nonzero(tf.logical_not(inside))
        message = _OUTSIDE.format(self.state.sums.shape[0] - 1)
        check = tf.debugging.Assert(tf.equal(outside, 0), [message, outside])
        return [] if check is None else [check]

    def _inside(self, numbers):
        samples = self.state.sums.shape[0]
        return tf.logical_and(numbers >= 0, numbers < samples)

    def collect(self, read, numbers):
        """Add a step's values up; (n,) `numbers` are those of its samples."""
        numbers = tf.reshape(tf.cast(numbers, tf.int64), [-1])
        sums = self.state.sums
        inside = self._inside(numbers)
        counted = tf.logical_and(inside, read["finite"])
        rows = tf.where(inside, numbers, tf.zeros_like(numbers))
        values = tf.cast(read["values"], sums.dtype)
        values = tf.where(counted, values, tf.zeros_like(values))
        self.state.add(rows, values, tf.cast(counted, tf.int64))
        return {}

    @staticmethod
    def _mean(samples, variables, factors, weights):
        if weights is None:
            known = dict(zip(map(id, samples.variables), samples.mean()))
            return [known[id(v)] for v in variables]
        sums = [f and f.weighted_sum(weights(k)) for k, f in enumerate(factors)]
        return [
            tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
            for v, g in zip(variables, sums)
        ]

    def _now_and_then(self, slope, variables):
        """Return the gradient of this step, or the one held since its last."""
        if self._held is None:
            with tf.init_scope():
                zeros = [wide(tf.zeros(v.shape, v.dtype)) for v in variables]
                self._held = [tf.Variable(z, trainable=False) for z in zeros]
        due = tf.equal(self._steps % self.every, 0)
        self._steps.assign_add(1)

        def anew():
            for held, gradient in zip(self._held, slope.gradient()):
                held.assign(tf.cast(gradient, held.dtype))
            return 0

        tf.cond(due, anew, lambda: 0)
        return [held.read_value() for held in self._held]


_OUTSIDE = (
    "SampleValues expected numbers of samples from 0 to {}, one for each id. "
    "Count the samples as `ids` does. Received so many others:"
)


def _dots(factor, direction, projection):
    """Return ⟨c_i, direction⟩, (n,), of projections if they are cheaper."""
    if projection is None or factor.dot_is_less(projection):
        return factor.dot(direction)
    few = factor.project(projection)
    other = projection.of_gradients(direction[None])
    return tf.linalg.matvec(few, tf.cast(other[0], few.dtype))


def _applied(samples, factors):
    """Return what the aggregation does with each sample's contribution.

    A function of the variable's index to weights (n,), or None: all are 1; a
    factor for all; and which samples are finite.
    """
    model, one = samples.model, tf.ones([], samples.dtype)
    aggregation = aggregation_now(model.gradient_mode, model)
    if aggregation.needs == "nothing":
        return None, one, tf.ones([samples.n], tf.bool)
    # These are the variables while the others are set apart.
    groups = aggregation.groups(model.trainable_variables)
    norms = sample_norms(factors, samples.n, groups)
    weights = aggregation.weights(norms)
    finite = is_finite(of_samples(norms))
    size = aggregation.expected_batch_size
    if size is not None:
        one = tf.cast(samples.n, one.dtype) / tf.cast(size, one.dtype)
    return lambda k: weight_of(weights, groups, k), one, finite


# The models, modes and optimizers whose samples can be valued.


def require_valued(model, callback, callbacks):
    """Refuse what has no values, before a `fit` begins."""
    others = [c for c in listed(callbacks) if type(c) is type(callback)]
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
    optimizer = accumulating(model.optimizer)
    if optimizer is not None:
        raise ValueError(
            "A sample's value is that of its own step. Expected an optimizer "
            "that updates in each step. Received: gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} in "
            f"{type(optimizer).__name__}"
        )
    inner = [
        o
        for o in all_of(model.optimizer)
        if getattr(o, "inner_optimizer", None) is None
    ]
    if len(inner) != 1:
        raise ValueError(
            "A sample's value needs the learning rate of the step. Expected "
            f"one optimizer. Received: a {type(model.optimizer).__name__} of "
            "several"
        )


def type_of_values(model):
    """Return the type in which values are added up."""
    types = [v.dtype for v in model.trainable_variables]
    is_wide = "float64" in (*types, keras.config.floatx())
    return "float64" if is_wide else "float32"


# The data of a `fit`, with the number of each sample beside its inputs.


def number_arrays(arguments):
    """Put row numbers beside arrays; return their rows, None: no arrays."""
    x = arguments.get("x")
    if is_numbered(x) or not _is_of_arrays(x):
        return None
    rows = int(keras.tree.flatten(x)[0].shape[0])
    arguments["x"] = with_numbers(x, np.arange(rows))
    return rows


def ids_of(ids, rows):
    """Return the ids of the samples as an array, one for each number."""
    if ids is None and rows is None:
        raise ValueError(
            "`ids` expected the ids of all samples, or how many there are, "
            "since a data set does not tell. Received: ids=None. Give "
            "SampleValues(..., ids=len(data)), and a data set whose samples "
            "have numbers: SampleValues.with_numbers(x, numbers) in place of x."
        )
    if ids is None:
        return np.arange(rows)
    if np.ndim(ids) == 0:
        ids = range(int(ids))
    ids = np.asarray(ids)
    if ids.ndim != 1 or not len(ids) or rows not in (None, len(ids)):
        expected = "at least one" if rows is None else f"{rows}, one a row of x"
        raise ValueError(
            f"`ids` expected a list of {expected}. Received: ids of shape "
            f"{ids.shape}"
        )
    return ids


def _is_of_arrays(x):
    parts = keras.tree.flatten(x)
    return bool(parts) and all(_has_rows(part) for part in parts)


def _has_rows(part):
    shape = getattr(part, "shape", None)
    return shape is not None and len(shape) > 0 and shape[0] is not None


# A drawing of the values of samples.


def plot(values, ax=None):
    """Draw the values in their order; return the matplotlib axes."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
    ordered = np.sort(values)[::-1]
    rank = np.arange(1, len(ordered) + 1)
    for helps, label in ((True, "helped"), (False, "harmed")):
        chosen = (ordered > 0) if helps else (ordered < 0)
        name = f"{label}: {int(chosen.sum())}"
        shown = np.where(chosen, ordered, 0)
        ax.fill_between(rank, shown, step="mid", label=name)
    ax.set_xlabel("sample, by value")
    ax.set_ylabel("drop of the validation loss")
    ax.legend()
    return ax
