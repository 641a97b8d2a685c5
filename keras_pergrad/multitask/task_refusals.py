"""The refusals of `ByTask`, and of measurements by task."""

_BATCH = "use gradient_mode='batch'"


def norm_aggregation(aggregation):
    """Say that tasks are not weighed by norms of samples."""
    return (
        "ByTask() expected `aggregation` to be a GramianAggregation, such as "
        "kpg.aggregations.UPGrad(), or 'mean': tasks are weighed by the inner "
        f"products of their gradients. Received: {aggregation!r}, which weighs "
        "samples by their norms; give it to Vectorized(aggregation=...)."
    )


def invalid_losses(losses):
    """Say what `losses` of `ByTask` may be."""
    return (
        "`losses` expected a list of different names of losses, such as "
        "['digit', 'add_loss/encoder'], or a dict of the names of tasks to a "
        "name or a list of names, such as {'box': ['corner', 'size'], "
        "'class': 'class'}; each loss stands in one task. "
        f"Received: losses={losses!r}"
    )


def overridden_loss(model):
    """Say that the tasks of a compute_loss of one's own are not known."""
    return (
        f"{type(model).__name__} overrides compute_loss, so that its tasks are "
        "not known. ByTask() expected the losses in compile(loss=...), one for "
        "each output, or in add_loss() of a layer, chosen by "
        "ByTask(losses=['add_loss/<name of the layer>', ...]). "
        f"Or {_BATCH}."
    )


PART_OF_BATCH = (
    "partial_sums() of ByTask expected the whole batch: the inner products are "
    "of the gradients of all of it. Received: a part, from a mode that calls "
    "it or overrides it. Override step() instead, or give "
    "Accumulated(inner=...) and replicas a ByTask whose partial_sums() is its "
    "own, which adds up each task's gradient."
)


def single_task(tasks, loss_names):
    """Say that one task has no conflicts."""
    return (
        "ByTask() expected at least two tasks. Received: "
        f"{len(tasks)}, {tasks}; the compiled losses are {loss_names}. "
        "Compile a loss for each output, name what a layer gives to add_loss "
        f"in `losses`, as in 'add_loss/<name of the layer>', or {_BATCH}."
    )


def unknown_loss(name, loss_names):
    """Say that a model has no loss of this name."""
    return (
        f"`losses` names {name!r}, which the model does not have. Expected "
        f"some of the compiled losses {loss_names}, or 'add_loss/<name of a "
        "layer>'."
    )


def not_minimised(name):
    """Say that a named loss is not in the loss of the batch."""
    return (
        f"`losses` names {name!r}, which is no part of the loss of this batch: "
        "the layer gave nothing to add_loss, or Keras does not minimise it (of "
        "several losses of a single output only the first). Leave it out."
    )


def nothing_shared(tasks):
    """Say that no weight is used by two tasks."""
    return (
        f"ByTask() expected trainable weights that at least two of the tasks "
        f"{tasks} use. Received: none, so that nothing can conflict. Make the "
        f"shared layers trainable, or {_BATCH}."
    )


def no_tasks_to_measure(tasks):
    """Say that there are no conflicts to measure."""
    return (
        "GradientVariance(by_task=True) expected a model with at least two "
        "compiled losses, whose gradients can conflict. Received: "
        f"{len(tasks)}, {list(tasks)}. Leave by_task out."
    )
