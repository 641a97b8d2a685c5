"""Refusals of `ByTask`, and of measurements by task, that stand in several."""


def invalid_losses(losses):
    """Say what `losses` of `ByTask` may be."""
    return (
        "`losses` expected a list of different names of losses, such as "
        "['digit', 'add_loss/encoder'], or a dict of the names of tasks to a "
        "name or a list of names, such as {'box': ['corner', 'size'], "
        "'class': 'class'}; each loss stands in one task. "
        f"Received: losses={losses!r}"
    )


def nothing_shared(tasks):
    """Say that no weight is used by two tasks."""
    return (
        f"ByTask() expected trainable weights that at least two of the tasks "
        f"{tasks} use. Received: none, so that nothing can conflict. Make the "
        "shared layers trainable, or use gradient_mode='batch'."
    )


def no_tasks_to_measure(tasks):
    """Say that there are no conflicts to measure."""
    return (
        "GradientVariance(by_task=True) expected a model with at least two "
        "compiled losses, whose gradients can conflict. Received: "
        f"{len(tasks)}, {list(tasks)}. Leave by_task out."
    )
