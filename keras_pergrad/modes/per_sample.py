"""One forward and backward pass per sample."""

from typing import Any, Literal

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
from keras_pergrad.common.arguments import positive_integer, require_one_of
from keras_pergrad.common.batches import map_tensors, sample_count
from keras_pergrad.common.registry import serialize
from keras_pergrad.factors import wide
from keras_pergrad.factors.written_out import norm_type
from keras_pergrad.keras_internals.data.views import call_views
from keras_pergrad.keras_internals.graphs import draws
from keras_pergrad.keras_internals.losses.losses import (
    recording_losses,
    total_loss,
)
from keras_pergrad.keras_internals.losses.regularizers import without_gradients
from keras_pergrad.keras_internals.models.parts import compiled_loss
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.modes import fractions
from keras_pergrad.modes.base import GradientMode, PartialSums, gradient_modes
from keras_pergrad.modes.batch import Batch
from keras_pergrad.modes.inspection import require_any_batch_size
from keras_pergrad.modes.one_step import plus, times
from keras_pergrad.modes.sums import unscaled
from keras_pergrad.proof import messages
from keras_pergrad.uses import TracedStep, added_powers, loss_power, refusals


class Samples:
    """A batch whose samples can be differentiated one at a time.

    The batch goes through the model as a whole, too: this gives its outputs,
    its loss, and the state that layers keep. Each sample is then a batch of
    one, whose loss counts as its part in that of the batch.

    Attributes:
        y_pred: the outputs.
        n: how many samples there are.
        variables: those that samples have gradients for.
    """

    def __init__(self, model, part, training=True):
        self.variables = list(model.trainable_variables)
        self._model, self._training, self._scale = model, training, part.scale
        self._batch = part.x, part.y, part.sample_weight
        self.n = part.n if part.is_whole else sample_count(part.x)
        traced = TracedStep(model, self._batch, training)
        _refuse(traced, None if part.is_whole else fractions.numerators)
        # Each sample reads state as it was before the layers assign it.
        self._state = [
            (v, tf.identity(tf.convert_to_tensor(v.value)))
            for v in model.non_trainable_variables
        ]
        added: list[Any] = []
        with part.watched():
            with recording_losses(model, added):
                self.y_pred = call_views(model, part.x, training)
            part.target(self.y_pred, added, training)
        self._loss = part.loss
        if part.is_whole:
            self._loss = _loss_of_samples(traced, self.y_pred, self.n)

    def contributions(self, i):
        """Return sample i's part in each variable's gradient, or None."""
        # With a gather XLA knows the size of the batch, 1.
        row = tf.reshape(i, [1])
        batch = map_tensors(
            lambda t: tf.gather(t, row) if t.shape.rank else t, self._batch
        )
        # The variables themselves, not their values: a custom gradient, as in
        # `keras.remat`, does not pass on gradients of captured tensors.
        values = [v.value for v in self.variables]
        scope = keras.StatelessScope(self._state, collect_losses=True)
        added: list[Any] = []
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            with (
                scope,
                without_gradients(self.variables),
                draws.numbered(i),
            ):
                with recording_losses(self._model, added):
                    y_pred = call_views(self._model, batch[0], self._training)
                _require_ranks(self._model, y_pred, self.y_pred)
                loss = self._loss(batch, y_pred, added)
            target = times(loss, self._scale)
        return unscaled(tape.gradient(target, values), self._scale)


def _require_ranks(model, y_pred, batch_outputs):
    """Refuse outputs of a sample that have another rank than the batch's."""
    ranks = [
        [t.shape.rank for t in tf.nest.flatten(outputs) if tf.is_tensor(t)]
        for outputs in (y_pred, batch_outputs)
    ]
    if any(a != b for a, b in zip(*ranks, strict=True) if b is not None):
        raise ValueError(messages.other_rank_alone(model))


def _refuse(traced, values=None):
    for error in refusals(traced, repeated="sample", values=values):
        raise error


def _loss_of_samples(traced, y_pred, n):
    """Return the `loss` of some samples of a whole batch, as of a part."""
    model, training = traced.model, traced.training
    try:
        power = loss_power(traced, "sample")
    except ValueError as error:
        # It has a divisor of its own, or terms of several kinds.
        try:
            return _loss_of_fractions(traced, y_pred, n)
        except fractions.NotAdditive:
            raise error from None

    def loss(batch, y_pred, added):
        del added
        x, y, sample_weight = batch
        value = total_loss(
            model,
            x,
            y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=training,
        )
        return _share(value, power, n)

    return loss


def _loss_of_fractions(traced, y_pred, n):
    """Return the same for a loss of terms over divisors of their own."""
    model = traced.model
    fractions.require_additive_loss(model)
    _refuse(traced, fractions.numerators)
    powers = added_powers(traced, "sample", fractions.numerators)
    losses, (_, y, sample_weight) = compiled_loss(model), traced.batch
    terms = fractions.evaluate(losses, y, y_pred, sample_weight)

    def loss(batch, y_pred, added):
        _, y, sample_weight = batch
        parts = fractions.evaluate(losses, y, y_pred, sample_weight)
        values = [
            fractions.divided(part.numerator, term)
            for part, term in zip(parts, terms, strict=True)
        ]
        values += [
            _share(tf.reduce_sum(value), power, n)
            for value, power in zip(added, powers, strict=True)
        ]
        dtype = keras.config.floatx()
        return tf.add_n([tf.cast(value, dtype) for value in values])

    return loss


def _share(loss, power, n):
    """Return the part of one sample's loss in that of n samples, over n ** k.

    `power`: k.
    """
    return loss / tf.cast(n, loss.dtype) ** power if power else loss


class SingleSample:
    """A batch of one sample, which is differentiated as it is."""

    n = 1

    def __init__(self, model, part):
        self.variables = list(model.trainable_variables)
        _refuse(TracedStep(model, (part.x, part.y, part.sample_weight)))
        sums = Batch().partial_sums(model, part)
        self.y_pred, self._gradients = sums.y_pred, sums.gradients

    def contributions(self, i):
        """Return the sample's part in each variable's gradient, or None."""
        del i
        return self._gradients


def _norm(contributions, variables, n, *, groups=None):
    """Return the norm of a sample's gradient, (), or by group, (groups,)."""
    dtype = norm_type(variables)
    count = 1 if groups is None else max(groups) + 1
    totals = [tf.zeros([], dtype)] * count
    for k, g in enumerate(contributions):
        if g is not None:
            square = tf.square(tf.cast(g, dtype))
            group = 0 if groups is None else groups[k]
            totals[group] += tf.reduce_sum(square)
    total = totals[0] if groups is None else tf.stack(totals)
    return tf.cast(n, dtype) * tf.sqrt(total)


UPDATES = ("batch", "sample")


class PerSample(GradientMode):
    """Per-sample gradients one at a time: any model, little memory.

    One forward pass of the batch gives its outputs, its loss and the state
    that layers keep. A loop then makes one forward and backward pass per
    sample, a batch of one, and holds `parallel_iterations` of the samples'
    gradients at a time. Random layers such as Dropout draw again for each
    sample, other numbers than in the batch and than in "vectorized"; so does
    noise that a layer draws once for all samples of a batch.

    Args:
        aggregation: "mean", a `ClippedMean` or another `Aggregation`, or its
            config dict.
        updates: "batch" applies the aggregated gradient once; "sample" is
            online descent: it calls the optimizer after every sample, as
            `fit(batch_size=1)` does. A batch of 100 makes 100 updates.
        parallel_iterations: how many samples may be processed at a time.
        statistics: whether to log `gradient_norm`, `gradient_variance` and
            `gradient_noise_scale`, as `Vectorized` does. With clipping this
            holds one more sum of gradients. Not with updates="sample": an
            update by one sample has no variance.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.PerSample(updates="sample")
    """

    per_sample = True

    def __init__(
        self,
        aggregation: str | Aggregation | dict[str, Any] = "mean",
        updates: Literal["batch", "sample"] = "batch",
        parallel_iterations: int = 1,
        *,
        statistics: bool = False,
    ):
        self.aggregation: Aggregation = aggregations.get(aggregation)
        if self.aggregation.needs == "gramian":
            text = refusal_messages.needs_all_samples
            raise ValueError(text("aggregation", self.aggregation))
        require_one_of("updates", updates, UPDATES)
        if statistics and updates == "sample":
            raise ValueError(
                "`statistics` are of the samples of one update, and with "
                "updates='sample' there is one: its variance is not defined. "
                "Received: statistics=True, updates='sample'"
            )
        self.with_statistics: bool = bool(statistics)
        self.updates: Literal["batch", "sample"] = updates
        self.parallel_iterations: int = positive_integer(
            "parallel_iterations", parallel_iterations
        )

    @property
    def updates_by_sample(self) -> bool:
        return self.updates == "sample"

    @property
    def updates_by_itself(self) -> bool:
        return self.updates_by_sample

    @property
    def can_be_watched(self) -> bool:
        # One update by one sample has no variance.
        return not self.updates_by_sample

    def require(self, model: Any) -> None:
        require_any_batch_size(model)
        for layer in replicas.synchronizing_layers(model):
            raise ValueError(
                refusal_messages.synchronized_statistics(layer, "sample")
            )

    def partial_sums(self, model: Any, part: Any) -> PartialSums:
        samples = (SingleSample if part.is_single else Samples)(model, part)
        aggregation = part.aggregation
        # Whether each has a gradient; None: there was no sample to tell.
        has_gradient: list = [None] * len(samples.variables)
        gives_statistics = self.gives_statistics(part.options)
        needs_plain_sums = gives_statistics and weighs(aggregation)
        groups = aggregation.groups(samples.variables)

        def add_sample(i, sums, plain):
            """Return the sums with those of sample i, and its norm."""
            contributions = map_tensors(wide, samples.contributions(i))
            has_gradient[:] = [
                gradient is not None for gradient in contributions
            ]
            norm = _norm(
                contributions, samples.variables, part.n, groups=groups
            )
            weights = aggregation.weights(norm[None])
            if part.padded is not None:
                weights = part.padded.weights(weights, i)
            weighted = [
                _scaled(g, variable_weights(weights, groups, k)[0])
                if weighs(aggregation)
                else g
                for k, g in enumerate(contributions)
            ]
            if needs_plain_sums:
                finite = is_finite(of_samples(norm[None]))[0]
                plain = plus(plain, [_scaled(g, finite) for g in contributions])
            return plus(sums, weighted), plain, norm

        values = [v.value for v in samples.variables]
        sums = [wide(tf.zeros(v.shape, v.dtype)) for v in values]
        plain = sums if needs_plain_sums else []
        if part.is_single:
            sums, plain, norm = add_sample(tf.constant(0), sums, plain)
            norms = norm[None]
        else:
            sums, plain, norms = self._sum_samples(
                add_sample, samples, groups, sums=sums, plain=plain
            )
        gradients = [
            None if k is False else s for s, k in zip(sums, has_gradient)
        ]
        return PartialSums(
            samples.y_pred, gradients, norms, plain=plain or None
        )

    def _sum_samples(self, add_sample, samples, groups, *, sums, plain):
        """Return the sums over all samples, and the norms."""

        def body(i, sums, plain, norms):
            sums, plain, norm = add_sample(i, sums, plain)
            return i + 1, sums, plain, norms.write(i, norm)

        shape = [] if groups is None else [max(groups) + 1]
        norms = tf.TensorArray(
            norm_type(samples.variables), samples.n, element_shape=shape
        )
        _, sums, plain, norms = tf.while_loop(
            lambda i, *_: i < samples.n,
            body,
            (tf.constant(0), sums, plain, norms),
            parallel_iterations=self.parallel_iterations,
        )
        return sums, plain, norms.stack()

    def get_config(self) -> dict[str, Any]:
        return {
            "aggregation": serialize(self.aggregation),
            "updates": self.updates,
            "parallel_iterations": self.parallel_iterations,
            "statistics": self.with_statistics,
        }


def _scaled(gradient, factor):
    if gradient is None:
        return None
    # Zero times NaN is NaN; a sample of weight zero must add nothing.
    factor = tf.cast(factor, gradient.dtype)
    return tf.math.multiply_no_nan(gradient, factor)


gradient_modes.register("per_sample", PerSample)
