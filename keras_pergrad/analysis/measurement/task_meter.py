"""The gradients of a model's tasks on one batch, the model unchanged."""

import numpy as np
import tensorflow as tf

from keras_pergrad.analysis.measurement.task_conflicts import TaskConflicts
from keras_pergrad.common import task_messages
from keras_pergrad.keras_internals import loss_terms
from keras_pergrad.keras_internals.losses import total_loss
from keras_pergrad.keras_internals.model_parts import (
    build_symbolically,
    call_model,
)
from keras_pergrad.keras_internals.model_state import (
    random_state_kept,
    run_and_restore,
)
from keras_pergrad.modes.task_gramian import gramians, shared_by_tasks


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
        with random_state_kept():
            build_symbolically(model, batch)
        self.tasks = tuple(loss_terms.names(model))
        if len(self.tasks) < 2:
            raise ValueError(task_messages.none_to_measure(self.tasks))
        self._parts = [t for t in tf.nest.flatten(batch) if t is not None]
        self._variables = list(model.trainable_variables)
        self._used = []

        def compute(*parts):
            parts = iter(parts)
            return self._compute(
                *tf.nest.map_structure(
                    lambda t: None if t is None else next(parts), batch
                )
            )

        with random_state_kept():
            self._function = tf.function(
                compute, autograph=False
            ).get_concrete_function(*self._parts)

    def measure(self, step):
        """Return the `TaskConflicts` of the present weights."""
        quiet = np.errstate(invalid="ignore", over="ignore")
        with quiet, random_state_kept():
            products = run_and_restore(self._function, *self._parts)
        paths = [v.path for v in self._variables]
        known = [p for p, used in zip(paths, self._used) if used]
        return TaskConflicts(
            step, self.tasks, tuple(known), np.asarray(products, np.float64)
        )

    def _compute(self, x, y, sample_weight):
        noted = {}
        with tf.GradientTape(persistent=True) as tape:
            y_pred = call_model(self._model, x)
            with loss_terms.noting_values(self._model, noted):
                total_loss(self._model, x, y, y_pred, sample_weight)
            terms = loss_terms.terms_of(self._model, y, y_pred, noted)
        lacking = [name for name in self.tasks if name not in terms]
        if lacking:
            raise ValueError(task_messages.none_to_measure(self.tasks))
        parts = [
            list(map(_dense, tape.gradient(terms[name], self._variables)))
            for name in self.tasks
        ]
        self._used = shared_by_tasks(parts)
        if not any(self._used):
            raise ValueError(task_messages.nothing_shared(list(self.tasks)))
        shared = [c for c, used in zip(zip(*parts), self._used) if used]
        return tf.stack(gramians(shared))


def _dense(gradient):
    return None if gradient is None else tf.convert_to_tensor(gradient)
