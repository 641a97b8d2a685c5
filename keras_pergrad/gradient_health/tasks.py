"""The gradients of a model's tasks on one batch, and their conflicts."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from keras_pergrad.common.batches import map_tensors, pack_like, tensors_of
from keras_pergrad.common.text import as_text
from keras_pergrad.gradient_health.layer_gradients import layer_of
from keras_pergrad.keras_internals.losses import terms as loss_terms
from keras_pergrad.keras_internals.losses.losses import (
    recording_values,
    total_loss,
)
from keras_pergrad.keras_internals.models.parts import (
    build_symbolically,
    call_model,
)
from keras_pergrad.keras_internals.state.model import (
    preserve_random_state,
    run_and_restore,
)
from keras_pergrad.multitask import task_refusals
from keras_pergrad.multitask.task_gradients import gramians, shared_by_tasks


@dataclasses.dataclass(frozen=True)
class TaskConflicts:
    """The inner products of the tasks' gradients in one measurement.

    Attributes:
        step: the number of updates before it.
        tasks: the names of the T tasks.
        variable_names: the paths of the V variables that at least two of the
            tasks use, in the order of `model.trainable_variables`.
        products: (V, T, T), the inner products of the tasks' gradients of each
            variable; loss weights are in them, the loss scale is not. Unit: the
            square of the gradient's.
    """

    step: int
    tasks: tuple[str, ...]
    variable_names: tuple[str, ...]
    products: np.ndarray

    def cosines(self) -> dict[tuple[str, str], float]:
        """Return the cosine of each pair of tasks over all weights, by pair.

        NaN where a gradient is zero.
        """
        return self._cosines(self.products.sum(0))

    def by_layer(self) -> dict[str, dict[tuple[str, str], float]]:
        """Return the cosines of each pair by the path of each layer."""
        layers = {}
        for path, product in zip(self.variable_names, self.products):
            layer = layer_of(path)
            layers[layer] = layers.get(layer, 0.0) + product
        return {name: self._cosines(total) for name, total in layers.items()}

    def figures(self) -> dict[str, float]:
        """Return what the logs show, by name."""
        cosines = self.cosines()
        defined = [c for c in cosines.values() if not np.isnan(c)]
        is_conflict = [c < 0 for c in defined]
        share = float(np.mean(is_conflict)) if defined else float("nan")
        by_pair = {
            f"gradient_task_cosine_{a}_{b}": c for (a, b), c in cosines.items()
        }
        return {"gradient_task_conflicts": share, **by_pair}

    def _cosines(self, gramian):
        norms = np.sqrt(np.diag(gramian))
        with np.errstate(divide="ignore", invalid="ignore"):
            cosines = gramian / np.outer(norms, norms)
        pairs = itertools.combinations(range(len(self.tasks)), 2)
        return {
            (self.tasks[i], self.tasks[j]): float(cosines[i, j])
            for i, j in pairs
        }


def conflict_table(measurements):
    """Return how often, and where, tasks conflict: a table as text.

    Args:
        measurements: a list of `TaskConflicts` of one training.

    Returns:
        A row for each layer and pair of tasks: the share of the measurements
        whose cosine is negative, and the mean cosine; first those that conflict
        most often.
    """
    cosines = {}
    for conflicts in measurements:
        all_weights = {"all shared weights": conflicts.cosines()}
        for layer, pairs in {**all_weights, **conflicts.by_layer()}.items():
            for pair, cosine in pairs.items():
                if not np.isnan(cosine):
                    cosines.setdefault((layer, pair), []).append(cosine)
    rows = [
        (layer, " and ".join(pair), np.mean(np.less(c, 0)), np.mean(c))
        for (layer, pair), c in cosines.items()
    ]
    rows = rows[:1] + sorted(rows[1:], key=lambda row: -row[2])
    shown = [(a, b, f"{share:.0%}", f"{c:+.2f}") for a, b, share, c in rows]
    columns = ("layer", "tasks", "in conflict", "mean cosine")
    return "\n".join(as_text(columns, shown, columns[:2]))


class TaskMeter:
    """Measures the inner products of the gradients of all compiled losses.

    Layers act as in training; what that changes is put back. Weight
    regularisers and what layers add to the loss are no tasks.

    Args:
        model: a compiled model of at least two compiled losses.
        batch: (x, y, sample_weight), tensors.

    Attributes:
        tasks: the names of the tasks, in Keras's order.
    """

    def __init__(self, model, batch):
        self._model = model
        with preserve_random_state():
            build_symbolically(model, batch)
        self.tasks = tuple(loss_terms.term_names(model))
        if len(self.tasks) < 2:
            raise ValueError(task_refusals.no_tasks_to_measure(self.tasks))
        self._batch_tensors = tensors_of(batch)
        self._variables = list(model.trainable_variables)
        self._is_shared = []

        def compute(*tensors):
            return self._compute(*pack_like(batch, tensors))

        with preserve_random_state():
            self._function = tf.function(
                compute, autograph=False
            ).get_concrete_function(*self._batch_tensors)

    def measure(self, step):
        """Return the `TaskConflicts` of the present weights."""
        quiet = np.errstate(invalid="ignore", over="ignore")
        with quiet, preserve_random_state():
            products = run_and_restore(self._function, *self._batch_tensors)
        shared = itertools.compress(self._variables, self._is_shared)
        return TaskConflicts(
            step,
            self.tasks,
            tuple(v.path for v in shared),
            products=np.asarray(products, np.float64),
        )

    def _compute(self, x, y, sample_weight):
        loss_values = {}
        # One forward pass, and one backward pass for each task.
        with tf.GradientTape(persistent=True) as tape:
            y_pred = call_model(self._model, x)
            with recording_values(self._model, loss_values):
                total_loss(
                    self._model,
                    x,
                    y,
                    y_pred=y_pred,
                    sample_weight=sample_weight,
                )
            terms = loss_terms.terms_of(
                self._model, y, y_pred, recorded=loss_values
            )
        if not terms.keys() >= set(self.tasks):
            raise ValueError(task_refusals.no_tasks_to_measure(self.tasks))
        task_gradients = [
            map_tensors(
                tf.convert_to_tensor,
                tape.gradient(terms[name], self._variables),
            )
            for name in self.tasks
        ]
        self._is_shared = shared_by_tasks(task_gradients)
        if not any(self._is_shared):
            raise ValueError(task_refusals.nothing_shared(list(self.tasks)))
        shared = itertools.compress(zip(*task_gradients), self._is_shared)
        return tf.stack(gramians(list(shared)))
