"""Strategies of `tf.distribute`: what they must have, and several workers.

Private names in use: `Model._distribute_strategy`,
`TFOptimizer._distribution_strategy`, `StrategyExtended._in_multi_worker_mode`,
`PerReplicaSpec._value_specs`, `TFEpochIterator._distributed_dataset`.
"""

import tensorflow as tf

from keras_pergrad.keras_internals.models.optimizers import nested_optimizers

SUPPORTED_STRATEGIES = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.OneDeviceStrategy,
)
OUTSIDE_SCOPE = (
    "Under a tf.distribute strategy everything that is trained must belong to "
    "it, but {what} was created outside of its scope. Create the model, its "
    "optimizer and its metrics inside `with strategy.scope():`, and compile "
    "there, too."
)


def require_supported(strategy):
    """Refuse a strategy that the gradient modes are not known to support."""
    if isinstance(strategy, SUPPORTED_STRATEGIES):
        return
    raise ValueError(
        "PerGradModel can be trained under MirroredStrategy, "
        "MultiWorkerMirroredStrategy or OneDeviceStrategy, or without a "
        "strategy. Received: a model created in the scope of "
        f"{type(strategy).__name__}, which has not been tested. Create the "
        "model in the scope of one of these, or use keras.Model."
    )


def require_inside(model, variables=None, optimizer=None):
    """Refuse what was created outside of the scope of the strategy.

    Args:
        model: the compiled model, with its metrics.
        variables: what is trained, by default all that is trainable.
        optimizer: what trains it, by default the model's.
    """
    strategy = model._distribute_strategy
    context = tf.distribute.get_replica_context()
    if context is not None and context.num_replicas_in_sync > 1:
        strategy = tf.distribute.get_strategy()
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return
    if variables is None:
        variables = model.trainable_variables
    for nested in nested_optimizers(optimizer or model.optimizer):
        owner = getattr(nested, "_distribution_strategy", strategy)
        if owner is not strategy:
            what = f"the optimizer {nested.name!r}"
            raise ValueError(OUTSIDE_SCOPE.format(what=what))
    variables_by_kind = {
        "weight": variables,
        "metric's variable": model.metrics_variables,
    }
    for kind, variables in variables_by_kind.items():
        for variable in variables:
            value = variable.value
            if not strategy.extended.variable_created_in_scope(value):
                what = f"the {kind} {variable.path!r}"
                raise ValueError(OUTSIDE_SCOPE.format(what=what))


def require_built(optimizer):
    """Refuse an optimizer that one of several replicas would have to build."""
    if optimizer is None or optimizer.built:
        return
    raise ValueError(
        "A step on several replicas expected weights and an optimizer that "
        f"exist before it begins. Received: the optimizer {optimizer.name!r}, "
        "which has no variables yet. Inside `with strategy.scope():`, build "
        "the model (call it on a batch, or give it an Input), and then its "
        "optimizer: optimizer.build(model.trainable_variables)."
    )


def on_several_workers(strategy):
    """Whether the replicas are on several machines or processes."""
    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and strategy.extended._in_multi_worker_mode()
    )


def first_replica_part(strategy, iterator):
    """Return the first local replica's part of a batch, or its specs."""
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
