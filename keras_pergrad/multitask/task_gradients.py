"""The sums and gradients of several tasks: what they share, how they agree."""

import itertools

import tensorflow as tf

from keras_pergrad.factors.written_out import norm_type
from keras_pergrad.keras_internals.losses import terms as loss_terms
from keras_pergrad.keras_internals.losses.losses import recording_losses
from keras_pergrad.modes.sums import (
    MicrobatchSums,
    call_with_postponed,
    divide_groups,
)


class TaskSums(MicrobatchSums):
    """Sums in groups of their own for each task, and for what is in none."""

    # `tasks` are the names of the losses of each task, by its name.

    def __init__(self, tasks, *, model, **of_batch):
        super().__init__(model, **of_batch)
        self._tasks = tasks
        self._prefixes = {
            name: f"task{k}_"
            for k, group in enumerate(tasks.values())
            for name in group
        }
        self._losses, self._loss_layers = loss_terms.term_names(model), []

    def call(self, x):
        added, self._loss_layers = [], []
        with recording_losses(self.model, added, self._loss_layers):
            y_pred, _ = call_with_postponed(self.model, x)
        return y_pred, added

    def targets(self, terms, added, rows):
        loss_names = self._losses[: len(terms)]
        loss_names = loss_names + [
            loss_terms.added_term_name(layer) for layer in self._loss_layers
        ]
        require_minimised(self._tasks, loss_names)
        return super().targets(terms, added, rows)

    def loss_prefix(self, k):
        return self._prefixes.get(self._losses[k], "")

    def added_prefix(self, k):
        return self._prefixes.get(
            loss_terms.added_term_name(self._loss_layers[k]), ""
        )


def split_by_task(groups, mask_epsilons, task_count):
    """Return the gradients of each task and those of no task, or None."""
    task_gradients, other_groups = [], dict(groups)
    for k in range(task_count):
        task_groups = {
            key: other_groups.pop(key)
            for key in groups
            if key.startswith(f"task{k}_")
        }
        task_gradients.append(divide_groups(task_groups, mask_epsilons))
    return task_gradients, divide_groups(other_groups, mask_epsilons)


def require_minimised(tasks, loss_names):
    """Refuse a task with a loss that is not among those of the batch."""
    for name in (name for group in tasks.values() for name in group):
        if name not in loss_names:
            raise ValueError(
                f"`losses` names {name!r}, which is no part of the loss of "
                "this batch: the layer gave nothing to add_loss, or Keras does "
                "not minimise it (of several losses of a single output only "
                "the first). Leave it out."
            )


def shared_by_tasks(task_gradients):
    """Say of each variable whether at least two tasks have a gradient of it.

    `task_gradients` are lists of gradients, one a task, with None: not used.
    """
    return [
        sum(g is not None for g in column) > 1
        for column in zip(*task_gradients)
    ]


def gramian_of(task_gradients, shared):
    """Return the inner products over the shared variables, (tasks, tasks)."""
    columns = itertools.compress(zip(*task_gradients), shared)
    return tf.add_n(gramians(list(columns)))


def gramians(columns):
    """Return the tasks' inner products at each variable, (tasks, tasks)."""
    dtype = norm_type([g for column in columns for g in column])
    return [_gramian(column, dtype) for column in columns]


def _gramian(column, dtype):
    count, zero = len(column), tf.zeros([], dtype)
    flat = [g if g is None else tf.cast(g, dtype) for g in column]
    products = {}
    for i in range(count):
        for j in range(i + 1):
            a, b = flat[i], flat[j]
            if a is None or b is None:
                products[i, j] = zero
            elif i == j:
                products[i, j] = 2 * tf.nn.l2_loss(a)
            else:
                products[i, j] = tf.reduce_sum(a * b)
    rows = range(count)
    return tf.stack(
        [tf.stack([products[max(i, j), min(i, j)] for j in rows]) for i in rows]
    )


def combine_tasks(task_gradients, shared, weights):
    """Return the weighted sums at shared variables, the plain ones at others.

    `weights` are (tasks,), or None: all are 1.
    """
    gradients = []
    for column, is_shared in zip(zip(*task_gradients), shared):
        total = None
        for k, gradient in enumerate(column):
            if gradient is None:
                continue
            if is_shared and weights is not None:
                # What is not finite stays so: the optimizer must see it.
                gradient *= tf.cast(weights[k], gradient.dtype)
            total = gradient if total is None else total + gradient
        gradients.append(total)
    return gradients


def cosine_names(tasks):
    """Return the name in the logs of the cosine of each two places."""
    return {
        (i, j): f"task_cosine_{tasks[i]}_{tasks[j]}"
        for i, j in itertools.combinations(range(len(tasks)), 2)
    }
