"""The sums of microbatches or replicas for each task: see `ByTask`."""

from keras_pergrad.common import task_messages
from keras_pergrad.keras_internals import loss_terms
from keras_pergrad.keras_internals.losses import noting_losses
from keras_pergrad.modes.microbatch_sums import MicrobatchSums, divided
from keras_pergrad.modes.weighted_sums import call_postponed


class TaskSums(MicrobatchSums):
    """Sums in groups of their own for each task, and for what is in none."""

    # `tasks` are the names of the losses of each task, by its name.

    def __init__(self, tasks, model, *given):
        super().__init__(model, *given)
        self._tasks = tasks
        self._prefixes = {
            name: _prefix(k)
            for k, group in enumerate(tasks.values())
            for name in group
        }
        self._losses, self._owners = loss_terms.names(model), []

    def call(self, x):
        added, self._owners = [], []
        with noting_losses(self.model, added, self._owners):
            y_pred, _ = call_postponed(self.model, x)
        return y_pred, added

    def targets(self, terms, added, rows):
        known = self._losses[: len(terms)]
        known = known + [loss_terms.added(layer) for layer in self._owners]
        require_minimised(self._tasks, known)
        return super().targets(terms, added, rows)

    def prefix_of_loss(self, k):
        return self._prefixes.get(self._losses[k], "")

    def prefix_of_added(self, k):
        return self._prefixes.get(loss_terms.added(self._owners[k]), "")


def by_task(groups, mask_epsilons, count):
    """Return the gradients of each task and those of no task, or None."""
    parts, rest = [], dict(groups)
    for k in range(count):
        own = {key: rest.pop(key) for key in groups if _is_of(key, k)}
        parts.append(divided(own, mask_epsilons))
    return parts, divided(rest, mask_epsilons)


def require_minimised(tasks, known):
    """Refuse a task with a loss that is not among those of the batch."""
    for name in (name for group in tasks.values() for name in group):
        if name not in known:
            raise ValueError(task_messages.not_minimised(name))


def _prefix(task):
    return f"task{task}_"


def _is_of(key, task):
    return key.startswith(_prefix(task))
