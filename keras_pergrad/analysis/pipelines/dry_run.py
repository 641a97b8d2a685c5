"""A model's train function for measurements that leave the model as it was."""

import contextlib

from keras_pergrad.analysis.pipelines.loading_rate import IteratorCall
from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_state import (
    ModelState,
    kept,
    variables_in,
)
from keras_pergrad.keras_internals.train_function import made

STATE, STEPS = "gradient_state", "steps_per_execution"
_HOLDERS = "gradient_mode", "aggregation_state"


@contextlib.contextmanager
def untrained(model, batches):
    """Yield a model's `IteratorCall` of at most `batches`; restore the model.

    This restores its weights and seeds, the optimizer, the sums and noise
    state of its gradient mode, and Keras's own seed. Metrics start afresh.
    """
    if not model.built:
        raise ValueError(
            "Profiling puts the weights back, so they must exist; expected a "
            "built model. Call `model.build(input_shape)` or the model on a "
            f"batch first. Received: {model!r}"
        )
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    with contextlib.ExitStack() as undo:
        undo.callback(model.reset_metrics)
        undo.enter_context(ModelState(model))
        held = [getattr(model, name, None) for name in _HOLDERS]
        undo.enter_context(kept(variables_in(held, _is_no_tensorflow)))
        fresh = _fresh_state(model)
        before = model.steps_per_execution
        steps = min(before, batches + 1)
        if fresh is not None:
            undo.enter_context(attribute(model, STATE, fresh))
        undo.enter_context(attribute(model, STEPS, steps))
        # A function that was traced before holds the model's own state.
        as_before = fresh is None and steps == before
        function = undo.enter_context(made(model, anew=not as_before))
        yield IteratorCall(function, model, steps)


def _fresh_state(model):
    """Return a mode's first state: a step can add sums to a later one."""
    if getattr(model, STATE, None) is None:
        return None
    with model.distribute_strategy.scope():
        return model.gradient_mode.make_state()


def _is_no_tensorflow(value):
    return not type(value).__module__.startswith("tensorflow")
