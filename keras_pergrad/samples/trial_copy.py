"""A copy of a step that is being traced, for its trial on a few samples.

A trace of its own costs the trial as much as the step's. Where the step takes
any number of samples, the ops are the same, so they are copied instead.

Private names in use: `FuncGraph.captures`, `Graph._functions`,
`Graph._add_function_recursive`.
"""

import tensorflow as tf

from keras_pergrad.factors.xla import in_xla
from keras_pergrad.keras_internals.model_state import (
    Handle,
    assigned_inputs,
    captured_from,
)
from keras_pergrad.samples import trial_batches


def takes_any_number(tape):
    """Whether a trial may exchange samples in the ops of a tape.

    They must be the same for any number of samples, and no tensor may be
    inputs and targets at once: a trial exchanges the inputs alone.
    """
    parts = trial_batches.unpacked(tape.batch)
    return (
        not in_xla()
        and len(set(map(id, parts))) == len(parts)
        and all(
            trial_batches.spec(t).shape.as_list() == t.shape.as_list()
            for t in parts
            if t.shape.rank is not None
        )
    )


def copied(tape, tensors):
    """Return ops of a step as a function of the batch.

    Args:
        tape: the tape of the step.
        tensors: the tensors in its graph that the function returns.

    Returns:
        A concrete function of the parts of a batch, with the ops that compute
        the tensors and all ops of the tape that have side effects. None: they
        need more than the batch and variables, or a copy would change their
        order.
    """
    graph, batch = tape.graph, trial_batches.unpacked(tape.batch)
    inner = {id(outer): inner for outer, inner in graph.captures}
    given = {id(inner.get(id(t), t)): k for k, t in enumerate(batch)}
    captured = {
        key: tensor
        for key, tensor in captured_from(graph).items()
        if _is_known(tensor)
    }
    ends = {*given, *captured}
    wanted = [t for t in tensors if id(t) not in given]
    effects = [op for op in tape.operations if op.op_def.is_stateful]
    needed, inputs = _ancestors(wanted, effects, ends)
    order = {op: k for k, op in enumerate(graph.get_operations())}
    # What is computed before may come from a part of the batch.
    if any(op.type == "Placeholder" or order[op] < tape.start for op in needed):
        return None
    # Differentiating a loop gives it inputs that are newer than itself. Its
    # copy comes after these, and so after what is assigned behind it.
    newer = any(
        order[t.op] > order[op] and id(t) not in ends
        for op in needed
        for t in op.inputs
    )
    if newer and assigned_inputs(graph):
        return None
    nodes = _nodes(graph, {op.name for op in needed})

    def run(*parts):
        here = tf.compat.v1.get_default_graph()
        for function in graph._functions.values():
            here._add_function_recursive(function)
        places = {
            t.name: parts[given[id(t)]]
            if id(t) in given
            else here.capture(captured[id(t)])
            for t in inputs
        }
        names = [t.name for t in wanted]
        found = iter(tf.graph_util.import_graph_def(nodes, places, names))
        return [
            parts[given[id(t)]] if id(t) in given else next(found)
            for t in tensors
        ]

    specs = [trial_batches.spec(t) for t in batch]
    return tf.function(run, autograph=False).get_concrete_function(*specs)


def _is_known(tensor):
    """Whether it is an eager number, or the handle of a variable."""
    is_number = tensor.dtype not in (tf.resource, tf.variant)
    return hasattr(tensor, "numpy") and (
        is_number or Handle.is_variable(tensor)
    )


def _ancestors(tensors, effects, ends):
    """Return the ops behind tensors and ops, and the `ends` they begin at."""
    needed, inputs = set(), {}
    waiting = [*effects, *(t.op for t in tensors)]
    while waiting:
        op = waiting.pop()
        if op in needed:
            continue
        needed.add(op)
        waiting += op.control_inputs
        for t in op.inputs:
            if id(t) in ends:
                inputs[id(t)] = t
            else:
                waiting.append(t.op)
    return needed, list(inputs.values())


def _nodes(graph, names):
    """Return these ops of a graph, without the functions that they call."""
    everything = graph.as_graph_def()
    found = tf.compat.v1.GraphDef(versions=everything.versions)
    for node in everything.node:
        if node.name in names:
            # An op beside which it should be may be missing.
            node.attr.pop("_class", None)
            found.node.append(node)
    return found
