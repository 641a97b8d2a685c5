"""The loss of a batch as Keras reduces it, and what it depends on.

Private names in use: `keras.src.losses.loss.unscale_loss_for_distribution`,
`Model._aggregate_additional_loss`, `CompileLoss._flat_losses`, and of
`keras.src.losses.losses` the function `convert_binary_labels_to_hinge`.
"""

import collections
import contextlib
import dataclasses
import functools
import threading
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.src.losses import losses as keras_losses
from keras.src.losses.loss import unscale_loss_for_distribution

from keras_pergrad.common.batches import only_if
from keras_pergrad.common.refusal_messages import not_one_number
from keras_pergrad.keras_internals.data.views import Views, rows_of_views
from keras_pergrad.keras_internals.graphs.gradients import (
    SAME_FOR_ALL,
    WHOLE_LOSS,
    marked,
)
from keras_pergrad.keras_internals.models.parts import (
    compiled_loss,
    compute_loss,
    entries_of,
    layers_of,
    logits_behind,
    loss_tracker,
    own_losses,
    patched_attribute,
    shared_patch,
)
from keras_pergrad.keras_internals.replicas import replicas


def total_loss(model, x, y, y_pred, sample_weight, training=True) -> Any:
    """Return the number that Keras minimises, all penalties included.

    Its losses are marked, and hinge losses treat all samples alike, so that
    each sample has a part of its own in it.
    """
    aggregate = model._aggregate_additional_loss

    def marking_aggregate(loss):
        return marked(aggregate(loss), WHOLE_LOSS)

    name = "_aggregate_additional_loss"
    with (
        consistent_hinge_labels(),
        recording_values(model, {}),
        patched_attribute(model, name, marking_aggregate),
    ):
        return loss_of_batch(
            model,
            x,
            y,
            y_pred=y_pred,
            sample_weight=sample_weight,
            training=training,
        )


def loss_of_batch(model, x, y, y_pred, sample_weight, training=True) -> Any:
    """Return the number that Keras minimises, exact to the bit."""
    if isinstance(y_pred, Views):
        x, y, y_pred, sample_weight = rows_of_views(
            x, y, y_pred, sample_weight=sample_weight
        )
    loss: Any = compute_loss(model, x, y, y_pred, sample_weight, training)
    if loss is not None and loss.shape == (0,):
        # Keras reduces no loss of a batch without samples.
        loss = ops.sum(loss)
    if loss is None or loss.shape.rank not in (0, None):
        shape = None if loss is None else tuple(loss.shape)
        raise ValueError(not_one_number(f"a loss of shape {shape}"))
    return loss


def recording_values(model, recorded):
    """Put the value of each compiled loss, marked, into a dict by its index."""
    compiled = compiled_loss(model)

    def recording(loss, index):
        def record(*args):
            recorded[index] = marked(loss(*args), WHOLE_LOSS)
            return recorded[index]

        return record

    entries = [
        entry._replace(loss=recording(entry.loss, k))
        for k, entry in enumerate(entries_of(compiled))
    ]
    if not entries:
        return contextlib.nullcontext()
    return patched_attribute(compiled, "_flat_losses", entries)


def consistent_hinge_labels():
    """Let Keras's hinge losses take each target of 0 for -1.

    Keras does so only if all targets of a batch are 0 or 1, so that a sample's
    loss depends on the others. A batch with a 0 and, say, a -1 is refused.
    """

    def convert_labels(y_true):
        zero = ops.equal(y_true, 0)
        others = ops.logical_not(ops.logical_or(zero, ops.equal(y_true, 1)))
        is_ambiguous = ops.logical_and(ops.any(zero), ops.any(others))
        is_consistent = marked(ops.logical_not(is_ambiguous), SAME_FOR_ALL)
        with only_if(is_consistent, [_LABELS]):
            # XLA drops assertions, but not NaN.
            negative = tf.where(is_consistent, -1.0, float("nan"))
            return ops.where(zero, ops.cast(negative, y_true.dtype), y_true)

    name = "convert_binary_labels_to_hinge"
    return patched_attribute(keras_losses, name, convert_labels)


def components(variable):
    """Return the `tf.Variable`s of a Keras variable, one per local replica."""
    strategy = tf.distribute.get_strategy()
    return strategy.experimental_local_results(variable.value)


def track_loss(model, loss, samples, *, whole=False):
    """Update Keras's mean `loss`; `whole`: the loss is of all replicas."""
    if not whole:
        loss = unscale_loss_for_distribution(loss)
    # A mean over no sample is NaN, and would stay in the running mean.
    mean: Any = loss
    loss = tf.where(samples > 0, mean, tf.zeros_like(mean))
    tracker = loss_tracker(model)
    replicas.update(
        tracker.variables,
        lambda: tracker.update_state(loss, sample_weight=samples),
    )


def additional_losses(model):
    """List the last `add_loss` terms of layers, without regularisers."""
    return [loss for layer in layers_of(model) for loss in own_losses(layer)]


@contextlib.contextmanager
def recording_losses(model, recorded, owners=None):
    """Append the losses given to `add_loss` inside to a list, in order.

    `owners`: a list to which the layer of each is appended.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            recorder = stack.enter_context(
                shared_patch(
                    layer, "add_loss", functools.partial(_LossRecorder, layer)
                )
            )
            targets = recorder.targets[threading.get_ident()]
            targets.append((recorded, owners))
            stack.callback(targets.pop)
        yield


@dataclasses.dataclass(eq=False)
class _LossRecorder:
    """The `add_loss` of a layer while its losses are recorded."""

    layer: Any
    original: Any
    #: Thread → the lists for its losses and for their owners.
    targets: Any = dataclasses.field(
        default_factory=functools.partial(collections.defaultdict, list)
    )

    def __call__(self, loss):
        losses = tf.nest.flatten(loss)
        for recorded, owners in self.targets[threading.get_ident()]:
            recorded.extend(losses)
            if owners is not None:
                owners.extend([self.layer] * len(losses))
        # Keras 3.8 counts a list as often as it is long in a StatelessScope.
        for single in losses:
            self.original(single)


_LABELS = (
    "The targets of a hinge loss are 0 and 1, or -1 and 1. A batch has a "
    "target of 0 and one that is neither 0 nor 1, so that what 0 means depends "
    "on the batch. Give all targets in one form, and leave samples out by a "
    "sample weight of 0."
)


def loss_tensors(outputs):
    """Return all tensors of the outputs, flat, then the logits behind them.

    Through these a loss may depend on a layer's output. If Keras's
    crossentropies find the logits behind a softmax or sigmoid output, they take
    these, so the loss may not depend on the output itself.
    """
    flat = [t for t in tf.nest.flatten(outputs) if tf.is_tensor(t)]
    logits = [_logits_of(t, "Softmax", "Sigmoid") for t in flat]
    return flat + [t for t in logits if t is not None]


def read_by_crossentropy(tensor, activation):
    """Return what Keras's crossentropy reads, and whether these are logits.

    It takes the logits that any activation left at an output, or those in
    front of an op of its own `activation` ("Softmax", "Sigmoid"), whatever
    its `from_logits` says. In another type than the loss's it finds none.
    """
    if tensor.dtype != keras.config.floatx():
        return tensor, False
    logits = _logits_of(tensor, activation)
    # The identity drops the logits that an earlier activation left there.
    return (tensor, False) if logits is None else (tf.identity(logits), True)


def _logits_of(tensor, *activations):
    """Return the logits behind an output, or in front of one's op, or None."""
    logits = logits_behind(tensor)
    if logits is not None:
        return logits
    if tf.executing_eagerly() or not isinstance(tensor, tf.Tensor):
        return None
    return tensor.op.inputs[0] if tensor.op.type in activations else None
