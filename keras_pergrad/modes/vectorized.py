"""One forward and backward pass for all per-sample gradients."""

import tensorflow as tf

from keras_pergrad.aggregation import (
    aggregations,
    is_finite,
    of_samples,
    weight_of,
)
from keras_pergrad.common.registry import serialize
from keras_pergrad.factors import squared_norm, together
from keras_pergrad.factors.sample_gradients import select
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import Filled, first_tensor
from keras_pergrad.keras_internals.losses import noting_losses, total_loss
from keras_pergrad.keras_internals.overwritten import SetApart
from keras_pergrad.keras_internals.penalties import Penalties
from keras_pergrad.modes import replica_step
from keras_pergrad.modes.base import (
    GradientMode,
    Step,
    gives_statistics,
    log_metrics,
    loss_scale,
    modes,
    observed,
    overflow_to_infinity,
    scaled,
    spread,
    with_penalties,
)
from keras_pergrad.modes.traced_step import in_graph
from keras_pergrad.samples import Tape

SHARED, BESIDE = "shared", "beside"


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
    can_be_watched = True
    needs_graph = True

    def __init__(self, aggregation="mean", statistics=False):
        self.aggregation = aggregations.get(aggregation)
        self.with_statistics = bool(statistics)

    @in_graph
    def step(self, model, x, y, sample_weight):
        if replicas.several():
            return replica_step.step(self, model, x, y, sample_weight)
        scale, filled = loss_scale(model.optimizer), None
        if self.aggregation.counts:
            filled = Filled((x, y, sample_weight))
            x, y, sample_weight = filled.batch
        with SetApart(model) as apart:
            tape, penalties = (
                Tape(model, (x, y, sample_weight)),
                Penalties(model),
            )
            with apart.watched(), tape:
                y_pred = tape.forward(x)
                with penalties.noted():
                    loss = total_loss(model, x, y, y_pred, sample_weight)
                target = loss if scale is None else loss * scale
            factors = tape.sample_gradients(target, scale)
            n = tf.shape(first_tensor(x))[0]
            wanted, state = self._statistics(), model.aggregation_state
            groups = self.aggregation.groups(tape.variables)
            found = self.aggregation, factors, n, scale
            gradients, statistics = aggregate(
                *found, wanted, state, groups, filled
            )
        if filled is not None:
            y_pred = filled.outputs(y_pred)
        gradients = with_penalties(gradients, penalties.gradients(loss))
        gradients = apart.merged(scaled(gradients, scale), target)
        return Step(loss, y_pred, gradients, statistics)

    def _statistics(self):
        if not gives_statistics(self):
            return None
        return SHARED if self.with_statistics else BESIDE

    def weighted_sum(self, model, x, part, scale):
        """Return a microbatch's part in the aggregation over a larger batch.

        Args:
            model: the compiled model.
            x: the inputs of the microbatch.
            part: a `PartOfBatch`.
            scale: the loss scale, or None.

        Returns:
            (outputs, the sums of weighted contributions, the samples' norms
            or None, the plain sums where the statistics need them or None).
        """
        tape, added = Tape(model, (x, part.y, part.sample_weight)), []
        with tape:
            with noting_losses(model, added):
                y_pred = tape.forward(x)
            target = part.loss(y_pred, added)
            target = target if scale is None else target * scale
        factors = tape.sample_gradients(target, scale)
        wanted = self._statistics()
        if not self.aggregation.needs_norms:
            norms = None
            if wanted == SHARED:
                norms = sample_norms(factors, part.n)
            sums = [f and f.weighted_sum(None) for f in factors]
            if wanted == BESIDE:
                norms = sample_norms(factors, part.n)
            return y_pred, sums, norms
        aggregation = self.aggregation.at(model.aggregation_state)
        groups = aggregation.groups(tape.variables)
        plain, (factors, apart) = None, _fewer(factors, groups)
        sums, norms = weighted_sum(aggregation, factors, part.n, groups)
        if wanted:
            plain = apart([f and f.weighted_sum(None) for f in factors])
        return y_pred, apart(sums), norms, plain

    @property
    def log_metrics(self):
        return log_metrics(self)

    def get_config(self):
        return {
            "aggregation": serialize(self.aggregation),
            "statistics": self.with_statistics,
        }


def aggregate(
    aggregation,
    factors,
    n,
    scale=None,
    statistics=None,
    state=None,
    groups=None,
    filled=None,
):
    """Return the weighted mean of factored per-sample gradients.

    Args:
        aggregation: an `Aggregation`.
        factors: contributions, one `SampleGradients` (or None) a variable.
        n: the number of samples.
        scale: the loss scale in force, or None.
        statistics: None, or how to find the spread of the gradients.
            `SHARED`: the gradient reuses what the norms hold (cheaper);
            `BESIDE`: the gradient is bitwise as without statistics.
        state: the model's `aggregation_state`.
        groups: as from `Aggregation.groups`.
        filled: a `Filled`, where the batch may have no sample.

    Returns:
        (gradients, statistics).
    """
    found = {}
    aggregation = aggregation.at(state)
    if not aggregation.needs_norms:
        if statistics == SHARED:
            norms = sample_norms(factors, n)
        gradients = [f and f.weighted_sum(None) for f in factors]
        if statistics == BESIDE:
            norms = sample_norms(factors, n)
        if statistics:
            # The applied gradient is the mean: its norm costs nothing extra.
            mean = [squared_norm(g) for g in gradients if g is not None]
            found = spread(norms, mean, n)
        return aggregation.finish(gradients, n, state), found
    factors, apart = _fewer(factors, groups)
    gradients, norms = weighted_sum(aggregation, factors, n, groups, filled)
    gradients = apart(gradients)
    norms = norms if filled is None else norms[: filled.n]
    if statistics:
        mean = [f.squared_norm_of_sum() for f in factors if f is not None]
        found = spread(norms, mean, n)
    found = {**observed(aggregation, norms, state), **found}
    gradients = aggregation.finish(gradients, n, state)
    if scale is not None:
        finite = is_finite(norms)
        gradients = overflow_to_infinity(gradients, finite, scale)
    return gradients, found


def _fewer(factors, groups):
    """Put small factors side by side, as `together`, if all have one norm."""
    return together(factors) if groups is None else (factors, list)


def weighted_sum(aggregation, factors, n, groups=None, filled=None):
    """Return the weighted sum of the contributions, and all norms."""
    norms = sample_norms(factors, n, groups)
    weights = aggregation.weights(norms)
    finite = is_finite(of_samples(norms))
    if filled is not None:
        weights = filled.weights(weights)
        finite = tf.logical_and(finite, filled.present)
    select([f for f in factors if f is not None], finite)
    gradients = [
        f and f.weighted_sum(weight_of(weights, groups, k))
        for k, f in enumerate(factors)
    ]
    return gradients, norms


def sample_norms(factors, n, groups=None):
    """Return the norms of the per-sample gradients.

    Args:
        factors: contributions, one `SampleGradients` (or None) a variable.
        n: the number of samples in the whole batch.
        groups: as from `Aggregation.groups`.

    Returns:
        Over all variables, (n,), or over each group of them, (n, groups).
    """
    squares = [f and f.squared_norms() for f in factors]
    known = [s for s in squares if s is not None]
    wide = any(s.dtype == tf.float64 for s in known)
    dtype = tf.float64 if wide else tf.float32
    squares = [None if s is None else tf.cast(s, dtype) for s in squares]
    if groups is None:
        total = tf.add_n([s for s in squares if s is not None])
    else:
        nothing = [tf.zeros_like(known[0], dtype)]
        parts = [
            tf.add_n(
                [s for s, h in zip(squares, groups) if h == g and s is not None]
                or nothing
            )
            for g in range(max(groups) + 1)
        ]
        total = tf.stack(parts, 1)
    return tf.cast(n, dtype) * tf.sqrt(total)


modes.register("vectorized", Vectorized)
