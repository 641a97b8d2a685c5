"""The supported `tf.distribute` strategies, and checks of their scope.

Private names in use: `Model._distribute_strategy`,
`TFOptimizer._distribution_strategy`,
`StrategyExtended._in_multi_worker_mode`, `PerReplicaSpec._value_specs`,
`TFEpochIterator._distributed_dataset`,
`tensorflow.python.distribute.distribute_lib._DefaultReplicaThreadMode`,
`tensorflow.python.distribute.distribute_lib._push_per_thread_mode`,
`tensorflow.python.distribute.distribute_lib._pop_per_thread_mode`.
"""

import contextlib

import tensorflow as tf

from keras_pergrad.keras_internals.optimizers import all_of

SERVED = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)


def scope_of(model):
    """Return the scope of the model's strategy, if any; refuse unknown ones."""
    strategy = model._distribute_strategy
    if (
        tf.distribute.has_strategy()
        and tf.distribute.in_cross_replica_context()
    ):
        current = tf.distribute.get_strategy()
        if strategy is not current:
            raise ValueError(_OUTSIDE.format(what=f"model {model.name!r}"))
    if strategy is None:
        return contextlib.nullcontext()
    require_served(strategy)
    if tf.distribute.get_strategy() is strategy:
        return contextlib.nullcontext()
    return strategy.scope()


@contextlib.contextmanager
def out_of_scope():
    """Leave the scope of a strategy for a while: on the first replica alone."""
    if not tf.distribute.in_cross_replica_context():
        yield
        return
    from tensorflow.python.distribute import distribute_lib

    mode = distribute_lib._DefaultReplicaThreadMode()
    distribute_lib._push_per_thread_mode(mode)
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()


def require_served(strategy):
    """Refuse a strategy that the gradient modes are not known to support."""
    if isinstance(strategy, SERVED):
        return
    raise ValueError(
        "PerGradModel can be trained under MirroredStrategy, "
        "MultiWorkerMirroredStrategy or OneDeviceStrategy, or without a "
        "strategy. Received: a model created in the scope of "
        f"{type(strategy).__name__}, which has not been tested. Create the "
        "model in the scope of one of these, or use keras.Model."
    )


def require_inside(model):
    """Refuse what was created outside of the scope of the strategy."""
    strategy = model._distribute_strategy
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return
    for part in all_of(model.optimizer):
        owner = getattr(part, "_distribution_strategy", strategy)
        if owner is not strategy:
            what = f"the optimizer {part.name!r}"
            raise ValueError(_OUTSIDE.format(what=what))
    kinds = {
        "weight": model.trainable_variables,
        "metric's variable": model.metrics_variables,
    }
    for kind, variables in kinds.items():
        for variable in variables:
            value = variable.value
            if not strategy.extended.variable_created_in_scope(value):
                what = f"the {kind} {variable.path!r}"
                raise ValueError(_OUTSIDE.format(what=what))


@contextlib.contextmanager
def explaining(strategy):
    """Add advice to an error that is raised on one of several workers."""
    try:
        yield
    except _LOST as error:
        if on_several_workers(strategy):
            error.add_note(_WORKER_LOST)
        raise


def on_several_workers(strategy):
    """Whether the replicas are on several machines or processes."""
    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and strategy.extended._in_multi_worker_mode()
    )


def first_part(strategy, iterator):
    """Return the first local replica's part of a batch, or the specs of it."""
    # Nothing is taken from an iterator whose dataset knows the shapes: a
    # generator gives a batch only once.
    specs = tf.nest.map_structure(
        lambda spec: getattr(spec, "_value_specs", [spec])[0],
        iterator._distributed_dataset.element_spec,
    )
    if all(_has_rank(spec) for spec in tf.nest.flatten(specs)):
        return specs
    *_, batches = next(iter(iterator))
    return tf.nest.map_structure(
        lambda t: strategy.experimental_local_results(t)[0], next(batches)
    )


def _has_rank(spec):
    return isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None


def as_logs(logs):
    """Return what a step returns, as Keras reduces it over the replicas."""
    # On several workers Keras also takes the mean over the first axis, which a
    # scalar does not have.
    if not on_several_workers(tf.distribute.get_strategy()):
        return logs
    return tf.nest.map_structure(lambda t: tf.reshape(t, [1]), logs)


_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)
_WORKER_LOST = (
    "Another worker has most likely stopped; the error above or its own log "
    "says which and why. No worker can go on without it: start all of them "
    "again. keras.callbacks.BackupAndRestore goes on from the last epoch."
)
_OUTSIDE = (
    "Under a tf.distribute strategy everything that is trained must belong to "
    "it, but {what} was created outside of its scope. Create the model, its "
    "optimizer and its metrics inside `with strategy.scope():`, and compile "
    "there, too."
)
