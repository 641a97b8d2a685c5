"""The compiled losses of models: others in their place, or made aside.

Private names in use: `Model._compile_loss`, `_compile_metrics`,
`_loss_tracker`, `CompileLoss._flat_losses`, `_metrics`, `Loss._dtype`,
`keras.src.trainers.compile_utils.CompileLoss`.
"""

import contextlib

import keras
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileLoss

from keras_pergrad.common.patching import attribute
from keras_pergrad.keras_internals.model_parts import (
    entries_of,
    loss_tracker,
)

#: What `compile` sets and a model's loss and metrics read.
_COMPILED = ("_compile_loss", "_compile_metrics", "_loss_tracker", "compiled")


def compile_loss_of_samples(model, loss, owner):
    """Compile a model inside a step, with one loss of outputs of shape (n,)."""
    # `compile` would create variables of metrics while the step is traced. The
    # model may return a tuple that begins with these outputs.
    compiled = _OfFirst(loss, None)
    one = tf.zeros([1], keras.config.floatx())
    compiled.build(one, one)
    model._compile_loss = compiled
    model._compile_metrics = None
    model._loss_tracker = loss_tracker(owner)
    model.compiled = True


class _OfFirst(CompileLoss):
    """A compiled loss of the first output, which does not look at others."""

    def call(self, y_true, y_pred, sample_weight=None):
        if isinstance(y_pred, tuple):
            y_pred = y_pred[0]
        return super().call(y_true, y_pred, sample_weight)


@contextlib.contextmanager
def compiled_as(model, other):
    """Let a model be compiled as another is."""
    with contextlib.ExitStack() as stack:
        for name in _COMPILED:
            value = getattr(other, name)
            stack.enter_context(attribute(model, name, value))
        yield


def metrics_beside(model):
    """List a model's metrics but for those of its own `compile`."""
    compiled = [vars(model).get(name) for name in _COMPILED]
    known = {id(metric) for metric in compiled}
    return [metric for metric in model._metrics if id(metric) not in known]


@contextlib.contextmanager
def losses_replaced(compiled, losses):
    """Let a built compiled loss call others, and update no running means."""
    entries = [
        entry._replace(loss=loss)
        for entry, loss in zip(compiled._flat_losses, losses)
    ]
    with (
        attribute(compiled, "_flat_losses", entries),
        attribute(compiled, "_metrics", [None] * len(entries)),
    ):
        yield


@contextlib.contextmanager
def no_running_means(compiled):
    """Let a compiled loss, or None, update no running means of its parts."""
    entries = entries_of(compiled)
    if not entries:
        yield
        return
    with attribute(compiled, "_metrics", [None] * len(entries)):
        yield


@contextlib.contextmanager
def losses_computing_in(compiled, dtype):
    """Let a compiled loss, or None, compute in a dtype."""
    losses = [] if compiled is None else [compiled]
    losses += [entry.loss for entry in entries_of(compiled)]
    with contextlib.ExitStack() as stack:
        for loss in losses:
            if hasattr(loss, "_dtype"):
                stack.enter_context(attribute(loss, "_dtype", dtype))
        yield
