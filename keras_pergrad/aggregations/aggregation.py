"""Aggregations: from the gradients of samples to one, and their statistics.

Per-sample gradients are scaled so that their *mean* over the samples is the
ordinary gradient; all norms are of these.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_pergrad.common.callback_list import PreparesFit
from keras_pergrad.common.registry import Class, Configured, Registry
from keras_pergrad.keras_internals.models.optimizers import nested_optimizers


class Aggregation(Configured, PreparesFit):
    """How per-sample gradients become one gradient: a weighted mean.

    Subclass it, define `weights`, and register the class with
    `register_aggregation` to use it by name.

    Weights and norms are tensors (n,), or (n, groups); norms have the unit of
    the gradient. A class that does not define `weights` raises
    NotImplementedError in the first step.

    Example:

    >>> import keras_pergrad as kpg
    >>> class Unit(kpg.aggregations.Aggregation):
    ...     def weights(self, norms):  # the same length for every sample
    ...         return 1 / (norms + 1e-6)
    >>> kpg.Vectorized(aggregation=Unit())
    Vectorized(aggregation=Unit())
    """

    #: Whether every update is counted in a ledger, which outlives it.
    counts = False

    #: What its weights follow from: "nothing" (all are 1), the "norms" of the
    #: samples' gradients, or the "gramian" of all of them, whose weights
    #: `GramianAggregation` gives.
    needs: Literal["nothing", "norms", "gramian"] = "norms"

    #: Whether a sample's weight times its norm must be within a bound.
    limits_norms = False

    #: Whether it adds noise, so that no two steps have the same result.
    adds_noise = False

    def groups(self, variables: Sequence[keras.Variable]) -> list[int] | None:
        """Say which variables share a norm, and so a weight.

        Args:
            variables: the trainable variables.

        Returns:
            None if all share one; else a group number for each variable, from
            0 on. Norms and weights are then of shape (n, groups).
        """
        del variables
        return None

    def at(self, state: Any) -> "Aggregation":
        """Return this aggregation as it is at the next step.

        Args:
            state: what `make_state` gave for the model that is trained.

        Returns:
            Itself, or a different aggregation with the numbers of that step.
        """
        del state
        return self

    def weights(self, norms: tf.Tensor) -> tf.Tensor:
        """Return each sample's weight in the mean, in the shape of `norms`.

        Each weight may depend on its own sample's norms only. A norm may be
        NaN or infinite. A weight of 0 leaves such a sample out; any other
        weight makes the whole gradient NaN, as in Keras.

        Args:
            norms: the norm of each per-sample gradient over all trainable
                variables, (n,), or over each group of them, (n, groups).
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define weights(norms)."
        )

    def finish(
        self, gradients: list[Any], n: Any, state: Any = None
    ) -> list[Any]:
        """Return the aggregated gradients in the form to be applied.

        Args:
            gradients: the weighted means, one per variable, None for a
                variable without a gradient.
            n: the number of samples.
            state: what `make_state` gave for the model that is trained.
        """
        del n, state
        return gradients

    def noise_variance(self, n: Any, state: Any = None) -> Any:
        """Return the variance of the noise that the next `finish` adds.

        It is that of each number of the gradient, a number or a tensor ().
        Optimizers of `privacy.corrected` ask for it. A class that adds noise
        and does not define it raises NotImplementedError.

        Args:
            n: the number of samples.
            state: what `make_state` gave for the model that is trained.
        """
        del n, state
        if self.adds_noise:
            raise NotImplementedError(
                f"{type(self).__name__} must define noise_variance(n, state) "
                "for optimizers that are corrected for noise."
            )
        return 0.0

    def tell_noise(self, optimizer: Any, n: Any, state: Any = None) -> None:
        """Tell an optimizer how much noise the next `finish` adds.

        It is called at each step if `adds_noise`. Optimizers of
        `privacy.corrected` get the `noise_variance`; others get nothing.

        Args:
            optimizer: the one that applies the gradients.
            n: the number of samples.
            state: what `make_state` gave for the model that is trained.
        """
        for nested in nested_optimizers(optimizer):
            if hasattr(nested, "set_noise_variance"):
                nested.set_noise_variance(self.noise_variance(n, state))

    def statistics(self, norms: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return scalars to log, by name."""
        del norms
        return {}

    def observe(self, norms: tf.Tensor, state: Any) -> None:
        """Record the norms of a batch, before its update is finished.

        Args:
            norms: of all samples of the batch, as for `weights`.
            state: what `make_state` gave for the model that is trained.
        """

    def require_fit(
        self, model: keras.Model, received: str, is_step: bool = False
    ) -> None:
        """Refuse training outside of `fit`, if the aggregation needs one.

        Args:
            model: the compiled model.
            received: what starts the training, in words.
            is_step: whether it is a step, which a running `fit` may take.
        """

    def make_state(self, before: Any = None) -> Any:
        """Create the state that one model keeps from step to step, or None.

        It becomes the `aggregation_state` of a model at compile() and is
        passed to `finish`. The aggregation itself never changes, since several
        models may share it. A state that is a `KerasSaveable` is saved with
        the model's weights.

        Args:
            before: the state that the model had before it was compiled
                again, or None.
        """
        del before
        return None

    @property
    def log_metrics(self) -> dict[str, type[keras.metrics.Metric]]:
        """How each of the `statistics` is logged: name to metric class."""
        return {}


class Mean(Aggregation):
    """The ordinary gradient: every sample has the same weight.

    By name `"mean"`. It takes no arguments, computes no norms and logs nothing.

    Example:

    >>> import keras_pergrad as kpg
    >>> kpg.Vectorized(aggregation=kpg.aggregations.Mean())
    Vectorized(aggregation=Mean())
    """

    needs: Literal["nothing", "norms", "gramian"] = "nothing"

    def weights(self, norms: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(norms)


def weighs(aggregation):
    """Whether samples may count by other weights than 1; False for None."""
    return aggregation is not None and aggregation.needs != "nothing"


def is_finite(norms):
    """Which norms are neither NaN nor infinite."""
    # They are never negative, so one comparison tells, and that is an op which
    # Metal has; `tf.math.is_finite` would run on the CPU. What it says must not
    # be negated: in a graph TensorFlow makes ≥ of it then, which no NaN is.
    return norms < tf.constant(math.inf, norms.dtype)


def of_samples(norms):
    """Return the norm of each sample over all variables, (n,)."""
    if norms.shape.rank == 1:
        return norms
    return tf.sqrt(tf.reduce_sum(tf.square(norms), axis=1))


def variable_weights(weights, groups, k):
    """Return the weights, (n,), for variable k, of (n,) or (n, groups)."""
    return weights if groups is None else weights[:, groups[k]]


aggregations = Registry("aggregation", Aggregation)
aggregations.register("mean", Mean)


def register_aggregation(name: str) -> Callable[[Class], Class]:
    """Register an `Aggregation` subclass under `name`; a class decorator.

    Args:
        name: its name in `aggregation=` and in saved models.

    Raises:
        TypeError: the class is no `Aggregation`.
        ValueError: the name is taken by another class.

    Example:

    >>> import keras_pergrad as kpg
    >>> import tensorflow as tf
    >>> @kpg.aggregations.register_aggregation("normalized_mean")
    ... class NormalizedMean(kpg.aggregations.Aggregation):
    ...     def weights(self, norms):
    ...         return tf.math.divide_no_nan(1.0, norms)
    """
    return aggregations.register(name)


class DefinedMean(keras.metrics.Mean):
    """The mean of the finite values; NaN, not 0, before the first one."""

    # The variance of a batch of one is not defined, and a batch whose gradient
    # overflowed has no norm: such batches are left out.

    def update_state(self, values, sample_weight=None):
        values = tf.cast(values, self.dtype)
        defined = tf.cast(tf.math.is_finite(values), self.dtype)
        super().update_state(tf.math.multiply_no_nan(values, defined), defined)

    def result(self):
        return self.total / self.count
