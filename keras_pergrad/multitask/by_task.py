"""One gradient for each task, and one of them all for shared weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    Aggregation,
    DefinedMean,
    aggregations,
)
from keras_pergrad.common.registry import serialize
from keras_pergrad.keras_internals.losses import terms as loss_terms
from keras_pergrad.keras_internals.losses.losses import recording_values
from keras_pergrad.keras_internals.models.parts import has_own_loss, layers_of
from keras_pergrad.modes.base import GradientMode, PartialSums, gradient_modes
from keras_pergrad.modes.one_step import plus, times
from keras_pergrad.modes.step_options import StepOptions
from keras_pergrad.modes.sums import unscaled
from keras_pergrad.multitask.task_gradients import (
    TaskSums,
    combine_tasks,
    cosine_names,
    gramian_of,
    require_minimised,
    shared_by_tasks,
    split_by_task,
)
from keras_pergrad.multitask.task_refusals import invalid_losses, nothing_shared


class ByTask(GradientMode):
    """One gradient for each task; conflicts among them are resolved.

    A task is one loss of the model, such as that of one output. Weights that
    several tasks use get the aggregated gradient of these tasks. Weights of one
    task get their ordinary gradient. There is one forward pass, and a backward
    pass for each task, through the layers that its loss depends on.

    ```
    c_k = gradient of loss_weight_k · loss_k       they add up to Keras's
    w   = aggregation's weights, by the inner products of the c_k
          over the weights that at least two tasks use
    g   = Σ w_k c_k       of a shared weight
    g   = c_k             of a weight of task k alone
    ```

    Where no tasks conflict, `UPGrad` has w_k = 1: the step is Keras's own, and
    it is so with aggregation="mean". What is in no task counts as it does in
    Keras: weight regularisers and losses that are not chosen. For the idea see
    Quinton and Rey, "Jacobian descent for multi-objective optimization", arXiv
    2406.16232.

    Samples may be mixed, as by BatchNormalization: the gradients are those of
    the batch. Under `Accumulated(inner="by_task")`, or on several replicas,
    each task's gradient is added up over microbatches, batches and replicas
    first; the sums are aggregated and logged once, as the update is made. It
    is the step of the whole, with the exceptions that `Accumulated` names. The
    sums take the memory of a gradient for each task. By name `"by_task"`.

    Args:
        aggregation: a `GramianAggregation`, "mean" (plain training, with the
            logs below), a name or a config dict. None: `UPGrad()`.
        losses: which losses are the tasks. None: every compiled loss. A list
            of names, or a dict from the name of a task to a name or to a list
            of names, whose losses are added up. A compiled loss has its name in
            the logs of `fit`, without "_loss": that of its output.
            "add_loss/encoder" is what the layer "encoder" passes to `add_loss`.

    | in the logs | is |
    |---|---|
    | `task_conflicts` | the share of pairs of tasks with a negative cosine |
    | `task_cosine_a_b` | of the gradients of the tasks a and b |
    | `task_weight_a` | w_a, the factor of the gradient of a |

    All are over the shared weights, and means over the epoch. A cosine with a
    gradient of zero is left out.

    Raises:
        TypeError: `aggregation` or `losses` is of another kind.
        ValueError: an aggregation by norms, unknown names of losses, fewer than
            two tasks, no weight that two tasks use, a `compute_loss` of the
            model's own.

    Example:

    >>> import keras, numpy as np
    >>> import keras_pergrad as kpg
    >>> inputs = keras.Input((4,))
    >>> trunk = keras.layers.Dense(8, "tanh")(inputs)
    >>> a = keras.layers.Dense(1, name="a")(trunk)
    >>> b = keras.layers.Dense(1, name="b")(trunk)
    >>> model = kpg.PerGradModel(inputs, [a, b])
    >>> model.compile("sgd", ["mse", "mae"], gradient_mode=kpg.ByTask())
    >>> x, y = np.ones((6, 4)), np.ones((6, 1))
    >>> history = model.fit(x, [y, -y], verbose=0).history
    >>> sorted(name for name in history if name.startswith("task"))
    ['task_conflicts', 'task_cosine_a_b', 'task_weight_a', 'task_weight_b']
    """

    changes_gradients = True

    def __init__(
        self,
        aggregation: str | Aggregation | Mapping[str, Any] | None = None,
        losses: Sequence[str] | Mapping[str, Any] | None = None,
    ):
        if aggregation is None:
            aggregation = "upgrad"
        self.aggregation: Aggregation = aggregations.get(aggregation)
        if self.aggregation.needs == "norms":
            raise ValueError(
                "ByTask() expected `aggregation` to be a GramianAggregation, "
                "such as kpg.aggregations.UPGrad(), or 'mean': tasks are "
                "weighed by the inner products of their gradients. Received: "
                f"{self.aggregation!r}, which weighs samples by their norms; "
                "give it to Vectorized(aggregation=...)."
            )
        self.losses: dict[str, tuple[str, ...]] | None = _task_losses(losses)

    def require(self, model: Any) -> None:
        if has_own_loss(model):
            raise ValueError(
                f"{type(model).__name__} overrides compute_loss, so that its "
                "tasks are not known. ByTask() expected the losses in "
                "compile(loss=...), one for each output, or in add_loss() of "
                "a layer, chosen by ByTask(losses=['add_loss/<name of the "
                "layer>', ...]). Or use gradient_mode='batch'."
            )
        loss_names = loss_terms.term_names(model)
        tasks = self._tasks(model)
        if len(tasks) < 2:
            raise ValueError(
                "ByTask() expected at least two tasks. Received: "
                f"{len(tasks)}, {list(tasks)}; the compiled losses are "
                f"{loss_names}. Compile a loss for each output, name what a "
                "layer gives to add_loss in `losses`, as in 'add_loss/<name "
                "of the layer>', or use gradient_mode='batch'."
            )
        layers = {layer.name for layer in layers_of(model)}
        for name in (name for group in tasks.values() for name in group):
            layer_name = name.removeprefix(loss_terms.ADDED)
            if name not in loss_names and (
                layer_name == name or layer_name not in layers
            ):
                raise ValueError(
                    f"`losses` names {name!r}, which the model does not have. "
                    f"Expected some of the compiled losses {loss_names}, or "
                    "'add_loss/<name of a layer>'."
                )

    def _tasks(self, model):
        """Return the names of the losses of each task, by its name."""
        if self.losses is None:
            return {name: (name,) for name in loss_terms.term_names(model)}
        return self.losses

    def build(self, model: Any) -> None:
        self.require(model)
        names = self.logged_by_updates(model)
        model.gradient_logs.add(dict.fromkeys(names, DefinedMean))

    @property
    def log_metrics(self) -> dict[str, type[keras.metrics.Metric]]:
        return {"task_conflicts": DefinedMean}

    def logged_by_updates(self, model: Any) -> list[str]:
        tasks = list(self._tasks(model))
        weights = [f"task_weight_{name}" for name in tasks]
        return ["task_conflicts", *weights, *cosine_names(tasks).values()]

    def sums_of_parts(
        self, aggregation: Any, options: StepOptions, **of_batch: Any
    ) -> Any:
        if type(self).partial_sums is not ByTask.partial_sums:
            return super().sums_of_parts(aggregation, options, **of_batch)
        return TaskSums(self._tasks(of_batch["model"]), **of_batch)

    def gradients_of_sums(
        self,
        model: Any,
        groups: dict[str, Any],
        mask_epsilons: dict[str, Any],
        *,
        aggregation: Any,
    ) -> tuple[Any, dict[str, Any]]:
        tasks = list(self._tasks(model))
        task_gradients, other_gradients = split_by_task(
            groups, mask_epsilons, len(tasks)
        )
        return self._aggregate(
            tasks, task_gradients, other_gradients, aggregation=aggregation
        )

    def partial_sums(self, model: Any, part: Any) -> PartialSums:
        if not part.is_whole:
            raise ValueError(
                "partial_sums() of ByTask expected the whole batch: the inner "
                "products are of the gradients of all of it. Received: a "
                "part, from a mode that calls it or overrides it. Override "
                "step() instead, or give Accumulated(inner=...) and replicas "
                "a ByTask whose partial_sums() is its own, which adds up each "
                "task's gradient."
            )
        tasks, captured_losses = self._tasks(model), {}
        with part.watched(), tf.GradientTape(persistent=True) as tape:
            y_pred, added = part.call()
            with recording_values(model, captured_losses):
                part.target(y_pred, added)
            terms = loss_terms.terms_of(
                model, part.y, y_pred, recorded=captured_losses
            )
            targets, other_target = _task_targets(tasks, terms, part.scale)
        variables = model.trainable_variables
        task_gradients = [
            unscaled(tape.gradient(t, variables), part.scale)
            for t in targets.values()
        ]
        other_gradients = None
        if other_target is not None:
            other_gradients = tape.gradient(other_target, variables)
            other_gradients = unscaled(other_gradients, part.scale)
        del tape
        gradients, logged = self._aggregate(
            list(tasks),
            task_gradients,
            other_gradients,
            aggregation=part.aggregation,
        )
        return PartialSums(y_pred, gradients, statistics=logged)

    def _aggregate(
        self, tasks, task_gradients, other_gradients, *, aggregation
    ):
        """Return the gradients of tasks and of all else as one; the logs."""
        shared = shared_by_tasks(task_gradients)
        if not any(shared):
            raise ValueError(nothing_shared(tasks))
        gramian = gramian_of(task_gradients, shared)
        weights, logged = self._weights(gramian, tasks, aggregation)
        gradients = combine_tasks(task_gradients, shared, weights)
        if other_gradients is not None:
            gradients = plus(gradients, other_gradients)
        return gradients, logged

    def _weights(self, gramian, tasks, aggregation):
        """Return the factor of each task's gradient, or None; and the logs."""
        count, weights = len(tasks), None
        logged_weights = tf.ones([count], gramian.dtype)
        if aggregation.needs == "gramian":
            # Tasks add up to the ordinary gradient; an aggregation expects
            # rows whose mean it is: each task's gradient times their number.
            logged_weights, _ = aggregation.mean_weights(gramian * count**2)
            weights = logged_weights
        conflicts = tf.reduce_sum(tf.cast(gramian < 0, tf.float32))
        logged = {"task_conflicts": conflicts / (count * (count - 1))}
        for k, name in enumerate(tasks):
            logged[f"task_weight_{name}"] = logged_weights[k]
        lengths = tf.sqrt(tf.linalg.diag_part(gramian))
        for (i, j), name in cosine_names(tasks).items():
            # NaN where a gradient is zero.
            logged[name] = gramian[i, j] / (lengths[i] * lengths[j])
        return weights, logged

    def get_config(self) -> dict[str, Any]:
        return {
            "aggregation": serialize(self.aggregation),
            "losses": self.losses
            and {name: list(group) for name, group in self.losses.items()},
        }


def _task_losses(losses):
    """Return the names of the losses of each task, or None for all."""
    if losses is None:
        return None
    if isinstance(losses, str) or not isinstance(losses, (Mapping, Sequence)):
        raise TypeError(invalid_losses(losses))
    pairs = (
        losses.items() if isinstance(losses, Mapping) else zip(losses, losses)
    )
    normalized = [
        (name, tuple(group) if isinstance(group, (list, tuple)) else (group,))
        for name, group in pairs
    ]
    groups = dict(normalized)
    if len(groups) < len(normalized):
        raise ValueError(invalid_losses(losses))
    names = [name for group in groups.values() for name in group]
    if not all(isinstance(name, str) for name in (*groups, *names)):
        raise TypeError(invalid_losses(losses))
    if len(set(names)) < len(names) or not all(groups.values()):
        raise ValueError(invalid_losses(losses))
    return groups


def _task_targets(tasks, losses, scale):
    """Return the loss of each task and of all else, times the loss scale."""
    require_minimised(tasks, losses)
    targets, losses = {}, dict(losses)
    for task, group in tasks.items():
        values = [losses.pop(name) for name in group]
        targets[task] = times(_total(values), scale)
    return targets, times(_total(list(losses.values())), scale)


def _total(values):
    if not values:
        return None
    total = values[0]
    for value in values[1:]:
        total += tf.cast(value, total.dtype)
    return total


gradient_modes.register("by_task", ByTask)
