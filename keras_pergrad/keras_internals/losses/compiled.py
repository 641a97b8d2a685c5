"""The compiled losses of a model.

Private names in use: `Model._compile_loss`, `_compile_metrics`,
`_loss_tracker`, `CompileLoss._flat_losses`, `_metrics`, `Loss._dtype`,
`keras.src.trainers.compile_utils.CompileLoss`.
"""

import contextlib

import keras
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileLoss

from keras_pergrad.keras_internals.models.parts import (
    entries_of,
    loss_tracker,
    patched_attribute,
    patched_attributes,
)

#: What `compile` sets and a model's loss and metrics read.
_COMPILED = ("_compile_loss", "_compile_metrics", "_loss_tracker", "compiled")


def compile_loss_of_samples(model, loss, owner):
    """Compile a model inside a step, with one loss of outputs of shape (n,)."""
    # `compile` itself would create metrics' variables while the step is traced.
    # The model may return a tuple that begins with these outputs.
    compiled = _FirstOutputLoss(loss, None)
    example = tf.zeros([1], keras.config.floatx())
    compiled.build(example, example)
    model._compile_loss = compiled
    model._compile_metrics = None
    model._loss_tracker = loss_tracker(owner)
    model.compiled = True


class _FirstOutputLoss(CompileLoss):
    """A compiled loss of the first output alone."""

    def call(self, y_true, y_pred, sample_weight=None):
        if isinstance(y_pred, tuple):
            y_pred = y_pred[0]
        return super().call(y_true, y_pred, sample_weight)


def compile_like(model, other):
    """Give a model, inside, what another was compiled with."""
    return patched_attributes(
        [(model, name, getattr(other, name)) for name in _COMPILED]
    )


def compiled_with(model, loss):
    """Give a model, inside, a loss as `compile` takes it, and nothing else."""
    names = getattr(model, "output_names", None)
    compiled = CompileLoss(loss, None, output_names=names)
    patches = [(model, "_compile_loss", compiled), (model, "compiled", True)]
    if not model.compiled:  # `compile` creates the attribute
        patches.append((model, "optimizer", None))
    return patched_attributes(patches)


def metrics_outside_compile(model):
    """List a model's metrics without those of its own `compile`."""
    compiled = [vars(model).get(name) for name in _COMPILED]
    compiled_ids = {id(metric) for metric in compiled}
    return [
        metric for metric in model._metrics if id(metric) not in compiled_ids
    ]


@contextlib.contextmanager
def losses_replaced(compiled, losses):
    """Let a built compiled loss call other losses, and update no means."""
    entries = [
        entry._replace(loss=loss)
        for entry, loss in zip(compiled._flat_losses, losses)
    ]
    with (
        patched_attribute(compiled, "_flat_losses", entries),
        no_running_means(compiled),
    ):
        yield


def no_running_means(compiled):
    """Let a compiled loss, or None, update no running means of its parts."""
    entries = entries_of(compiled)
    if not entries:
        return contextlib.nullcontext()
    return patched_attribute(compiled, "_metrics", [None] * len(entries))


def losses_computing_in(compiled, dtype):
    """Let a compiled loss, or None, compute in a dtype."""
    losses = [] if compiled is None else [compiled]
    losses += [entry.loss for entry in entries_of(compiled)]
    return patched_attributes(
        [(loss, "_dtype", dtype) for loss in losses if hasattr(loss, "_dtype")]
    )
