"""Which of the losses that layers add are sums over the batch, which means."""

import keras
import tensorflow as tf

from keras_pergrad import draws, replicas
from keras_pergrad.carriers import carriers
from keras_pergrad.losses import additional_sums, noting_losses
from keras_pergrad.modes.base import call_model, training_inside
from keras_pergrad.replay import Recorded, Replay
from keras_pergrad.tape import first_tensor

LOOKED_AT = 8  # samples; one alone may add a loss of zero


def kinds(model, x, training=True):
    """Whether each `add_loss` term is a sum over the samples, or a mean.

    Nothing that the model assigns meanwhile is kept.

    Args:
        model: a built `keras.Model`.
        x: a batch; only its first samples are looked at.
        training: whether its layers are called for training.

    Returns:
        A list of boolean scalars, in the order of the calls of `add_loss`.
    """
    n = tf.minimum(tf.shape(first_tensor(x))[0], LOOKED_AT)
    first = tf.nest.map_structure(
        lambda t: None if t is None else tf.gather(t, tf.range(n)), x
    )
    drawn, added = [], []
    with (
        keras.StatelessScope(collect_losses=True),
        draws.recording(drawn.append),
        noting_losses(model, added),
    ):
        outputs = call_model(model, first, training)
    if not added:
        return []
    inside = training_inside(model, training)
    recorded = Recorded(
        model, (first,), {}, inside, drawn, carriers(outputs), added
    )
    replay = Replay(recorded, list(model.trainable_variables))
    found = [is_sum for _, is_sum in additional_sums(replay, n)]
    # A replica without a sample learns it from the others.
    return [replicas.any_of(tf.logical_and(is_sum, n > 0)) for is_sum in found]
