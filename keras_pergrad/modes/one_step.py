"""One step of any mode: the sums of a batch's parts, made one gradient.

A mode gives the sums of a part of a batch (`GradientMode.partial_sums`). A
whole batch on one device is one part, whose loss is Keras's own. What becomes
of the sums is done here, also of those of a batch in parts (`microbatches`):

    split → sum → over replicas → aggregate → overflow → regularise → scale
"""

import contextlib
import dataclasses
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import is_finite, weighs
from keras_pergrad.aggregations.statistics import spread_statistics
from keras_pergrad.common.batches import map_tensors, sample_count
from keras_pergrad.factors import squared_norm
from keras_pergrad.keras_internals.data.views import call_views
from keras_pergrad.keras_internals.losses.losses import total_loss
from keras_pergrad.keras_internals.losses.regularizers import (
    Penalties,
    regularization_gradients,
    without_gradients,
)
from keras_pergrad.keras_internals.models.parts import compiled_loss
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.tensorflow.settings import require_no_tf32
from keras_pergrad.modes.fractions import tracking_where_present
from keras_pergrad.modes.padded_batch import PaddedBatch
from keras_pergrad.modes.step_options import StepOptions


@dataclasses.dataclass
class Step:
    """What a mode returns for one batch.

    Attributes:
        loss: the scalar loss of the batch, unscaled, regularisers included;
            None where the mode has tracked it itself.
        y_pred: the model's output for the batch; None where the mode has
            updated the metrics itself.
        gradients: one per trainable variable (None: no gradient), as the
            optimizer's `apply` expects them; None where the mode has called
            the optimizer itself, or no update is due yet.
        statistics: scalars to log, by name.
        readings: what each open `StepReader` has read, or None.
        whole: under a distribution strategy, whether loss, gradients and
            statistics cover the samples of all replicas, and are equal on
            each. False: gradients and loss are as in Keras; the optimizer and
            the metrics add them up over the replicas.

    Example:

    >>> import keras
    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> model = kpg.PerGradModel.from_model(
    ...     keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ... )
    >>> model.compile("sgd", "mse", gradient_mode="vectorized")
    >>> x, y = tf.ones((4, 3)), tf.ones((4, 1))
    >>> model.fit(x, y, verbose=0).epoch
    [0]
    >>> step = model.gradient_mode.step(model, x, y, None)
    >>> [g.shape.as_list() for g in step.gradients], step.loss.shape.rank
    ([[3, 1], [1]], 0)
    """

    loss: tf.Tensor | None
    y_pred: object
    gradients: list[Any] | None
    statistics: dict[str, Any] = dataclasses.field(default_factory=dict)
    whole: bool = False
    readings: tuple[dict[str, Any], ...] | None = None


class WholeBatch:
    """A whole batch as its only part: its loss is Keras's own.

    It has the attributes and methods of a `PartOfBatch`, which modes use.

    Attributes:
        aggregation: as it is at this step, or None.
        padded: the `PaddedBatch` behind it, where it may have no sample.
        is_single: whether it is surely one sample.
        options: the `StepOptions` of the step.
        loss: the loss of the batch, once `target` was called.
        penalties: what the loss does with the weight regularisers.
    """

    is_whole = True

    def __init__(
        self,
        model,
        batch,
        scale=None,
        *,
        aggregation=None,
        padded=None,
        is_single=False,
        options=None,
    ):
        self.model, self.scale = model, scale
        self.x, self.y, self.sample_weight = batch
        self.n = sample_count(self.x)
        self.aggregation, self.padded = aggregation, padded
        self.is_single = is_single
        self.options = options or StepOptions()
        self.penalties = Penalties(model)
        self.loss: Any = None

    def watched(self):
        return without_gradients(self.penalties.variables)

    def call(self):
        return call_views(self.model, self.x), []

    def target(self, y_pred, added, training=True):
        """Return the loss times the loss scale; `added` is in it already."""
        del added
        tracking = contextlib.nullcontext()
        if self.padded is not None:
            losses, present = compiled_loss(self.model), self.padded.n > 0
            tracking = tracking_where_present(losses, present)
        with tracking, self.penalties.noted():
            self.loss = total_loss(
                self.model,
                self.x,
                self.y,
                y_pred=y_pred,
                sample_weight=self.sample_weight,
                training=training,
            )
        return times(self.loss, self.scale)


def step_of_whole_batch(
    mode, model, batch, *, is_single=False, options=None
) -> tuple[Step, Any]:
    """Return a mode's step for a batch on one device, and its norms or None."""
    scale, padded = loss_scale(model.optimizer), None
    aggregation = current_aggregation(mode, model)
    if aggregation is not None and aggregation.counts:
        padded = PaddedBatch(batch)
        batch = padded.batch
    part = WholeBatch(
        model,
        batch,
        scale=scale,
        aggregation=aggregation,
        padded=padded,
        is_single=is_single,
        options=options,
    )
    sums = mode.partial_sums(model, part)
    y_pred, norms = sums.y_pred, sums.norms
    if padded is not None:
        y_pred, norms = padded.cut((y_pred, norms))
    step_batch = StepBatch(
        model=model,
        aggregation=aggregation,
        n=part.n,
        scale=scale,
        norms=norms,
        penalties=part.penalties.gradients(part.loss),
    )
    plain = None
    if mode.gives_statistics(part.options):
        plain = sums.plain or sums.gradients
    logged = step_batch.observe(plain, sums.squared_sums)
    logged = {**sums.statistics, **logged}
    gradients = step_batch.finish(sums.gradients)
    step = Step(
        part.loss, y_pred, gradients, statistics=logged, readings=sums.readings
    )
    return step, norms


def current_aggregation(mode, model):
    """Return the aggregation of a mode as it is at this step, or None."""
    aggregation = mode.aggregation
    return aggregation and aggregation.at(model.aggregation_state)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepBatch:
    """The samples of one gradient: what must be known in addition to its sums.

    Attributes:
        model: the compiled model.
        aggregation: as it is at this step, or None.
        n: the number of samples; None if nothing is divided by it.
        scale: the loss scale, or None.
        norms: of the samples' gradients, (n,) or (n, groups), or None.
        penalties: the gradients of the weight regularisers, one a variable;
            None: those of the variables alone.
    """

    model: Any
    aggregation: Any
    n: Any
    scale: Any
    norms: Any = None
    penalties: list[Any] | None = None

    def observe(self, plain, squares=None):
        """Pass the norms to the aggregation; return what is logged of them.

        `plain`, `squares`: as `plain` and `squared_sums` of `PartialSums`, for
        the statistics; None: not wanted.
        """
        logged = {}
        if weighs(self.aggregation):
            state = self.model.aggregation_state
            self.aggregation.observe(self.norms, state)
            logged = self.aggregation.statistics(self.norms)
        if squares is None and plain is not None:
            squares = [squared_norm(g) for g in plain if g is not None]
        if squares is not None:
            spread = spread_statistics(self.norms, squares, self.n)
            logged = {**logged, **spread}
        return logged

    def finish(self, sums):
        """Return gradients as the optimizer expects them, of weighted means."""
        gradients, penalties = self._aggregated(sums), self.penalties
        variables = self.model.trainable_variables
        if penalties is None:
            penalties = regularization_gradients(variables)
        penalties = [
            p if p is None or g is None else tf.cast(p, g.dtype)
            for p, g in zip(penalties, gradients, strict=True)
        ]
        gradients = plus(gradients, penalties)
        if self.scale is not None:
            dense_gradients = map_tensors(tf.convert_to_tensor, gradients)
            gradients = [times(g, self.scale) for g in dense_gradients]
        return [
            None if g is None else tf.cast(g, v.value.dtype)
            for g, v in zip(gradients, variables, strict=True)
        ]

    def _aggregated(self, sums):
        """Return what the aggregation makes of weighted means, with noise."""
        aggregation, state = self.aggregation, self.model.aggregation_state
        if aggregation is None:
            return sums
        if aggregation.adds_noise:
            require_no_tf32()
            aggregation.tell_noise(self.model.optimizer, self.n, state)
        gradients = aggregation.finish(sums, self.n, state)
        if gradients is not sums:
            # Each replica draws its own noise.
            gradients = replicas.from_first_replica(gradients)
        is_scaled = self.scale is not None and self.norms is not None
        if weighs(aggregation) and is_scaled:
            gradients = overflow_to_infinity(gradients, self.norms, self.scale)
        return gradients


def overflow_to_infinity(gradients, norms, scale):
    """Pass an overflow on to the optimizer, which then lowers the scale."""
    overflow = tf.logical_not(tf.reduce_all(is_finite(norms)))
    overflow = tf.logical_and(overflow, scale > 1)
    return map_tensors(
        lambda g: tf.where(overflow, tf.constant(float("inf"), g.dtype), g),
        map_tensors(tf.convert_to_tensor, gradients),
    )


#: A gradient of at most so many numbers is made dense, which costs no more.
SMALL = 2**18


def for_optimizer(gradients, checks=()):
    """Return gradients with the rows of an id added up, once all are computed.

    No weight changes before every check inside them, and of `checks`, has
    passed.
    """
    # Keras's optimizers take the rows of a `tf.IndexedSlices` one by one: Adam
    # adds up the squares of an id's parts, where its formula has the square of
    # their sum.
    gradients = [
        _merge_duplicate_ids(g) if isinstance(g, tf.IndexedSlices) else g
        for g in gradients
    ]
    return tf.tuple(gradients, control_inputs=checks)


def _merge_duplicate_ids(slices):
    """Return the same gradient; an id's sum stands where it comes last."""
    size = slices.shape.num_elements()
    if size is not None and size <= SMALL:
        return tf.convert_to_tensor(slices)
    # Rows of an id that come before become zero, so that all sizes stay as
    # they are: XLA must know them.
    ids, rows = slices.indices, slices.dense_shape[0]
    count = tf.size(ids)
    positions = tf.range(count)
    last_positions = tf.math.unsorted_segment_max(positions, ids, rows)
    # Ids of no row, which a GPU and XLA pass over, stay alone.
    valid = (ids >= 0) & (ids < tf.cast(rows, ids.dtype))
    positions = tf.where(
        valid, tf.gather(last_positions, tf.where(valid, ids, 0)), positions
    )
    values = tf.math.unsorted_segment_sum(slices.values, positions, count)
    values.set_shape(slices.values.shape)
    return tf.IndexedSlices(values, ids, slices.dense_shape)


def loss_scale(optimizer):
    """Return the factor by which the optimizer scales the loss, or None."""
    if optimizer is None:
        return None
    is_double = keras.config.floatx() == "float64"
    unit = tf.ones([], "float64" if is_double else "float32")
    scaled = optimizer.scale_loss(unit)
    # An optimizer without a scale returns the very same tensor.
    return None if scaled is unit else scaled


def times(value: Any, factor: Any) -> Any:
    """Return the product; None stands for no value, or for a factor of one."""
    if value is None or factor is None:
        return value
    # A cast would take a Python number through single precision.
    factor = tf.cast(factor, value.dtype) if tf.is_tensor(factor) else factor
    return value * factor


def plus(first, second):
    """Return the sums of two lists of gradients, some of them None."""
    return [
        b if a is None else a if b is None else tf.convert_to_tensor(a) + b
        for a, b in zip(first, second, strict=True)
    ]
