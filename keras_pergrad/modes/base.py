"""The base of all gradient modes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import Aggregation
from keras_pergrad.aggregations.statistics import STATISTICS
from keras_pergrad.common.registry import Class, Configured, Registry
from keras_pergrad.keras_internals.models.parts import require_none_overwritten
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.tensorflow.settings import in_xla
from keras_pergrad.modes import eager_step, microbatches, one_step
from keras_pergrad.modes.one_step import Step
from keras_pergrad.modes.step_options import StepOptions
from keras_pergrad.modes.sums import WeightedSums, divide_groups


@dataclasses.dataclass
class PartialSums:
    """What a mode returns for a part of a batch.

    Attributes:
        y_pred: the model's outputs for the part.
        gradients: the sums of the samples' weighted contributions to the
            gradient of the whole batch, unscaled, one per trainable variable
            (None: no gradient).
        norms: of the part's per-sample gradients, (n,) or (n, groups); None
            where they are not needed.
        plain: the sums of the finite contributions before they are weighted,
            where the statistics need them and `gradients` are others.
        squared_sums: the squared norms of `plain`, instead of it, where the
            part is the whole batch.
        readings: what each reader in the part's `options` has read, or None.
        statistics: scalars to log by name, in addition to those of the
            aggregation, where the part is the whole batch.

    Example, of a mode whose sums serve replicas and `Accumulated`, too:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> class Plain(kpg.modes.GradientMode):
    ...     def partial_sums(self, model, part):
    ...         with part.watched(), tf.GradientTape() as tape:
    ...             y_pred, added = part.call()
    ...             target = part.target(y_pred, added)
    ...         sums = tape.gradient(target, model.trainable_variables)
    ...         if part.scale is not None:
    ...             sums = [g / part.scale for g in sums]
    ...         return kpg.modes.PartialSums(y_pred, sums)
    >>> mode = kpg.Accumulated(microbatch_size=8, inner=Plain())
    """

    y_pred: Any
    gradients: list[Any]
    norms: Any = None
    plain: list[Any] | None = None
    squared_sums: list[Any] | None = None
    readings: tuple[dict[str, Any], ...] | None = None
    statistics: dict[str, Any] = dataclasses.field(default_factory=dict)


class GradientMode(Configured):
    """How a `PerGradModel` turns a batch into gradients.

    Subclass it, define `partial_sums` or `step`, and register the class with
    `register_gradient_mode` to use it by name in `compile`.

    Gradients have the shapes of the trainable variables; a class that defines
    neither raises NotImplementedError in the first step. The example of
    `register_gradient_mode` is a whole mode.

    Example:

    >>> import keras_pergrad as kpg
    >>> class Ascent(kpg.Batch):
    ...     changes_gradients = True
    ...
    ...     def step(self, model, x, y, sample_weight):
    ...         step = super().step(model, x, y, sample_weight)
    ...         gradients = step.gradients
    ...         step.gradients = [g if g is None else -g for g in gradients]
    ...         return step
    >>> isinstance(Ascent(), kpg.modes.GradientMode)
    True
    """

    #: Whether every sample's gradient is looked at on its own.
    per_sample = False

    #: What makes one gradient of the samples', if they are looked at.
    aggregation: Aggregation | None = None

    #: Whether the user wants the statistics of the per-sample gradients.
    with_statistics = False

    #: Whether statistics can be had beside the gradients, which stay the same.
    can_be_watched = False

    #: Whether `partial_sums` of a whole batch lets the readers in its `options`
    #: read its samples' gradients.
    can_be_read = False

    #: Whether `partial_sums` looks at ops, which only a graph shows.
    needs_graph = False

    #: Whether its gradients are meant to be others than the mean over the
    #: samples, or than its aggregation gives: nothing can check them then.
    changes_gradients = False

    #: Whether `step` may call the optimizer itself, and give no gradients.
    updates_by_itself = False

    #: Whether every sample makes an update of its own.
    updates_by_sample = False

    #: How many samples go through the model at a time; None: the batch.
    microbatch_size: int | None = None

    def partial_sums(self, model: Any, part: Any) -> PartialSums:
        """Return the sums of a part of a batch; `step` does everything else.

        A sample's contribution is the gradient of `part.target` through its
        rows. Contributions add up to the gradient of the batch; times `part.n`
        each is the sample's gradient, whose norm `part.aggregation` weighs.

        Args:
            model: the compiled `PerGradModel`.
            part: what is known of the part: inputs `x`, `y` and
                `sample_weight`, and what the part's `target` is.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define partial_sums() or step()."
        )

    def step(self, model: Any, x: Any, y: Any, sample_weight: Any) -> Step:
        """Compute the gradients of one batch.

        Args:
            model: the compiled `PerGradModel`.
            x, y, sample_weight: the batch, as `keras.Model.train_step`
                unpacks it.

        Returns:
            A `Step`.
        """
        require_none_overwritten(model)
        self.require(model)
        batch, parting = (x, y, sample_weight), self.parting(model)
        options = self._options_of(model)
        if self.updates_by_sample:
            return microbatches.update_by_sample(self, model, batch)
        if (
            self.compiles_parts(model)
            and not tf.executing_eagerly()
            and not in_xla()
        ):
            parting = microbatches.pad_parts(parting, self)
        if parting is not None:
            return microbatches.step_of_parts(
                parting, model, batch, options=options
            )
        if self.needs_graph and tf.executing_eagerly():
            return eager_step.traced_step(self, model, batch, options=options)
        step, _ = one_step.step_of_whole_batch(
            self, model, batch, options=options
        )
        return step

    def _options_of(self, model):
        """Return the options of a model's step by this mode."""
        options = getattr(model, "step_options", None)
        # They are of the compiled mode; another may be tried on the model.
        if options is None or not (self.can_be_watched or self.can_be_read):
            return StepOptions()
        return options

    def require(self, model: Any) -> None:
        """Refuse a model that the mode cannot train."""

    def parting(self, model: Any) -> microbatches.Parting | None:
        """Return how a batch is split; None: it stays whole."""
        del model
        return (
            microbatches.Parting(self)
            if replicas.has_several_replicas()
            else None
        )

    def compiles_parts(self, model: Any) -> bool:
        """Whether XLA is to compile a step's parts, and not the step."""
        return (
            self.aggregation is not None
            and self.aggregation.counts
            and model.jit_compile
            and not model.run_eagerly
            and model.distribute_strategy.num_replicas_in_sync == 1
        )

    def sums_of_parts(
        self, aggregation: Any, options: StepOptions, **of_batch: Any
    ) -> Any:
        """Return the function of a part of a batch whose results are summed.

        `of_batch`: what a `MicrobatchSums` is made of.
        """
        return WeightedSums(self, aggregation, options, **of_batch)

    def gradients_of_sums(
        self,
        model: Any,
        groups: dict[str, Any],
        mask_epsilons: dict[str, Any],
        *,
        aggregation: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the gradients of sums over parts, and what to log of them."""
        del model, aggregation
        return divide_groups(groups, mask_epsilons), {}

    def logged_by_updates(self, model: Any) -> list[str]:
        """Return the names of what `gradients_of_sums` logs."""
        del model
        return []

    def gives_statistics(self, options: StepOptions) -> bool:
        """Whether the user or a callback wants statistics of a step."""
        return self.with_statistics or options.is_watched

    def make_state(self) -> Any:
        """Return the state that the mode keeps for a compiled model, or None.

        It becomes the model's `gradient_state` until compile() is called
        again. A state that is a `KerasSaveable` is saved with the model's
        weights.
        """
        return None

    def begin_fit(self, model: Any) -> None:
        """Do what is due before the first batch of a `fit`.

        The call comes before any callback's `on_train_begin`, so that
        `BackupAndRestore` restores what this has reset.
        """

    def end_epoch(self, model: Any) -> dict[str, Any] | None:
        """Do what is due after an epoch's last batch; `fit` calls it.

        The call comes before validation and before any callback's
        `on_epoch_end`.

        Returns:
            The logs of the epoch that it has changed, by name, or None.
        """

    def build(self, model: Any) -> None:
        """Create the mode's variables, once the model is built."""

    @property
    def log_metrics(self) -> dict[str, type[keras.metrics.Metric]]:
        """What `step` puts into `statistics`: name to metric class.

        Those of a step that is watched come on top.
        """
        metrics = dict(STATISTICS) if self.with_statistics else {}
        if self.aggregation is None:
            return metrics
        return {**self.aggregation.log_metrics, **metrics}


gradient_modes = Registry("gradient mode", GradientMode)
"""The registered modes by name, a `Registry`."""


def register_gradient_mode(name: str) -> Callable[[Class], Class]:
    """Register a `GradientMode` subclass under `name`; a class decorator.

    Args:
        name: its name in `gradient_mode=` and in saved models.

    Raises:
        TypeError: the class is no `GradientMode`.
        ValueError: the name is taken by another class.

    A mode that changes another mode's gradients gets them as the optimizer's
    `apply` expects them: with weight regularisers, times the scale of a
    `LossScaleOptimizer`, and None for a variable without a gradient; of a mode
    that calls the optimizer itself it gets None for all of them. What is not
    finite must stay so, or the optimizer does not see that the scale was too
    large. Where `Step.whole` is false under several replicas, the optimizer
    adds their gradients up: refuse a change there that is not linear.

    Example, gradient centralization (Yong et al., arXiv 2004.01461):

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> @kpg.modes.register_gradient_mode("centralized")
    ... class Centralized(kpg.Vectorized):
    ...     changes_gradients = True
    ...
    ...     def step(self, model, x, y, sample_weight):
    ...         step = super().step(model, x, y, sample_weight)
    ...         step.gradients = [centred(g) for g in step.gradients]
    ...         return step
    >>> def centred(gradient):
    ...     if gradient is None or len(gradient.shape) < 2:
    ...         return gradient
    ...     axes = list(range(len(gradient.shape) - 1))
    ...     return gradient - tf.reduce_mean(gradient, axes, keepdims=True)
    """
    return gradient_modes.register(name)


def get(identifier: Any) -> GradientMode:
    """Return a `GradientMode` for a name, a config dict or an object.

    Args:
        identifier: such as "vectorized", what `keras.saving` has made of a
            mode, or a mode, which is returned as it is.

    Raises:
        ValueError: the name is unknown, or the config cannot be read.
        TypeError: the identifier is of another type.

    Example:

    >>> from keras_pergrad import modes
    >>> modes.get("batch")
    Batch()
    """
    if isinstance(identifier, Aggregation):
        raise TypeError(
            f"Expected a gradient mode. Received: {identifier!r}, an "
            "aggregation, which a mode applies to its gradients; write "
            f"Vectorized(aggregation={identifier!r})."
        )
    if isinstance(getattr(identifier, "gradient_mode", None), GradientMode):
        raise TypeError(
            "Expected a gradient mode. Received an object that has one, of "
            f"type {type(identifier).__name__}; if it is named `private`, "
            "write gradient_mode=private.gradient_mode."
        )
    return gradient_modes.get(identifier)
