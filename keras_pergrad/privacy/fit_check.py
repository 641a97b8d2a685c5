"""Checks and preparations before private training begins."""

import json
import warnings
from typing import Any

import keras
import numpy as np

from keras_pergrad.common.registry import serialize
from keras_pergrad.keras_internals.callback_list import listed, with_first
from keras_pergrad.privacy import model_check
from keras_pergrad.privacy.budget import PrivacyBudget
from keras_pergrad.privacy.ledger import Ledger
from keras_pergrad.privacy.private_batches import PrivateBatches


def prepare(aggregation, model, arguments):
    """Check a `fit` before it begins, and set the data that it trains on."""
    batches = _batches(aggregation, arguments)
    _require_unchanged(aggregation, model)
    callbacks = arguments.get("callbacks")
    refusals = [
        *_of_arguments(arguments),
        *_of_callbacks(callbacks),
        *_of_executions(model, len(batches)),
        *model_check.problems(model, batches, aggregation.public_layers),
    ]
    if refusals:
        lines = "\n".join(f"- {text}" for text in refusals)
        raise ValueError(f"This training would not be private:\n{lines}")
    state = model.aggregation_state
    state.proof = state.proof.and_of(model_check.proof_of(model, batches))
    _warn_of_same_data(batches, arguments.get("validation_data"))
    arguments["callbacks"] = _counting_first(aggregation, callbacks)
    strategy = model.distribute_strategy
    arguments["shuffle"] = False  # Batches are drawn; Keras would warn.
    arguments["x"] = batches.dataset(model.aggregation_state, strategy)
    if strategy.num_replicas_in_sync > 1:
        arguments["steps_per_epoch"] = len(batches)


def clipping_json(clipping):
    """Return the clipping and noise as JSON, without the seed."""
    config: Any = serialize(clipping)
    inside = {k: v for k, v in config["config"].items() if k != "seed"}
    return json.dumps({config["class_name"]: inside}, sort_keys=True)


def _batches(aggregation, arguments):
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
            "The batches are of another PrivateTraining than the gradient "
            f"mode. Expected {aggregation.mechanism}. Received: "
            f"{batches.mechanism}. Call compile(gradient_mode="
            "private.gradient_mode) and private.batches() of the same one."
        )
    return batches


def _require_unchanged(aggregation, model):
    state = model.aggregation_state
    known = isinstance(state, Ledger) and (
        state.mechanism == aggregation.mechanism
        and clipping_json(aggregation.clipping)
        == aggregation.mechanism.clipping
    )
    if not known:
        raise ValueError(
            "What clips and adds noise is not what is accounted for. Expected "
            f"{aggregation.mechanism.clipping}. Received: "
            f"{clipping_json(aggregation.clipping)}. Make another "
            "PrivateTraining and compile with its gradient_mode: the ledger "
            "goes on."
        )


def _of_arguments(arguments):
    if arguments.get("validation_split"):
        yield (
            "`validation_split` takes validation data from the examples that "
            "are protected. Split them before, and give validation_data."
        )
    for name in ("y", "sample_weight"):
        if arguments.get(name) is not None:
            yield f"`{name}` belongs into private.batches(x, y, sample_weight)."
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
                f"`{name}` is that of PrivateTraining. Received: "
                f"{name}={arguments[name]!r}. Leave it out."
            )


def _of_callbacks(callbacks):
    """Yield a sentence for each callback that acts on training data."""
    kinds = keras.callbacks
    for callback in listed(callbacks):
        name = type(callback).__name__
        acts = isinstance(
            callback, (kinds.EarlyStopping, kinds.ReduceLROnPlateau)
        ) or (
            isinstance(callback, kinds.ModelCheckpoint)
            and callback.save_best_only
        )
        if acts and not callback.monitor.startswith("val_"):
            yield (
                f"The callback {name} acts on {callback.monitor!r}, which is "
                "computed from the protected examples without noise. Monitor "
                "a metric of other data, such as 'val_loss'."
            )
        if isinstance(callback, kinds.TerminateOnNaN):
            yield (
                "The callback TerminateOnNaN acts on the loss of the "
                "protected examples. Leave it out: samples whose gradients "
                "are not finite count as zero."
            )


def _of_executions(model, length):
    """Yield a sentence if a call of the train function passes an epoch."""
    # Batches for several replicas have no end.
    at_once = model.steps_per_execution
    several = model.distribute_strategy.num_replicas_in_sync > 1
    if several and length % at_once:
        yield (
            "On several replicas steps_per_execution must divide the "
            f"{length} steps of an epoch, so that no call makes an update "
            f"beyond it. Received: steps_per_execution={at_once}."
        )


def _counting_first(aggregation, callbacks):
    """Return the callbacks with the one that logs epsilon before all others."""
    own = [c for c in listed(callbacks) if isinstance(c, PrivacyBudget)]
    if len(own) != 1 or own[0].mechanism != aggregation.mechanism:
        raise ValueError(
            "The budget is kept by a callback. Expected fit(..., callbacks="
            "[private.callback]) with the PrivateTraining of the gradient "
            f"mode, once. Received: {own or callbacks!r}"
        )
    return with_first(own[0], callbacks)


def _warn_of_same_data(batches, validation_data):
    own = getattr(batches.source, "given", ())
    given = [part for part in keras.tree.flatten(validation_data or ())]
    if any(_is_same(a, b) for a in own for b in given):
        warnings.warn(
            "The validation data are the protected examples: figures that "
            "are computed from them are not private, and nothing may be "
            "chosen by them.",
            stacklevel=7,
        )


def _is_same(one, other):
    """Whether two containers of examples have any of their memory in common."""
    if one is other:
        return one is not None
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    try:
        work: Any = 10_000
        return np.shares_memory(one, other, max_work=work)
    except np.exceptions.TooHardError:
        return False
