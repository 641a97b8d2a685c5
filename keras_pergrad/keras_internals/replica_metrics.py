"""The counts of metrics, added up over the replicas of a strategy.

The variables of a metric live in one of two ways. In recent versions of Keras
each replica has its own value, and reading outside of the replicas adds them
up. In older versions all replicas share one value, and their assignments are
added up. Keras lets each replica assign the old value plus its part, so the
old value is counted once per replica. Here it is counted once.
"""

import keras
import tensorflow as tf

from keras_pergrad.keras_internals import replicas


def additions(variables, update):
    """Return what `update()` would add to each variable, which is a sum."""
    zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in variables]
    with keras.StatelessScope(zeros) as scope:
        update()
    values: list = [scope.get_current_value(v) for v in variables]
    return [tf.convert_to_tensor(value) for value in values]


def add(variables, values, whole=False):
    """Add a replica's values to metrics; `whole`: of all replicas' samples."""
    context = tf.distribute.get_replica_context()
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    for variable, value in zip(variables, values):
        old = tf.convert_to_tensor(variable.value)
        value = tf.cast(value, old.dtype)
        if getattr(variable, "synchronization", None) != "on_read":
            nothing = tf.zeros_like(old)
            old = tf.where(is_first, old, nothing)
            if whole:
                value = tf.where(is_first, value, nothing)
        variable.assign(old + value)


def update(variables, function, whole=False):
    """Call `function()`, which updates metrics with these variables."""
    if replicas.several():
        add(variables, additions(variables, function), whole)
    else:
        function()
