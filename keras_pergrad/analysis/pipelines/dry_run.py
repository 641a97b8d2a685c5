"""A model's train function for measurements that leave the model as it was."""

import contextlib
import types

import keras
import tensorflow as tf

from keras_pergrad.analysis.pipelines.loading_rate import Step
from keras_pergrad.analysis.pipelines.stopwatch import fetches_of_a_call
from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.seeds import shared_seed_state

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
    """Yield the `Step` of a model; at the end restore the model.

    This restores its weights and seeds, the optimizer, the sums and noise
    state of its gradient mode, and Keras's own seed. Metrics start afresh.

    Args:
        model: a compiled and built `keras.Model`.
        batches: how many shall be measured; a step does not take more.

    Raises:
        ValueError: the model is not built.
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
        undo.callback(_assign, [(v, v.numpy()) for v in _variables(model)])
        fresh = _fresh_state(model)
        before = model.steps_per_execution
        steps = min(before, batches + 1)
        if fresh is not None:
            undo.enter_context(attribute(model, STATE, fresh))
        undo.enter_context(attribute(model, STEPS, steps))
        # A function that was traced before holds the model's own state.
        as_before = fresh is None and steps == before
        model.make_train_function(force=not as_before)
        yield Step(
            model.train_function,
            model.distribute_strategy,
            batches=steps,
            fetches=fetches_of_a_call(model),
        )


def _fresh_state(model):
    """Return the initial state of a gradient mode.

    Its sums so far must not be touched.

    Restoring them would not be enough: the first step can add new ones.
    """
    if getattr(model, STATE, None) is None:
        return None
    with model.distribute_strategy.scope():
        return model.gradient_mode.make_state()


def _variables(model):
    found = [
        *model.variables,
        *model.optimizer.variables,
        *_held_by(getattr(model, "gradient_mode", None)),
        *_held_by(getattr(model, "aggregation_state", None)),
    ]
    seed = shared_seed_state()
    return found if seed is None else [*found, seed]


def _held_by(owner):
    """Return the variables that an object holds, at any depth."""
    found, waiting, seen = [], [owner], {}
    while waiting:
        this = waiting.pop()
        if id(this) in seen or isinstance(this, _CLOSED):
            continue
        seen[id(this)] = this
        if isinstance(this, (keras.Variable, tf.Variable)):
            found.append(this)
        elif isinstance(this, dict):
            waiting += this.values()
        elif isinstance(this, (list, tuple)):
            waiting += this
        elif not type(this).__module__.startswith("tensorflow"):
            waiting += getattr(this, "__dict__", {}).values()
    return found


def _assign(pairs):
    for variable, value in pairs:
        variable.assign(value)
