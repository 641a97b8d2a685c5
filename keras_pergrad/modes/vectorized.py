"""One forward and backward pass for all per-sample gradients."""

from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    Aggregation,
    aggregations,
    is_finite,
    of_samples,
    variable_weights,
    weighs,
)
from keras_pergrad.common import refusal_messages
from keras_pergrad.common.arguments import named_arguments
from keras_pergrad.common.registry import serialize
from keras_pergrad.factors import SampleGradients, together
from keras_pergrad.factors.sampled import select
from keras_pergrad.factors.written_out import as_norms
from keras_pergrad.keras_internals.losses.losses import recording_losses
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.tensorflow.settings import (
    adding_noise,
    warn_of_tf32,
)
from keras_pergrad.modes.base import GradientMode, PartialSums, gradient_modes
from keras_pergrad.modes.step_readers import readings
from keras_pergrad.uses import TracedStep


class Vectorized(GradientMode):
    """Per-sample gradients in one pass, from the ops that use the weights.

    Args:
        aggregation: "mean", a `ClippedMean` or another `Aggregation`, or its
            config dict.
        statistics: whether to log, as epoch means, what the per-sample
            gradients say about the batch gradient (below). It costs about
            what clipping costs, and holds no array of all gradients.

    | in the logs | is |
    |---|---|
    | `gradient_norm` | ‖ḡ‖ of the mean gradient ḡ over all variables |
    | `gradient_variance` | tr Σ, the trace of the per-sample covariance |
    | `gradient_noise_scale` | mean of tr Σ / mean of (‖ḡ‖² − tr Σ / n) |

    All are of the gradients before clipping, noise and regularisers. Batches
    of one sample have a norm, but no variance. Gradients that are not
    finite are left out: with clipping those samples, else the batches
    that hold them. A value that no batch had is NaN, never 0. So is a noise
    scale whose denominator is not positive.

    Raises:
        ValueError: unknown aggregation.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Vectorized(aggregation=kpg.ClippedMean(1.0))
    """

    per_sample = True
    can_be_watched = can_be_read = True
    needs_graph = True

    def __init__(
        self,
        aggregation: str | Aggregation | dict[str, Any] = "mean",
        statistics: bool = False,
    ):
        self.aggregation: Aggregation = aggregations.get(aggregation)
        self.with_statistics: bool = bool(statistics)

    def partial_sums(self, model: Any, part: Any) -> PartialSums:
        y_pred, factors = sample_gradients(model, part)
        if not weighs(part.aggregation):
            sums, norms, factors = self._plain_sums(factors, part)
            step_readings = readings(
                model, part, y_pred, factors=factors, sums=sums
            )
            return PartialSums(y_pred, sums, norms, readings=step_readings)
        if part.aggregation.needs == "gramian":
            return self._gramian_sums(model, y_pred, factors, part=part)
        groups = part.aggregation.groups(model.trainable_variables)
        factors = _held(factors)
        # Small factors lie side by side where one norm is over all of them.
        split_sums, single_factors = list, factors
        if groups is None:
            factors, split_sums = together(factors)
        norms = sample_norms(factors, part.n, groups)
        limits = part.aggregation.limits_norms and norms.dtype == tf.float32
        if limits and not part.aggregation.adds_noise:
            warn_of_tf32()
        # Before samples that are not finite are blanked.
        step_readings = readings(model, part, y_pred, factors=single_factors)
        weights, factors = _weighted(factors, norms, part)
        sums = [
            f and f.weighted_sum(variable_weights(weights, groups, k))
            for k, f in enumerate(factors)
        ]
        sums = PartialSums(
            y_pred, split_sums(sums), norms, readings=step_readings
        )
        gives_statistics = self.gives_statistics(part.options)
        if gives_statistics and part.is_whole:
            sums.squared_sums = [f.squared_norm_of_sum() for f in factors if f]
        elif gives_statistics:
            sums.plain = split_sums(_unweighted_sums(factors))
        return sums

    def require(self, model: Any) -> None:
        if (
            self.aggregation.needs == "gramian"
            and replicas.has_several_replicas()
        ):
            count = tf.distribute.get_strategy().num_replicas_in_sync
            text = refusal_messages.gramian_over_replicas(
                self.aggregation, count
            )
            raise ValueError(text)

    def _gramian_sums(self, model, y_pred, factors, *, part):
        """Return the sums with weights by the inner products of all samples."""
        single_factors = _held(factors, pairs=True)
        factors, split_sums = together(single_factors)
        products = [f.gram() for f in factors if f is not None]
        gramian = sample_gramian(products, part.n)
        weights, finite = part.aggregation.mean_weights(gramian)
        # Before samples that are not finite are blanked.
        step_readings = readings(model, part, y_pred, factors=single_factors)
        factors = select(factors, finite)
        sums = split_sums([f and f.weighted_sum(weights) for f in factors])
        norms = tf.sqrt(tf.linalg.diag_part(gramian))
        statistics = part.aggregation.gramian_statistics(gramian)
        squares = None
        if self.gives_statistics(part.options):
            squares = [f.squared_norm_of_sum() for f in factors if f]
        return PartialSums(
            y_pred,
            sums,
            norms,
            squared_sums=squares,
            readings=step_readings,
            statistics=statistics,
        )

    def _plain_sums(self, factors, part):
        """Return the plain sums, norms where statistics need them, factors."""
        # If the user wants them, the sums read what the norms hold, which is
        # cheaper. If a callback does, the sums stay the same to the bit.
        norms = None
        if self.with_statistics:
            factors = _held(factors)
        sums = _unweighted_sums(factors)
        if self.gives_statistics(part.options):
            factors = _held(factors)
            norms = sample_norms(factors, part.n)
        return sums, norms, factors

    def get_config(self) -> dict[str, Any]:
        return {
            "aggregation": serialize(self.aggregation),
            "statistics": self.with_statistics,
        }


@named_arguments
def sample_gradients(
    model: keras.Model, part: Any
) -> tuple[Any, list[SampleGradients | None]]:
    """Return the outputs for a part of a batch, and its samples' gradients.

    For a custom mode that does with the gradients of samples what no
    `Aggregation` can; it sets `needs_graph = True`. Its gradients have no
    weight regularisers and no loss scale, which are added afterwards.

    Args:
        model: the compiled model.
        part: what `partial_sums` was given.

    Returns:
        (y_pred, factors), with the `SampleGradients` of each trainable
        variable, or None: the loss does not depend on it. They are the
        samples' contributions, which add up to the gradient of the whole
        batch; times `part.n`, each is the gradient of a sample.

    Raises:
        ValueError: it is called outside of a graph; samples are mixed, or it
            cannot be proved that they are not.

    Example, the coordinate-wise sign of each sample's gradient, averaged:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> @kpg.modes.register_gradient_mode("sign_of_samples")
    ... class SignOfSamples(kpg.modes.GradientMode):
    ...     needs_graph = per_sample = changes_gradients = True
    ...
    ...     def partial_sums(self, model, part):
    ...         y_pred, factors = kpg.modes.sample_gradients(model, part)
    ...         sums = [f and mean_of_signs(f, part.n) for f in factors]
    ...         return kpg.modes.PartialSums(y_pred, sums)
    >>> def mean_of_signs(factor, n):
    ...     signs = tf.sign(factor.materialize())
    ...     return tf.reduce_sum(signs, 0) / tf.cast(n, signs.dtype)
    >>> import keras, numpy as np
    >>> inputs = keras.Input((4,))
    >>> model = kpg.PerGradModel(inputs, keras.layers.Dense(3)(inputs))
    >>> model.compile("sgd", "mse", gradient_mode="sign_of_samples")
    >>> history = model.fit(np.ones((5, 4)), np.ones((5, 3)), verbose=0)
    """
    if tf.executing_eagerly():
        raise ValueError(
            "sample_gradients() looks at ops, which only a graph shows. "
            "Received: a call of partial_sums() in eager execution. Set "
            "`needs_graph = True` in the class of the gradient mode."
        )
    traced = TracedStep(model, (part.x, part.y, part.sample_weight))
    added = []
    with part.watched(), traced:
        with recording_losses(model, added):
            y_pred = traced.forward(part.x)
        target = part.target(y_pred, added)
    aggregation = part.aggregation
    with adding_noise(aggregation and aggregation.adds_noise):
        factors: Any = traced.sample_gradients(target, part.scale)
    # `check_gradients` has modes train plain models, which log nothing.
    logs = getattr(model, "gradient_logs", None)
    if logs is not None:
        logs.one_by_one.update(traced.one_by_one)
    return y_pred, factors


def _held(factors, pairs=False):
    return [f and f.held(pairs) for f in factors]


def _weighted(factors, norms, part):
    """Return the weights, and factors in which samples left out are blank."""
    weights = part.aggregation.weights(norms)
    finite = is_finite(of_samples(norms))
    if part.padded is not None:
        weights = part.padded.weights(weights)
        finite = tf.logical_and(finite, part.padded.present)
    return weights, select(factors, finite)


def _unweighted_sums(factors):
    return [f and f.weighted_sum(None) for f in factors]


def sample_norms(factors, n, groups=None):
    """Return the samples' norms, (n,), or over each group, (n, groups)."""
    squares = [f and f.squared_norms() for f in factors]
    defined = as_norms(squares)
    if groups is None:
        total = tf.add_n(defined)
    else:
        totals = [tf.zeros_like(defined[0])] * (max(groups) + 1)
        defined_groups = [k for s, k in zip(squares, groups) if s is not None]
        for square, group in zip(defined, defined_groups):
            totals[group] += square
        total = tf.stack(totals, 1)
    return tf.cast(n, total.dtype) * tf.sqrt(total)


def sample_gramian(products, n):
    """Return the Gramian of gradients, (n, n), from those of contributions."""
    total = tf.add_n(as_norms(products))
    return total * tf.square(tf.cast(n, total.dtype))


gradient_modes.register("vectorized", Vectorized)
