"""The agreement of the gradients of a model's tasks, by layer."""

import dataclasses
import itertools

import numpy as np

from keras_pergrad.common.tables import as_text


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

    def cosines(self):
        """Return the cosine of each pair of tasks over all weights, by pair.

        NaN where a gradient is zero.
        """
        return self._cosines(self.products.sum(0))

    def by_layer(self):
        """Return the cosines of each pair by the path of each layer."""
        layers = {}
        for path, product in zip(self.variable_names, self.products):
            layer = path.rpartition("/")[0] or path
            layers[layer] = layers.get(layer, 0.0) + product
        return {name: self._cosines(total) for name, total in layers.items()}

    def figures(self):
        """Return what the logs show, by name."""
        cosines = self.cosines()
        known = [c for c in cosines.values() if not np.isnan(c)]
        against = [c < 0 for c in known]
        share = float(np.mean(against)) if known else float("nan")
        named = {
            f"gradient_task_cosine_{a}_{b}": c for (a, b), c in cosines.items()
        }
        return {"gradient_task_conflicts": share, **named}

    def _cosines(self, gramian):
        norms = np.sqrt(np.diag(gramian))
        with np.errstate(divide="ignore", invalid="ignore"):
            cosines = gramian / np.outer(norms, norms)
        pairs = itertools.combinations(range(len(self.tasks)), 2)
        return {
            (self.tasks[i], self.tasks[j]): float(cosines[i, j])
            for i, j in pairs
        }


def conflict_table(measured):
    """Return how often, and where, tasks conflict: a table as text.

    Args:
        measured: a list of `TaskConflicts` of one training.

    Returns:
        A row for each layer and pair of tasks: the share of the measurements
        whose cosine is negative, and the mean cosine; first those that conflict
        most often.
    """
    cosines = {}
    for one in measured:
        whole = {"all shared weights": one.cosines()}
        for layer, pairs in {**whole, **one.by_layer()}.items():
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


def with_tasks(reading, conflicts):
    """Return a reading with the figures of the tasks, too."""
    figures = {**reading.figures, **conflicts.figures()}
    return dataclasses.replace(reading, figures=figures)
