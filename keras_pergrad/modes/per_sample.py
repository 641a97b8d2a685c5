"""One forward and backward pass per sample."""

import tensorflow as tf

from keras_pergrad.aggregation import (
    aggregations,
    is_finite,
    of_samples,
    weight_of,
)
from keras_pergrad.common import refusal_messages
from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.common.registry import serialize
from keras_pergrad.factors import squared_norm
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.batches import Filled, first_tensor
from keras_pergrad.keras_internals.losses import track_loss
from keras_pergrad.keras_internals.model_parts import layers_of
from keras_pergrad.keras_internals.overwritten import SetApart
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
from keras_pergrad.modes.single_samples import Samples

UPDATES = ("batch", "sample")


class PerSample(GradientMode):
    """Per-sample gradients one at a time: any model, little memory.

    One forward pass of the batch gives the loss and its gradient with respect
    to each sample's output. A loop then makes one forward and backward pass
    per sample and holds `parallel_iterations` of the samples' gradients at a
    time. For each sample, random layers repeat the numbers that they drew for
    it in the batch.

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
        aggregation="mean",
        updates="batch",
        parallel_iterations=1,
        statistics=False,
    ):
        self.aggregation = aggregations.get(aggregation)
        if updates not in UPDATES:
            raise ValueError(
                f"`updates` must be one of {UPDATES}. "
                f"Received: updates={updates!r}"
            )
        if statistics and updates == "sample":
            raise ValueError(
                "`statistics` are of the samples of one update, and with "
                "updates='sample' there is one: its variance is not defined. "
                "Received: statistics=True, updates='sample'"
            )
        self.with_statistics = bool(statistics)
        self.updates = updates
        self.parallel_iterations = positive_integer(
            "parallel_iterations", parallel_iterations
        )

    @property
    def updates_by_itself(self):
        return self.updates == "sample"

    @property
    def can_be_watched(self):
        # One update by one sample has no variance.
        return self.updates == "batch"

    def step(self, model, x, y, sample_weight):
        require_any_batch_size(model)
        if self.updates == "sample":
            return self._online_step(model, x, y, sample_weight)
        if replicas.several():
            return replica_step.step(self, model, x, y, sample_weight)
        scale, filled = loss_scale(model.optimizer), None
        if self.aggregation.counts:
            filled = Filled((x, y, sample_weight))
            x, y, sample_weight = filled.batch
        state = model.aggregation_state
        aggregation = self.aggregation.at(state)
        with SetApart(model) as apart:
            samples = Samples(model, x, y, sample_weight, scale, apart=apart)
            gradients, norms, plain = self._aggregate(
                samples, aggregation, filled
            )
        if filled is not None:
            norms = norms[: filled.n]
            samples.y_pred = filled.outputs(samples.y_pred)
        statistics = observed(aggregation, norms, state)
        gradients = aggregation.finish(gradients, samples.n, state)
        if scale is not None and self.aggregation.needs_norms:
            finite = is_finite(norms)
            gradients = overflow_to_infinity(gradients, finite, scale)
        gradients = with_penalties(gradients, samples.penalties())
        if gives_statistics(self):
            squares = [squared_norm(g) for g in plain]
            statistics |= spread(norms, squares, samples.n)
        gradients = apart.merged(scaled(gradients, scale), samples.target)
        return Step(samples.loss, samples.y_pred, gradients, statistics)

    def weighted_sum(self, model, x, part, scale):
        """Do as `Vectorized.weighted_sum`."""
        samples = Samples(model, x, None, None, scale, part=part)
        aggregation = self.aggregation.at(model.aggregation_state)
        gradients, norms, plain = self._aggregate(samples, aggregation)
        return samples.y_pred, gradients, norms, plain or None

    def _aggregate(self, samples, aggregation, filled=None):
        """Return the weighted sum of contributions, the norms, the plain sum.

        The plain sum is for the statistics and contains no None.
        """
        # Whether each has a gradient; None: there was no sample to tell.
        used: list = [None] * len(samples.variables)
        separate = gives_statistics(self) and aggregation.needs_norms
        groups = aggregation.groups(samples.variables)

        def body(i, sums, plain, norms):
            found = samples.contributions(i)
            for k, gradient in enumerate(found):
                used[k] = gradient is not None
            norm = samples.norm(found, groups)
            weight = aggregation.weights(norm[None])
            if filled is not None:
                weight = filled.weights(weight)
            added = []
            for k, (total, gradient) in enumerate(zip(sums, found)):
                if gradient is not None:
                    factor = weight_of(weight, groups, k)[0]
                    factor = tf.cast(factor, total.dtype)
                    if aggregation.needs_norms:
                        # Zero times NaN is NaN.
                        gradient = tf.math.multiply_no_nan(gradient, factor)
                    total = total + gradient
                added.append(total)
            if separate:
                finite = is_finite(of_samples(norm[None]))[0]
                plain = [
                    p
                    if g is None
                    else p
                    + tf.math.multiply_no_nan(g, tf.cast(finite, g.dtype))
                    for p, g in zip(plain, found)
                ]
            return i + 1, added, plain, norms.write(i, norm)

        zeros = [tf.zeros(v.shape, v.value.dtype) for v in samples.variables]
        shape = [] if groups is None else [max(groups) + 1]
        norms = tf.TensorArray(
            samples.norm_dtype, samples.n, element_shape=shape
        )
        _, sums, plain, norms = tf.while_loop(
            lambda i, *_: i < samples.n,
            body,
            (tf.constant(0), zeros, zeros if separate else [], norms),
            parallel_iterations=self.parallel_iterations,
        )
        gradients = [None if k is False else s for s, k in zip(sums, used)]
        return gradients, norms.stack(), plain if separate else sums

    def _online_step(self, model, x, y, sample_weight):
        if replicas.several():
            raise ValueError(
                "updates='sample' makes one update after the other, which "
                "several replicas cannot do at the same time. Use "
                "updates='batch' under this tf.distribute strategy, or train "
                "without it. Received: updates='sample' on "
                f"{tf.distribute.get_strategy().num_replicas_in_sync} replicas"
            )
        n = tf.shape(first_tensor(x))[0]
        with SetApart(model):
            groups = self.aggregation.groups(model.trainable_variables)
        shape = [] if groups is None else [max(groups) + 1]
        norms = tf.TensorArray(tf.float32, n, element_shape=shape)

        def body(i, norms):
            row = tf.nest.map_structure(
                lambda t: None if t is None else t[i : i + 1],
                (x, y, sample_weight),
            )
            norm = self._update_once(model, *row)
            return i + 1, norms.write(i, tf.cast(norm, tf.float32))

        _, norms = tf.while_loop(
            lambda i, _: i < n,
            body,
            (tf.constant(0), norms),
            parallel_iterations=1,
        )
        aggregation = self.aggregation.at(model.aggregation_state)
        statistics = aggregation.statistics(norms.stack())
        return Step(None, None, None, statistics)

    def _update_once(self, model, x, y, sample_weight):
        """Make one optimizer step on a sample; return its gradient's norm."""
        scale = loss_scale(model.optimizer)
        state = model.aggregation_state
        aggregation = self.aggregation.at(state)
        with SetApart(model) as apart:
            samples = Samples(model, x, y, sample_weight, scale, apart=apart)
            found = samples.contributions(tf.constant(0))
        track_loss(model, samples.loss, 1)
        groups = aggregation.groups(samples.variables)
        norm = samples.norm(found, groups)
        if aggregation.needs_norms:
            weight = aggregation.weights(norm[None])
            weights = [
                weight_of(weight, groups, k)[0] for k in range(len(found))
            ]
            found = [
                None
                if g is None
                else tf.math.multiply_no_nan(g, tf.cast(w, g.dtype))
                for g, w in zip(found, weights)
            ]
        aggregation.observe(norm[None], state)
        gradients = aggregation.finish(found, samples.n, state)
        if scale is not None and aggregation.needs_norms:
            finite = is_finite(norm[None])
            gradients = overflow_to_infinity(gradients, finite, scale)
        gradients = with_penalties(gradients, samples.penalties())
        gradients = apart.merged(scaled(gradients, scale), samples.target)
        model.optimizer.apply(gradients, model.trainable_variables)
        model.compute_metrics(x, y, samples.y_pred, sample_weight)
        return norm

    @property
    def log_metrics(self):
        return log_metrics(self)

    def get_config(self):
        return {
            "aggregation": serialize(self.aggregation),
            "updates": self.updates,
            "parallel_iterations": self.parallel_iterations,
            "statistics": self.with_statistics,
        }


def require_any_batch_size(model):
    """Refuse a model that cannot be called with one sample.

    Raises:
        ValueError: the model or a layer is made for one batch size.
    """
    sizes = {
        t.shape[0]
        for t in tf.nest.flatten(getattr(model, "inputs", None) or [])
        if len(t.shape)
    }
    size = next((s for s in sizes if s not in (None, 1)), None)
    for layer in layers_of(model):
        if getattr(layer, "stateful", False) and size != 1:
            shown = "one size" if size is None else size
            raise ValueError(refusal_messages.one_batch_size(layer, shown))
    if size is not None:
        raise ValueError(refusal_messages.fixed_batch_size(model, size))


modes.register("per_sample", PerSample)
