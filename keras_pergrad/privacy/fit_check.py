"""The check of a private `fit`, and its budget."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_pergrad.common.callback_list import (
    as_callback_list,
    with_first,
)
from keras_pergrad.common.refusal_messages import without_batch_mode
from keras_pergrad.common.warning import warn_user
from keras_pergrad.privacy import model_check
from keras_pergrad.privacy.ledger import ledger_of
from keras_pergrad.privacy.mechanism import Clipping
from keras_pergrad.privacy.privacy_budget import (
    PrivacyBudget,
    is_trained_elsewhere,
)
from keras_pergrad.privacy.private_batches import PrivateBatches


def prepare(aggregation, model, arguments):
    """Check a `fit` before it begins, and set the data that it trains on."""
    batches = _require_batches(aggregation, arguments)
    _require_unchanged(aggregation, model)
    callbacks = arguments.get("callbacks")
    problems = [
        *_argument_problems(arguments),
        *_callback_problems(callbacks),
        *_execution_problems(model, len(batches)),
        *model_check.find_problems(model, batches, aggregation.public_layers),
    ]
    if problems:
        # Some advise the mode "batch", in which nothing is private.
        lines = "\n".join(f"- {without_batch_mode(t)}" for t in problems)
        raise ValueError(f"This training would not be private:\n{lines}")
    state = model.aggregation_state
    state.outside = state.outside or is_trained_elsewhere(model)
    state.proof = state.proof.merged_with(
        model_check.proof_record(model, batches)
    )
    _warn_of_shared_data(
        batches, arguments.get("validation_data"), "validation data are"
    )
    for callback in as_callback_list(callbacks):
        # Without one it measures the first batch, which is drawn of them.
        probe = getattr(callback, "probe", ())
        probe = batches if probe is None else probe
        name = type(callback).__name__
        _warn_of_shared_data(batches, probe, f"probe of {name} has")
    arguments["callbacks"] = _put_budget_first(aggregation, callbacks)
    strategy = model.distribute_strategy
    with strategy.scope():
        state.enter_phase(
            model.trainable_variables,
            replicas=strategy.num_replicas_in_sync,
            **batches.facts(),
        )
    arguments["shuffle"] = False  # Batches are drawn; Keras would warn.
    arguments["x"] = batches.dataset(model.aggregation_state, strategy)
    if strategy.num_replicas_in_sync > 1:
        arguments["steps_per_epoch"] = len(batches)


def _require_batches(aggregation, arguments):
    batches = arguments.get("x")
    if not isinstance(batches, PrivateBatches):
        raise ValueError(
            "The accounting holds for batches that are drawn as it assumes. "
            "Expected fit(private.batches(x, y), ...) with the "
            "PrivateTraining of the gradient mode. Received: "
            f"{type(batches).__name__}"
        )
    if batches.mechanism != aggregation.mechanism:
        raise ValueError(
            "The batches and the gradient mode come from different "
            "PrivateTrainings. "
            f"{_differences(aggregation.mechanism, batches.mechanism)} "
            "Call compile(gradient_mode="
            "private.gradient_mode) and private.batches() of the same one."
        )
    return batches


def _differences(expected, received):
    """Say in which settings two mechanisms differ."""
    pairs = [
        (field.name, *(getattr(m, field.name) for m in (expected, received)))
        for field in dataclasses.fields(expected)
    ]
    pairs = [(name, a, b) for name, a, b in pairs if a != b]
    expected = ", ".join(f"{name}={a!r}" for name, a, _ in pairs)
    received = ", ".join(f"{name}={b!r}" for name, _, b in pairs)
    return f"Expected {expected}. Received: {received}."


def _require_unchanged(aggregation, model):
    ledger, expected = ledger_of(model), aggregation.mechanism
    clipping = Clipping.of(aggregation.clipping)
    is_unchanged = ledger is not None and ledger.mechanism == expected
    if not is_unchanged or clipping != expected.clipping:
        raise ValueError(
            "What clips and adds noise is not what is accounted for. Expected "
            f"{expected.clipping.to_json()}. Received: {clipping.to_json()}. "
            "Make another PrivateTraining and compile with its gradient_mode: "
            "the ledger goes on."
        )


def _argument_problems(arguments):
    if arguments.get("validation_split"):
        yield (
            "`validation_split` takes validation data from the examples that "
            "are protected. Split them before, and give validation_data."
        )
    for name in ("y", "sample_weight"):
        if arguments.get(name) is not None:
            yield f"`{name}` belongs in private.batches(x, y, sample_weight)."
    for batches in keras.tree.flatten(arguments.get("validation_data")):
        if isinstance(batches, PrivateBatches):
            yield (
                "`validation_data` are batches drawn for training. Expected "
                "other examples, as arrays (x, y) or a data set. Received: "
                f"{batches!r}. Give validation_data=(x_val, y_val)."
            )
    for name in ("batch_size", "steps_per_epoch"):
        if arguments.get(name) is not None:
            yield (
                f"`{name}` is set by PrivateTraining. Received: "
                f"{name}={arguments[name]!r}. Leave it out."
            )


def _callback_problems(callbacks):
    """Yield a sentence for each callback that acts on training data."""
    keras_callbacks = keras.callbacks
    for callback in as_callback_list(callbacks):
        name = type(callback).__name__
        acts_on_logs = isinstance(
            callback,
            (keras_callbacks.EarlyStopping, keras_callbacks.ReduceLROnPlateau),
        ) or (
            isinstance(callback, keras_callbacks.ModelCheckpoint)
            and callback.save_best_only
        )
        if acts_on_logs and not callback.monitor.startswith("val_"):
            yield (
                f"The callback {name} acts on {callback.monitor!r}, which is "
                "computed from the protected examples without noise. Monitor "
                "a metric of other data, such as 'val_loss'."
            )
        if isinstance(callback, keras_callbacks.TerminateOnNaN):
            yield (
                "The callback TerminateOnNaN acts on the loss of the "
                "protected examples. Leave it out: samples whose gradients "
                "are not finite count as zero."
            )


def _execution_problems(model, length):
    """Yield a sentence if a call of the train function passes an epoch."""
    # The data set for several replicas is endless, so it ends no call.
    steps_per_call = model.steps_per_execution
    has_replicas = model.distribute_strategy.num_replicas_in_sync > 1
    if has_replicas and length % steps_per_call:
        yield (
            "On several replicas steps_per_execution must divide the "
            f"{length} steps of an epoch, so that no call makes an update "
            f"beyond it. Received: steps_per_execution={steps_per_call}."
        )


def _put_budget_first(aggregation, callbacks):
    """Return the callbacks with the one that logs epsilon before all others."""
    budgets = [
        c for c in as_callback_list(callbacks) if isinstance(c, PrivacyBudget)
    ]
    if len(budgets) != 1 or budgets[0].mechanism != aggregation.mechanism:
        raise ValueError(
            "A callback enforces the budget. Expected fit(..., callbacks="
            "[private.callback]) with the PrivateTraining of the gradient "
            f"mode, once. Received: {budgets or callbacks!r}"
        )
    return with_first(budgets[0], callbacks)


def _warn_of_shared_data(batches, data, what):
    """Warn of data beside training that are the protected examples."""
    training_parts = getattr(batches.source, "given", ())
    parts = keras.tree.flatten(data if data is not None else ())
    if data is batches or any(
        _shares_memory(a, b) for a in training_parts for b in parts
    ):
        warn_user(
            f"The {what} the protected examples: figures that are computed "
            "from them are not private, and nothing may be chosen by them."
        )


def _shares_memory(one, other):
    """Whether two containers of examples have any of their memory in common."""
    if one is other:
        return one is not None
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    try:
        max_work: Any = 10_000
        return np.shares_memory(one, other, max_work=max_work)
    except np.exceptions.TooHardError:
        return False
