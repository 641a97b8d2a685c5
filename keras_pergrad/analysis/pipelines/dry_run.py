"""A model's train function for measurements that leave the model as it was."""

import contextlib
import types

import keras
import tensorflow as tf

from keras_pergrad.analysis.pipelines.loading_rate import IteratorCall
from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_state import ModelState, kept

FUNCTION, STATE, STEPS = (
    "train_function",
    "gradient_state",
    "steps_per_execution",
)
#: What `_held_by` does not look into.
_CLOSED = (
    type,
    types.ModuleType,
    types.FunctionType,
    keras.layers.Layer,
    keras.optimizers.Optimizer,
)


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
        undo.callback(object.__setattr__, model, FUNCTION, model.train_function)
        undo.callback(model.reset_metrics)
        undo.enter_context(ModelState(model))
        for holder in ("gradient_mode", "aggregation_state"):
            held = _held_by(getattr(model, holder, None))
            undo.enter_context(kept(held))
        fresh = _fresh_state(model)
        before = model.steps_per_execution
        steps = min(before, batches + 1)
        if fresh is not None:
            undo.enter_context(attribute(model, STATE, fresh))
        undo.enter_context(attribute(model, STEPS, steps))
        # A function that was traced before holds the model's own state.
        as_before = fresh is None and steps == before
        model.make_train_function(force=not as_before)
        yield IteratorCall(model.train_function, model, steps)


def _fresh_state(model):
    """Return a mode's first state: a step can add sums to a later one."""
    if getattr(model, STATE, None) is None:
        return None
    with model.distribute_strategy.scope():
        return model.gradient_mode.make_state()


def _held_by(owner):
    """Return the `tf.Variable`s that an object holds, at any depth."""
    variables, waiting, seen = [], [owner], {}
    while waiting:
        this = waiting.pop()
        if id(this) in seen or isinstance(this, _CLOSED):
            continue
        seen[id(this)] = this
        if isinstance(this, keras.Variable):
            variables.append(this.value)
        elif isinstance(this, tf.Variable):
            variables.append(this)
        elif isinstance(this, dict):
            waiting += this.values()
        elif isinstance(this, (list, tuple)):
            waiting += this
        elif not type(this).__module__.startswith("tensorflow"):
            waiting += getattr(this, "__dict__", {}).values()
    return variables
