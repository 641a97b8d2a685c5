"""One forward and backward pass for all per-sample gradients."""

import tensorflow as tf

from keras_pergrad.aggregation import aggregations
from keras_pergrad.factors.base import select
from keras_pergrad.losses import noting_losses, total_loss
from keras_pergrad.modes.base import (
    GradientMode,
    Step,
    add_regularizers,
    loss_scale,
    modes,
    overflow_to_infinity,
    scaled,
)
from keras_pergrad.registry import serialize
from keras_pergrad.tape import Tape, first_tensor


class Vectorized(GradientMode):
    """Per-sample gradients by layer rules, in one pass for the whole batch.

    Args:
        aggregation: "mean", a `ClippedMean` or another `Aggregation`, or its
            config dict.

    Raises:
        ValueError: unknown aggregation.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Vectorized(aggregation=kpg.ClippedMean(1.0))
    """

    per_sample = True

    def __init__(self, aggregation="mean"):
        self.aggregation = aggregations.get(aggregation)

    def step(self, model, x, y, sample_weight):
        scale = loss_scale(model.optimizer)
        tape = Tape(model)
        with tape:
            y_pred = tape.forward(x)
            loss = total_loss(model, x, y, y_pred, sample_weight)
            target = loss if scale is None else loss * scale
        factors = tape.sample_gradients(target, scale)
        n = tf.shape(first_tensor(x))[0]
        gradients, statistics = aggregate(self.aggregation, factors, n, scale)
        gradients = add_regularizers(gradients, tape.variables)
        return Step(loss, y_pred, scaled(gradients, scale), statistics)

    def weighted_sum(self, model, x, loss, n, scale):
        """A microbatch's part in the aggregation over a larger batch.

        Args:
            model: the compiled model.
            x: the inputs of the microbatch.
            loss: gives its part of the loss of the whole batch, not scaled,
                for the model's outputs and the list of `add_loss` terms.
            n: the number of samples in the whole batch.
            scale: the loss scale, or None.

        Returns:
            (outputs, the sums of weighted contributions, the samples' norms).
        """
        tape, added = Tape(model), []
        with tape:
            with noting_losses(model, added):
                y_pred = tape.forward(x)
            target = loss(y_pred, added)
            target = target if scale is None else target * scale
        factors = tape.sample_gradients(target, scale)
        return y_pred, *weighted_sum(self.aggregation, factors, n)

    @property
    def log_metrics(self):
        return self.aggregation.log_metrics

    def get_config(self):
        return {"aggregation": serialize(self.aggregation)}


def aggregate(aggregation, factors, n, scale=None):
    """The weighted mean of factored per-sample gradients.

    Args:
        aggregation: an `Aggregation`.
        factors: contributions, one `SampleGradients` (or None) a variable.
        n: the number of samples.
        scale: the loss scale in force, or None.

    Returns:
        (gradients, statistics).
    """
    if not aggregation.needs_norms:
        gradients = [f and f.weighted_sum(None) for f in factors]
        return aggregation.finish(gradients, n), {}
    gradients, norms = weighted_sum(aggregation, factors, n)
    gradients = aggregation.finish(gradients, n)
    if scale is not None:
        finite = tf.math.is_finite(norms)
        gradients = overflow_to_infinity(gradients, finite, scale)
    return gradients, aggregation.statistics(norms)


def weighted_sum(aggregation, factors, n):
    """The sum of the contributions by their weights, and all norms."""
    norms = sample_norms(factors, n)
    weights = aggregation.weights(norms)
    finite = tf.math.is_finite(norms)
    select([f for f in factors if f is not None], finite)
    gradients = [f and f.weighted_sum(weights) for f in factors]
    return gradients, norms


def sample_norms(factors, n):
    """Norms of the per-sample gradients over all variables, (n,)."""
    squares = [f.squared_norms() for f in factors if f is not None]
    dtype = (
        tf.float64
        if any(s.dtype == tf.float64 for s in squares)
        else (tf.float32)
    )
    total = tf.add_n([tf.cast(s, dtype) for s in squares])
    return tf.cast(n, dtype) * tf.sqrt(total)


modes.register("vectorized", Vectorized)
