"""The replicas of a `tf.distribute` strategy, each with a part of the batch.

Every replica finds the sums of its own samples. Here they are added up once,
before the optimizer sees them. Each replica then holds the result of a single
device for the whole batch. Except on one of several replicas, these functions
do nothing.

Private names in use: `TFOptimizer._all_reduce_sum_gradients`.
"""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.batches import map_tensors, refilled
from keras_pergrad.keras_internals.model_parts import layers_of
from keras_pergrad.keras_internals.optimizers import all_of


def several():
    """Whether this code is traced or run for one of several replicas."""
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def total(values):
    """Return the sum over all replicas of each tensor, on every replica."""
    tensors = [t for t in tf.nest.flatten(values) if t is not None]
    if not several() or not tensors:
        return values
    context = tf.distribute.get_replica_context()
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)
    return refilled(values, summed)


def any_of(flag):
    """Whether a boolean scalar is true on some replica."""
    if not several():
        return flag
    return total(tf.cast(flag, tf.float32)) > 0


def gathered(values):
    """Return on each replica the rows, (n, ...), of all, concatenated."""
    if not several():
        return values
    context = tf.distribute.get_replica_context()
    # With an extra row on each: TensorFlow crashes if none has a row.
    padding = [[0, 1]] + [[0, 0]] * (values.shape.rank - 1)
    rows = context.all_gather(tf.pad(values, padding), axis=0)
    is_row = tf.pad(tf.ones(tf.shape(values)[:1], values.dtype), [[0, 1]])
    return tf.boolean_mask(rows, context.all_gather(is_row, axis=0) > 0)


def from_first_replica(values):
    """Return the list that the first replica has, on every replica."""
    if not several():
        return values
    context = tf.distribute.get_replica_context()
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    return total(
        map_tensors(lambda t: tf.where(is_first, t, tf.zeros_like(t)), values)
    )


def present(samples, values):
    """Return the values, or zeros on a replica without a sample."""
    if not several():
        return values
    return map_tensors(
        lambda t: tf.where(
            samples > 0, t, tf.zeros_like(tf.convert_to_tensor(t))
        ),
        values,
    )


class Postponed(keras.StatelessScope):
    """A scope that holds back assignments and `add_loss` terms of layers."""

    # Replicas take turns where a layer assigns a shared variable. Without the
    # scope, the `losses` of one replica would go to another.

    def __init__(self):
        super().__init__(collect_losses=True)
        self._updated = {}

    def add_update(self, update):
        self._updated[id(update[0])] = update[0]
        super().add_update(update)

    def assign(self, samples):
        """Assign what was held back; statistics of no sample are NaN."""
        for variable in self._updated.values():
            value = self.get_current_value(variable)
            if value.dtype.is_floating:
                old = tf.convert_to_tensor(variable.value)
                value = tf.where(samples > 0, value, tf.cast(old, value.dtype))
            variable.assign(value)


def waiting(model):
    """Return layers in which replicas wait for each other: not in a loop."""
    if not several():
        return []
    return [
        layer
        for layer in layers_of(model)
        if getattr(layer, "synchronized", False) and layer.trainable
    ]


def when(condition, function):
    """Call `function()` on each replica if a condition, equal on all, holds."""
    # It must not use tensors of the replica that calls this; returns nothing.
    if not several():
        tf.cond(condition, function, lambda: None)
        return

    # An all-reduce inside is only allowed in a condition of all replicas
    # together.
    def decide(strategy, condition):
        here = strategy.experimental_local_results(condition)[0]

        def on_all():
            strategy.run(function)

        tf.cond(here, on_all, lambda: None)

    context = tf.distribute.get_replica_context()
    context.merge_call(decide, args=(condition,))


def apply(optimizer, gradients, variables):
    """Call the optimizer with gradients that hold on all replicas."""
    if not several():
        optimizer.apply(gradients, variables)
        return
    with contextlib.ExitStack() as stack:
        # Whichever of them applies a gradient would add it up again.
        for part in all_of(optimizer):
            stack.enter_context(_summed_before(part))
        optimizer.apply(gradients, variables)


@contextlib.contextmanager
def _summed_before(optimizer):
    """Keep the optimizer from adding up the gradients a second time."""
    # The replicas take turns, so one may enter before another leaves. The last
    # one to leave restores the method.
    name = "_all_reduce_sum_gradients"
    method = vars(optimizer).get(name)
    if not isinstance(method, _AsGiven):
        method = _AsGiven()
        object.__setattr__(optimizer, name, method)
    method.users += 1
    try:
        yield
    finally:
        method.users -= 1
        if not method.users:
            object.__delattr__(optimizer, name)


class _AsGiven:
    """A substitute for a method that returns pairs; it returns its input."""

    def __init__(self):
        self.users = 0

    def __call__(self, gradients_and_variables):
        return list(gradients_and_variables)
