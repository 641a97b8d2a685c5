"""The value of each sample of a step for the validation loss, in that step.

n samples, c_i = g_i / n the part of sample i in the gradient G = Σ c_i that is
applied, η the learning rate, v and H the gradient and the Hessian of the
validation loss. A step of SGD, w − ηG, lowers that loss by

    η ⟨G, v⟩ − η²/2 ⟨G, H G⟩ + …,   of which sample i has
    η ⟨c_i, v⟩ − η²/2 ⟨c_i, H G⟩ = η ⟨c_i, v − η/2 · H G⟩

the first- and second-order in-run Data Shapley values, with the other sign
(Wang et al., arXiv 2406.11011, theorems 3 and 4).
"""

from typing import Any

import tensorflow as tf

from keras_pergrad.aggregation import is_finite, of_samples, weight_of
from keras_pergrad.analysis.values.validation_slope import ValidationSlope
from keras_pergrad.factors import projections, wide
from keras_pergrad.keras_internals.optimizers import learning_rate
from keras_pergrad.keras_internals.overwritten import is_overwritten
from keras_pergrad.modes.one_step import aggregation_now
from keras_pergrad.modes.step_reading import StepReader
from keras_pergrad.modes.vectorized import sample_norms


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
