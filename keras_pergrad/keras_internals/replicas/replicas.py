"""The replicas of a `tf.distribute` strategy, each with a part of the batch.

Every replica computes the sums over its own samples. Here they are added up
once, before the optimizer sees them. Each replica then has the result of a
single device for the whole batch. Without several replicas there is nothing to
add up.

Private names in use: `Model._distribute_strategy`,
`tensorflow.python.distribute.distribute_lib._DefaultReplicaThreadMode`,
`tensorflow.python.distribute.distribute_lib._push_per_thread_mode`,
`tensorflow.python.distribute.distribute_lib._pop_per_thread_mode`;
`TFOptimizer._all_reduce_sum_gradients`.
"""

import contextlib

import keras
import tensorflow as tf

from keras_pergrad.common.batches import map_tensors, pack_like
from keras_pergrad.keras_internals.models.optimizers import nested_optimizers
from keras_pergrad.keras_internals.models.parts import (
    layers_of,
    shared_patch,
)
from keras_pergrad.keras_internals.replicas.strategies import (
    OUTSIDE_SCOPE,
    on_several_workers,
    require_supported,
)


def scope_of(model):
    """Return the scope of a model's strategy, if any; refuse unknown ones."""
    strategy = model._distribute_strategy
    if (
        tf.distribute.has_strategy()
        and tf.distribute.in_cross_replica_context()
    ):
        current = tf.distribute.get_strategy()
        if strategy is not current:
            raise ValueError(OUTSIDE_SCOPE.format(what=f"model {model.name!r}"))
    if strategy is None:
        return contextlib.nullcontext()
    require_supported(strategy)
    if tf.distribute.get_strategy() is strategy:
        return contextlib.nullcontext()
    return strategy.scope()


@contextlib.contextmanager
def out_of_scope():
    """Leave the scope of a strategy, as if on the first replica alone."""
    # In the scope, outside of a replica, Keras divides losses by the number of
    # replicas.
    if not tf.distribute.in_cross_replica_context():
        yield
        return
    with alone():
        yield


@contextlib.contextmanager
def alone():
    """Act as on one device, so that layers wait for no other replica."""
    from tensorflow.python.distribute import distribute_lib

    mode = distribute_lib._DefaultReplicaThreadMode()
    distribute_lib._push_per_thread_mode(mode)
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()


def as_logs(logs):
    """Return what a step returns, as Keras reduces it over the replicas."""
    # On several workers Keras also takes the mean over the first axis, which a
    # scalar does not have.
    if not has_several_replicas() or not on_several_workers(
        tf.distribute.get_strategy()
    ):
        return logs
    return tf.nest.map_structure(lambda t: tf.reshape(t, [1]), logs)


def has_several_replicas():
    """Whether this code is traced or run for one of several replicas."""
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def sum_over_replicas(values):
    """Return the sum over all replicas of each tensor, on every replica."""
    tensors = [t for t in tf.nest.flatten(values) if t is not None]
    if not has_several_replicas() or not tensors:
        return values
    context = tf.distribute.get_replica_context()
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)
    return pack_like(values, summed)


def gather_rows(values):
    """Return on each replica the rows, (n, ...), of all, concatenated."""
    if values is None or not has_several_replicas():
        return values
    context = tf.distribute.get_replica_context()
    # TensorFlow crashes if no replica has a row, so each sends one more.
    padding = [[0, 1]] + [[0, 0]] * (values.shape.rank - 1)
    rows = context.all_gather(tf.pad(values, padding), axis=0)
    is_row = tf.pad(tf.ones(tf.shape(values)[:1], values.dtype), [[0, 1]])
    return tf.boolean_mask(rows, context.all_gather(is_row, axis=0) > 0)


def from_first_replica(values):
    """Return the list that the first replica has, on every replica."""
    if not has_several_replicas():
        return values
    context = tf.distribute.get_replica_context()
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    return sum_over_replicas(
        map_tensors(lambda t: tf.where(is_first, t, tf.zeros_like(t)), values)
    )


def zero_without_samples(samples, values):
    """Return the values, or zeros on a replica without a sample."""
    if not has_several_replicas():
        return values
    return map_tensors(
        lambda t: tf.where(
            samples > 0, t, tf.zeros_like(tf.convert_to_tensor(t))
        ),
        values,
    )


class PostponedUpdates(keras.StatelessScope):
    """A scope that holds back assignments and `add_loss` terms of layers."""

    # Replicas are threads that take turns wherever a layer assigns a shared
    # variable. Without the scope, one's `losses` would go to another.

    def __init__(self):
        super().__init__(collect_losses=True)
        self._updated_variables = {}

    def add_update(self, update):
        self._updated_variables[id(update[0])] = update[0]
        super().add_update(update)

    def assign(self, samples):
        """Assign what was held back; keep the old where there is no sample."""
        # Only statistics are floats, and those of no sample are NaN.
        for variable in self._updated_variables.values():
            value = self.get_current_value(variable)
            if value.dtype.is_floating:
                old = tf.convert_to_tensor(variable.value)
                value = tf.where(samples > 0, value, tf.cast(old, value.dtype))
            variable.assign(value)


def synchronizing_layers(model):
    """List layers in which replicas wait for each other, unfit for loops."""
    if not has_several_replicas():
        return []
    return [
        layer
        for layer in layers_of(model)
        if getattr(layer, "synchronized", False) and layer.trainable
    ]


def shares(gradients):
    """Return what adds up over the replicas to gradients of all of them.

    Any optimizer of Keras adds up what its replicas apply, and has no public
    way not to.
    """
    if not has_several_replicas():
        return gradients
    share = 1 / tf.distribute.get_replica_context().num_replicas_in_sync
    return map_tensors(lambda g: tf.math.scalar_mul(share, g), gradients)


def run_if(condition, function):
    """Call `function()` on each replica if a condition, equal on all, holds."""
    # The function must not use tensors of the calling replica, and its result
    # is dropped.
    if not has_several_replicas():
        tf.cond(condition, function, lambda: None)
        return

    # An all-reduce inside is only allowed in a condition of all replicas
    # together.
    def run_on_all(strategy, condition):
        local_condition = strategy.experimental_local_results(condition)[0]

        def on_all():
            strategy.run(function)

        tf.cond(local_condition, on_all, lambda: None)

    context = tf.distribute.get_replica_context()
    context.merge_call(run_on_all, args=(condition,))


def apply(optimizer, gradients, variables):
    """Apply gradients that are summed over all replicas already."""
    if not has_several_replicas():
        optimizer.apply(gradients, variables)
        return
    with contextlib.ExitStack() as stack:
        # Whichever inner optimizer applies a gradient would sum it again.
        for nested in nested_optimizers(optimizer):
            stack.enter_context(
                shared_patch(
                    nested, "_all_reduce_sum_gradients", lambda _: list
                )
            )
        optimizer.apply(gradients, variables)


def additions(variables, update):
    """Return what `update()` would add to each variable, which is a sum.

    The variables of a metric live in one of two ways. In recent versions of
    Keras each replica has its own value, and reading outside of the replicas
    adds them up. In older versions all replicas share one value, and their
    assignments are added up. Keras lets each replica assign the old value plus
    its part, so the old value is counted once per replica. Here it is counted
    once.
    """
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
            zeros = tf.zeros_like(old)
            old = tf.where(is_first, old, zeros)
            if whole:
                value = tf.where(is_first, value, zeros)
        variable.assign(old + value)


def update(variables, function, whole=False):
    """Call `function()`, which updates metrics with these variables."""
    if has_several_replicas():
        add(variables, additions(variables, function), whole)
    else:
        function()
