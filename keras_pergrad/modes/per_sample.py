"""One forward and backward pass per sample."""

from typing import Any, Literal

import tensorflow as tf

from keras_pergrad.aggregation import (
    Aggregation,
    aggregations,
    is_finite,
    of_samples,
    weighs,
    weight_of,
)
from keras_pergrad.common import refusal_messages
from keras_pergrad.common.arguments import positive_integer
from keras_pergrad.common.registry import serialize
from keras_pergrad.keras_internals import replicas
from keras_pergrad.keras_internals.inspection_checks import (
    require_any_batch_size,
)
from keras_pergrad.modes.base import GradientMode, PartialSums, gradient_modes
from keras_pergrad.modes.microbatch_sums import plus
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
        aggregation: str | Aggregation | dict[str, Any] = "mean",
        updates: Literal["batch", "sample"] = "batch",
        parallel_iterations: int = 1,
        statistics: bool = False,
    ):
        self.aggregation = aggregations.get(aggregation)
        if self.aggregation.needs == "gramian":
            text = refusal_messages.needs_all_samples
            raise ValueError(text("aggregation", self.aggregation))
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
    def updates_by_sample(self):
        return self.updates == "sample"

    @property
    def updates_by_itself(self):
        return self.updates_by_sample

    @property
    def can_be_watched(self):
        # One update by one sample has no variance.
        return not self.updates_by_sample

    def require(self, model):
        require_any_batch_size(model)
        for layer in replicas.waiting(model):
            raise ValueError(refusal_messages.synchronized(layer, "sample"))

    def partial_sums(self, model, part):
        samples, aggregation = Samples(model, part), part.aggregation
        # Whether each has a gradient; None: there was no sample to tell.
        used: list = [None] * len(samples.variables)
        separate = self.gives_statistics and weighs(aggregation)
        groups = aggregation.groups(samples.variables)

        def add(i, sums, plain):
            """Return the sums with those of sample i, and its norm."""
            contributions = samples.contributions(i)
            used[:] = [gradient is not None for gradient in contributions]
            norm = samples.norm(contributions, groups)
            weights = aggregation.weights(norm[None])
            if part.padded is not None:
                weights = part.padded.weights(weights, i)
            weighted = [
                _times(g, weight_of(weights, groups, k)[0])
                if weighs(aggregation)
                else g
                for k, g in enumerate(contributions)
            ]
            if separate:
                finite = is_finite(of_samples(norm[None]))[0]
                plain = plus(plain, [_times(g, finite) for g in contributions])
            return plus(sums, weighted), plain, norm

        sums = [tf.zeros(v.shape, v.value.dtype) for v in samples.variables]
        plain = sums if separate else []
        if part.is_single:
            sums, plain, norm = add(tf.constant(0), sums, plain)
            norms = norm[None]
        else:
            sums, plain, norms = self._loop(add, samples, groups, sums, plain)
        gradients = [None if k is False else s for s, k in zip(sums, used)]
        return PartialSums(samples.y_pred, gradients, norms, plain or None)

    def _loop(self, add, samples, groups, sums, plain):
        """Return the sums over all samples, and the norms."""

        def body(i, sums, plain, norms):
            sums, plain, norm = add(i, sums, plain)
            return i + 1, sums, plain, norms.write(i, norm)

        shape = [] if groups is None else [max(groups) + 1]
        norms = tf.TensorArray(
            samples.norm_dtype, samples.n, element_shape=shape
        )
        _, sums, plain, norms = tf.while_loop(
            lambda i, *_: i < samples.n,
            body,
            (tf.constant(0), sums, plain, norms),
            parallel_iterations=self.parallel_iterations,
        )
        return sums, plain, norms.stack()

    def get_config(self):
        return {
            "aggregation": serialize(self.aggregation),
            "updates": self.updates,
            "parallel_iterations": self.parallel_iterations,
            "statistics": self.with_statistics,
        }


def _times(gradient, factor):
    if gradient is None:
        return None
    # Zero times NaN is NaN.
    factor = tf.cast(factor, gradient.dtype)
    return tf.math.multiply_no_nan(gradient, factor)


gradient_modes.register("per_sample", PerSample)
