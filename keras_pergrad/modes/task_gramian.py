"""The gradients of several tasks: what they share, and how they agree."""

import tensorflow as tf

from keras_pergrad.common.float_types import norm_type


def shared_by_tasks(parts):
    """Say of each variable whether at least two tasks have a gradient of it.

    `parts` are lists of gradients, one a task, with None: not used.
    """
    return [sum(g is not None for g in column) > 1 for column in zip(*parts)]


def gramian_of(parts, shared):
    """Return the inner products over the shared variables, (tasks, tasks)."""
    columns = [c for c, is_shared in zip(zip(*parts), shared) if is_shared]
    return tf.add_n(gramians(columns))


def gramians(columns):
    """Return the tasks' inner products at each variable, (tasks, tasks)."""
    dtype = norm_type([g for column in columns for g in column])
    return [_gramian(column, dtype) for column in columns]


def _gramian(column, dtype):
    count, zero = len(column), tf.zeros([], dtype)
    flat = [g if g is None else tf.cast(g, dtype) for g in column]
    products = {}
    for i in range(count):
        for j in range(i + 1):
            a, b = flat[i], flat[j]
            if a is None or b is None:
                products[i, j] = zero
            elif i == j:
                products[i, j] = 2 * tf.nn.l2_loss(a)
            else:
                products[i, j] = tf.reduce_sum(a * b)
    rows = range(count)
    return tf.stack(
        [tf.stack([products[max(i, j), min(i, j)] for j in rows]) for i in rows]
    )


def among_shared(parts, shared, weights):
    """Return the weighted sums at shared variables, the plain ones at others.

    `weights` are (tasks,), or None: all are 1.
    """
    gradients = []
    for column, is_shared in zip(zip(*parts), shared):
        total = None
        for k, gradient in enumerate(column):
            if gradient is None:
                continue
            if is_shared and weights is not None:
                # What is not finite stays so: the optimizer must see it.
                gradient *= tf.cast(weights[k], gradient.dtype)
            total = gradient if total is None else total + gradient
        gradients.append(total)
    return gradients


def cosines(tasks, gramian=None):
    """Return the cosine of each pair of tasks by its name in the logs.

    NaN where a gradient is zero. Without the Gramian the values are None.
    """
    found = {}
    for i, one in enumerate(tasks):
        for j in range(i + 1, len(tasks)):
            name = f"task_cosine_{one}_{tasks[j]}"
            found[name] = gramian if gramian is None else _cosine(gramian, i, j)
    return found


def _cosine(gramian, i, j):
    norms = tf.sqrt(gramian[i, i]) * tf.sqrt(gramian[j, j])
    return gramian[i, j] / norms
