"""The batch in microbatches: the gradient of the whole, in less memory."""

import contextlib
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import Aggregation, weighs
from keras_pergrad.common import refusal_messages
from keras_pergrad.common.arguments import positive_integer, require_one_of
from keras_pergrad.common.batches import is_composite, tensors_of
from keras_pergrad.common.registry import serialize
from keras_pergrad.factors.written_out import norm_type
from keras_pergrad.keras_internals.models.building import stateful_layers
from keras_pergrad.keras_internals.models.optimizers import (
    accumulating_optimizer,
)
from keras_pergrad.keras_internals.replicas import replicas
from keras_pergrad.keras_internals.state.saved import SavedState
from keras_pergrad.modes.base import (
    GradientMode,
    PartialSums,
    get,
    gradient_modes,
)
from keras_pergrad.modes.fractions import numerators, require_additive_loss
from keras_pergrad.modes.microbatches import (
    MAX_BATCH,
    Parting,
    is_single_microbatch,
    update,
)
from keras_pergrad.uses import TracedStep, counters, refusals


class AccumulatorState(SavedState):
    """The sums for an update that is not yet complete, over its batches.

    They are of denominators and of numerators' gradients.
    """

    def __init__(self) -> None:
        #: How many batches have been added.
        # An int32 would lie on the host of a GPU, where XLA cannot reach it.
        self.count = _create_variable("pending_batches", np.zeros((), "int64"))
        self.mask_epsilons = {}
        self._group_keys = None
        self._values_per_sample = None
        # By the key of a group and the id of a variable; None: its denominator.
        self._sums = {}
        self._loaded_values = {}

    def values_per_sample(self, current):
        """Return each loss's values per sample; at first store `current`."""
        if self._values_per_sample is None:
            self._values_per_sample = list(current)
        return self._values_per_sample

    def add(self, groups, mask_epsilons, variables):
        """Add the groups of sums of one batch, as for `divide_groups`."""
        if self._group_keys not in (None, set(groups)):
            raise ValueError(
                "The denominators of the loss are of another kind than in the "
                f"batches before: {sorted(groups)} instead of "
                f"{sorted(self._group_keys)}. Call compile() again to start "
                "afresh."
            )
        self._group_keys, self.mask_epsilons = set(groups), mask_epsilons
        additions = [(self.count, 1)]
        for key, (gradients, denominator) in groups.items():
            for k, (variable, g) in enumerate(zip(variables, gradients)):
                if g is not None:
                    sum_key, name = (key, id(variable)), f"pending_{key}_{k}"
                    additions.append(
                        (self._sum_variable(sum_key, name, variable), g)
                    )
            if denominator is not None:
                total = self._sum_variable((key, None), f"pending_{key}")
                additions.append((total, denominator))
        # All or nothing: first every check in the sums must have passed.
        with tf.control_dependencies(tensors_of(groups)):
            _add_all(additions)

    def _sum_variable(self, sum_key, name, variable=None):
        if sum_key not in self._sums:
            shape, dtype = (), keras.config.floatx()
            if variable is not None:
                # Half precision has too few digits for a sum.
                shape, dtype = variable.shape, norm_type([variable]).name
            # Replicas create it together, each with the loaded value.
            initial = self._loaded_values.get(name, np.zeros(shape))
            self._sums[sum_key] = _create_variable(
                name, np.asarray(initial, dtype)
            )
        return self._sums[sum_key]

    def groups(self, variables):
        """Return the groups of sums of all added batches."""
        return {
            key: (
                [self._sum_value(key, id(v)) for v in variables],
                self._sum_value(key),
            )
            for key in sorted(self._group_keys or ())
        }

    @property
    def rows(self):
        """The number of added samples; None if no term is divided by it."""
        return self._sum_value("rows")

    def _sum_value(self, key, variable_id=None):
        total = self._sums.get((key, variable_id))
        return None if total is None else tf.convert_to_tensor(total)

    @property
    def has_pending(self):
        """Whether a batch waits for an update; not available in graphs."""
        return bool(tf.convert_to_tensor(self.count) > 0)

    def reset(self):
        """Start from zero."""
        for variable in self._variables:
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    def forget(self):
        """Start from zero; loaded sums are not used either."""
        self._loaded_values = {}
        self.reset()

    @property
    def _variables(self):
        return [self.count, *self._sums.values()]

    def save_own_variables(self, store):
        current_values = {
            variable.name: np.asarray(tf.convert_to_tensor(variable))
            for variable in self._variables
        }
        # Also loaded values whose variables were not created since then.
        for name, value in {**self._loaded_values, **current_values}.items():
            store[name] = value

    def load_own_variables(self, store):
        names = list(store.keys())
        self._loaded_values = {name: np.asarray(store[name]) for name in names}
        for variable in self._variables:
            zeros = np.zeros(variable.shape, variable.dtype)
            variable.assign(self._loaded_values.get(variable.name, zeros))


def _add_all(additions):
    """Add to variables; where an interrupt comes between, to none of them."""
    previous_values = []
    if tf.executing_eagerly():
        previous_values = [(v, tf.identity(v.value)) for v, _ in additions]
    try:
        for variable, value in additions:
            variable.assign_add(value)
    except BaseException:
        for variable, value in previous_values:
            variable.assign(value)
        raise


def _create_variable(name, value):
    # Not in the graph of a train step that is being traced.
    with tf.init_scope():
        return keras.Variable(
            value, dtype=value.dtype.name, trainable=False, name=name
        )


TAILS = ("apply", "keep", "drop")


class Accumulated(GradientMode):
    """The gradient of a large batch, from microbatches: exact, in less memory.

    Every microbatch gives the numerators and denominators of the losses and
    the gradients of the numerators. They are summed, then divided once. The
    result is the gradient of the whole for every Keras reduction, with sample
    weights, masks and several outputs, however the whole is split. The
    optimizer is called once per update: its `iterations`, schedules, moving
    averages, weight decay, constraints, clipping and loss scale count updates.

    Metrics are updated microbatch by microbatch; a custom `compute_metrics`
    gets the joined outputs of the batch, if each sample has a row. Random
    layers draw new numbers for each, and BatchNormalization uses the
    statistics of each.

    Args:
        steps: the number of batches for each call of the optimizer; with
            `steps=3`, batches of 4, 4 and 2 train like one batch of 10.
        microbatch_size: how many samples of a batch go through the model at a
            time; it sets the memory of a step. None: the batch stays whole,
            so BatchNormalization sees all of it; with `steps=1` this is what
            `inner` does by itself, in the same memory.
        inner: how a microbatch's gradient is computed: "batch", or a mode with
            an aggregation, "vectorized", "per_sample" or "by_task" (name,
            object or config dict). With `ClippedMean` the whole is a virtual
            batch: clipped per sample, summed, noise added once per update.
            "by_task" sums each task's gradient, and aggregates once per update.
        tail: what happens to batches that wait for an update when an epoch of
            `fit` ends: "apply" updates with these alone, "keep" holds them for
            the next epoch or `fit`, "drop" discards them. Where a `fit` was
            interrupted, or `train_on_batch` was called before, batches wait
            when the next `fit` begins: only "keep" uses them, else they are
            discarded.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Accumulated(steps=4, microbatch_size=64)
    """

    always_shown: tuple[str, ...] = ("steps", "microbatch_size")

    def __init__(
        self,
        steps: int = 1,
        microbatch_size: int | None = None,
        inner: str | GradientMode | dict[str, Any] = "batch",
        *,
        tail: Literal["apply", "keep", "drop"] = "apply",
    ):
        self.steps: int = positive_integer("steps", steps)
        if microbatch_size is not None:
            microbatch_size = positive_integer(
                "microbatch_size", microbatch_size
            )
        self.microbatch_size: int | None = microbatch_size
        self.inner: GradientMode = _inner_mode(inner)
        self.per_sample: bool = self.inner.per_sample
        require_one_of("tail", tail, TAILS)
        self.tail: Literal["apply", "keep", "drop"] = tail

    @property
    def aggregation(self) -> Aggregation | None:
        """The aggregation of the inner mode."""
        return self.inner.aggregation

    @property
    def changes_gradients(self) -> bool:
        return self.inner.changes_gradients

    @property
    def needs_graph(self) -> bool:
        return self.inner.needs_graph

    @property
    def updates_by_itself(self) -> bool:
        return self.steps > 1

    def make_state(self) -> Any:
        return AccumulatorState() if self.steps > 1 else None

    def require(self, model: Any) -> None:
        self.inner.require(model)

    def build(self, model: Any) -> None:
        self.inner.build(model)

    def partial_sums(self, model: Any, part: Any) -> PartialSums:
        return self.inner.partial_sums(model, part)

    def parting(self, model: Any) -> Parting | None:
        return Microbatches(self)

    def begin_fit(self, model: Any) -> None:
        if self.steps > 1 and self.tail != "keep":
            model.gradient_state.forget()

    def end_epoch(self, model: Any) -> dict[str, Any] | None:
        if self.steps == 1 or self.tail == "keep":
            return None
        if self.tail == "drop":
            model.gradient_state.reset()
        elif model.gradient_state.has_pending:
            # Where an update can be made, also under a strategy.
            model.distribute_strategy.run(update, args=(self.inner, model))
            names = self.inner.logged_by_updates(model)
            return model.gradient_logs.results(names)
        return None

    @property
    def log_metrics(self) -> dict[str, type[keras.metrics.Metric]]:
        return self.inner.log_metrics

    def get_config(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "microbatch_size": self.microbatch_size,
            "inner": serialize(self.inner),
            "tail": self.tail,
        }


class Microbatches(Parting):
    """How `Accumulated` splits a batch."""

    def __init__(self, accumulated):
        super().__init__(accumulated.inner, accumulated.microbatch_size)
        self._accumulated = accumulated
        self.steps = accumulated.steps
        if self.size is None and replicas.has_several_replicas():
            # So that a replica without samples does not call the model.
            self.size = MAX_BATCH
        self.has_own_sums = (
            weighs(self.mode.aggregation) or self.mode.changes_gradients
        )

    def require(self, model, batch):
        require_additive_loss(model)
        if self.size is not None:
            mode_text = f"gradient_mode={self._accumulated!r}"
            reason = "calls the model with microbatches or shares of replicas"
            for text in stateful_layers(model, mode_text, reason):
                raise ValueError(text)
        optimizer = accumulating_optimizer(model.optimizer)
        if optimizer is not None:
            raise ValueError(refusal_messages.accumulating_optimizer(optimizer))
        for layer in replicas.synchronizing_layers(model):
            text = refusal_messages.synchronized_statistics(layer, "microbatch")
            raise ValueError(text)
        for part in tf.nest.flatten(batch):
            if is_composite(part):
                raise ValueError(refusal_messages.sparse_batch(part))

    @contextlib.contextmanager
    def checked(self, model, batch, sums):
        traced_step = TracedStep(model, batch)
        stays_whole = self._accumulated.microbatch_size is None
        is_single_call = stays_whole or is_single_microbatch(batch, self.size)
        if self.mode.per_sample and not self.has_own_sums:
            for error in refusals(traced_step):
                raise error
        counter_values = [
            (v, tf.identity(v.value)) for v in counters(traced_step, numerators)
        ]

        def sum_part(*batch):
            # Each part reads the values that the whole batch would read.
            for variable, value in counter_values:
                variable.assign(value)
            return sums(*batch)

        yield sum_part
        is_single_update = is_single_call and self.steps == 1
        for error in refusals(
            traced_step,
            "microbatch",
            is_single_call,
            values=numerators,
            alone=is_single_update,
        ):
            raise error


def _inner_mode(identifier):
    mode = get(identifier)
    if mode.updates_by_sample:
        raise ValueError(
            "`inner` cannot update after every sample, since its gradients "
            "are to be summed. Received: updates='sample'"
        )
    aggregation = mode.aggregation
    gramian = aggregation is not None and aggregation.needs == "gramian"
    if gramian and mode.per_sample:
        raise ValueError(refusal_messages.needs_all_samples("inner", mode))
    if mode.with_statistics:
        raise ValueError(
            "`inner` cannot log statistics, which are of one batch and not of "
            "its microbatches. Received: statistics=True"
        )
    if _can_be_inner(type(mode)):
        step_class, sums_class = (
            next(cls for cls in type(mode).__mro__ if name in vars(cls))
            for name in ("step", "partial_sums")
        )
        if issubclass(step_class, sums_class) and step_class is not sums_class:
            raise ValueError(
                "`inner` finds the gradient of each microbatch by its "
                f"partial_sums(), which {step_class.__name__} has from "
                f"{sums_class.__name__}, so that {step_class.__name__}.step() "
                f"would not count. Define both in {step_class.__name__}. "
                f"Received: inner={mode!r}"
            )
        return mode
    names = (k for k, cls in gradient_modes.items() if _can_be_inner(cls))
    raise ValueError(
        f"`inner` must be one of {', '.join(map(repr, names))}, or a mode "
        f"with a method partial_sums(). Received: {type(mode).__name__}"
    )


def _can_be_inner(cls):
    defined = cls.partial_sums is not GradientMode.partial_sums
    return defined and not issubclass(cls, Accumulated)


gradient_modes.register("accumulated", Accumulated)
