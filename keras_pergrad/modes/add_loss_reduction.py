"""The reduction of losses that layers add: sum over the batch, or mean."""

import functools

import keras
import tensorflow as tf

from keras_pergrad.keras_internals import draws, replicas
from keras_pergrad.keras_internals.batches import map_tensors, sample_count
from keras_pergrad.keras_internals.loss_tensors import loss_tensors
from keras_pergrad.keras_internals.losses import additional_sums, noting_losses
from keras_pergrad.keras_internals.model_parts import (
    call_model,
    training_inside,
)
from keras_pergrad.keras_internals.op_marks import same_for_all
from keras_pergrad.samples.sample_replay import Recorded, Replay

LOOKED_AT = 8  # samples at a time; one alone may add a loss of zero


def kinds(model, x, training=True):
    """Return for each `add_loss` term its kind, as for `by_kind`."""
    # A zero does not tell, so samples are tried until every term was nonzero.
    # If a term is zero for all, it may have a gradient: then its reducing ops
    # tell. Nothing that the model assigns here is kept.
    # Layers cannot wait for other replicas in a loop.
    together = bool(replicas.waiting(model))
    size = None if together else LOOKED_AT
    look = functools.partial(_look, model, x, training, size)
    seen = look(0)
    if seen is None:
        return []
    if not together:
        n = sample_count(x)
        _, seen = tf.while_loop(
            lambda start, seen: (start < n) & tf.reduce_any(seen[0] == 0),
            lambda start, seen: (
                start + LOOKED_AT,
                tf.where(seen[0] > 0, seen, look(start)),
            ),
            (tf.constant(LOOKED_AT), seen),
            parallel_iterations=1,
        )
    # A replica without such a sample gets the answer from the others.
    return [same_for_all(_agreed(kind)) for kind in tf.unstack(seen[1])]


def _agreed(kind):
    is_sum = tf.cast(replicas.any_of(kind > 0.5), kind.dtype)
    is_neither = replicas.any_of(tf.math.is_nan(kind))
    return tf.where(is_neither, float("nan"), is_sum)


def _look(model, x, training, size, start):
    """Return which terms show their kind, and the kinds, (2, terms)."""
    # At the end of the batch `start` is moved back, so that the number of
    # samples is the same.
    n = sample_count(x)
    # Here, since XLA does not see a constant from outside of a loop.
    size = n if size is None else tf.minimum(n, size)
    rows = tf.minimum(start, n - size) + tf.range(size)
    few = map_tensors(lambda t: tf.gather(t, rows), x)
    drawn, added = [], []
    with (
        keras.StatelessScope(collect_losses=True),
        draws.recording(drawn.append),
        noting_losses(model, added),
    ):
        outputs = loss_tensors(call_model(model, few, training))
    if not added:
        return None
    inside = training_inside(model, training)
    recorded = Recorded(model, (few,), {}, inside, drawn, outputs, added)
    replay = Replay(recorded, list(model.trainable_variables))
    terms = additional_sums(replay, size)
    # A mean over no samples is NaN.
    known = [tf.logical_and(value != 0, n > 0) for value, _ in terms]
    kinds = [kind for _, kind in terms]
    return tf.stack([tf.cast(known, tf.float32), kinds])
