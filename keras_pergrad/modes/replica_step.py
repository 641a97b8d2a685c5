"""One replica's share of a batch, as a part of the batch of all replicas.

In Keras each replica divides by its own denominator, and the sum is divided by
the number of replicas. This is right only if all denominators are equal. Here
each replica finds numerators and denominators of its own samples. Both are
added up over the replicas and divided once, so all replicas then hold the
result of a single device.
"""

import warnings
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.aggregation import is_finite
from keras_pergrad.factors import squared_norm
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import first_tensor
from keras_pergrad.keras_internals.losses import total_loss
from keras_pergrad.keras_internals.overwritten import require_none
from keras_pergrad.keras_internals.penalties import regularization_gradients
from keras_pergrad.modes import add_loss_reduction
from keras_pergrad.modes.base import (
    Step,
    call_model,
    finished,
    loss_scale,
    observed,
    overflow_to_infinity,
    scaled,
    spread,
    with_penalties,
)
from keras_pergrad.modes.loss_fractions import NotAdditive
from keras_pergrad.modes.microbatch_sums import Contributions
from keras_pergrad.modes.microbatches import MOST, sum_over
from keras_pergrad.modes.virtual_batch import WeightedContributions


def step(mode, model, x, y, sample_weight):
    """Get the step of a mode with a `weighted_sum` on one of several replicas.

    Returns:
        A `Step` of the whole batch, equal on every replica.

    Raises:
        NotAdditive: the loss has no parts that add up.
    """
    require_parts(model)
    require_none(model, "several replicas")
    scale = loss_scale(model.optimizer)
    parts = WeightedContributions(
        mode, model, x, scale, add_loss_reduction.kinds(model, x)
    )
    batch = x, y, sample_weight
    indexed = *batch, tf.range(parts.count)
    if mode.aggregation is not None and mode.aggregation.counts:
        # A replica may have no sample: the model must not be called then.
        parts.look_through(batch, MOST)
        found: Any = sum_over(parts, indexed, MOST)
    else:
        parts.look_through(batch)
        found = parts(*indexed)
    totals = parts.totals(found)
    gradients, norms = totals["gradients"]["batch"], totals["norms"]
    statistics = {}
    # Not every mode here has its own statistics.
    if mode.is_watched or getattr(mode, "with_statistics", False):
        plain = gradients if totals["plain"] is None else totals["plain"]
        squares = [squared_norm(g) for g in plain if g is not None]
        statistics = spread(norms, squares, parts.rows)
    aggregation, state = mode.aggregation, model.aggregation_state
    if aggregation is not None:
        aggregation = aggregation.at(state)
        if aggregation.needs_norms:
            statistics |= observed(aggregation, norms, state)
        gradients = finished(aggregation, gradients, parts.rows, state)
        if aggregation.needs_norms and scale is not None:
            finite = is_finite(norms)
            gradients = overflow_to_infinity(gradients, finite, scale)
    penalties = regularization_gradients(parts.variables)
    gradients = with_penalties(gradients, penalties)
    loss = parts.loss(totals)
    return Step(loss, None, scaled(gradients, scale), statistics, whole=True)


def evaluate(model, x, y, sample_weight):
    """Return the loss of a batch, of all replicas if known; nothing is trained.

    Returns:
        (loss, the outputs for this replica's samples, whether the loss is
        that of the whole batch, and not Keras's for this replica alone).

    Args:
        model: the compiled `PerGradModel`.
        x, y, sample_weight: the batch, as `keras.Model.test_step` unpacks it.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> import keras_pergrad as kpg
    >>> model = kpg.PerGradModel.from_model(
    ...     keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ... )
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((4, 3)), np.ones((4, 1))
    >>> model.fit(x, y, verbose=0).epoch
    [0]
    >>> loss, outputs, whole = kpg.modes.evaluate(model, x, y, None)
    >>> loss.shape.rank, outputs.shape.as_list(), whole
    (0, [4, 1], True)
    """
    try:
        return *_evaluate(model, x, y, sample_weight), True
    except NotAdditive as error:
        warn(error)
        y_pred = call_model(model, x, training=False)
        loss = total_loss(model, x, y, y_pred, sample_weight, training=False)
        samples = tf.shape(first_tensor(x))[0]
        return replicas.present(samples, loss), y_pred, False


def _evaluate(model, x, y, sample_weight):
    require_parts(model)
    sums = add_loss_reduction.kinds(model, x, training=False)
    parts = Contributions(model, x, None, sums)
    with Postponed() as scope:
        y_pred = call_model(model, x, training=False)
    scope.assign(parts.count)
    terms = parts.evaluate(x, y, y_pred, sample_weight)
    found = parts.parts_of_loss(terms, scope.losses, parts.own_rows)
    return parts.loss(parts.totals(found)), y_pred


def require_parts(model):
    """Refuse a model that overrides `compute_loss`: its terms are unknown."""
    if type(model).compute_loss is not keras.Model.compute_loss:
        raise NotAdditive(
            f"{type(model).__name__} overrides compute_loss, so that it is "
            "not known how its loss adds up over the parts of a batch. Put "
            "the loss into a keras.losses.Loss for compile(loss=...) or into "
            "add_loss(), or use gradient_mode='batch'."
        )


class Postponed(keras.StatelessScope):
    """A scope that holds back assignments and `add_loss` terms of layers.

    Replicas take turns wherever a layer assigns a shared variable. Without the
    scope, the `losses` of one replica would go to another.
    """

    def __init__(self):
        super().__init__(collect_losses=True)
        self._updated = {}

    def add_update(self, update):
        self._updated[id(update[0])] = update[0]
        super().add_update(update)

    def assign(self, samples):
        """Assign what was held back; to be called outside of the scope.

        Args:
            samples: how many samples were used: statistics of none are NaN.
        """
        for variable in self._updated.values():
            value = self.get_current_value(variable)
            if value.dtype.is_floating:
                old = tf.convert_to_tensor(variable.value)
                value = tf.where(samples > 0, value, tf.cast(old, value.dtype))
            variable.assign(value)


def warn(error):
    """Warn that a batch is trained as by `keras.Model`, with the effect."""
    warnings.warn(
        "The replicas have equal weight in this batch, as in keras.Model, "
        "also where they have unequally many samples, since: "
        f"{error}",
        stacklevel=2,
    )
