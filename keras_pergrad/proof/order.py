"""The order in which the nodes of a graph are typed."""

import heapq

import tensorflow as tf

from keras_pergrad.proof.op_facts import (
    CALLS,
    FACTS,
    FORWARDS,
    PADS,
    READS,
    SHAPED_BY_TYPE,
)


def stages(nodes, has_known_shape):
    """Yield (first nodes, other nodes): what can be put into a graph together.

    The first nodes are calls, and ops whose shapes are better known once they
    are typed; `has_known_shape(name)`, if given, tells of more such ops. They
    need only nodes of earlier stages.
    """
    levels, leading = {}, leading_nodes(nodes, has_known_shape)
    # Leading nodes begin a level: what follows needs the shapes they give.
    for name in topological_order(nodes.by_name, nodes.needs.get):
        needed_levels = [
            levels[need] for need in nodes.needs[name] if need in levels
        ]
        levels[name] = max(needed_levels, default=0) + (name in leading)
    deepest = max(levels.values(), default=0)
    by_level = [([], []) for _ in range(deepest + 1)]
    for name, level in levels.items():
        by_level[level][name not in leading].append(name)
    return by_level


def leading_nodes(nodes, has_known_shape):
    """Return the names of nodes behind which shapes follow from types."""
    leading = set()
    for name, node in nodes.by_name.items():
        traits = FACTS[node.op].traits
        if (
            traits & (CALLS | SHAPED_BY_TYPE)
            or (has_known_shape is not None and has_known_shape(name))
            or (traits & PADS and _is_computed_pad(nodes, node))
        ):
            leading.add(name)
    return leading


def _is_computed_pad(nodes, node):
    """Whether TensorFlow may not see how wide the padding is.

    A second derivative of `tf.concat` has such ops.
    """
    widths = nodes.by_name.get(node.input[1].split(":")[0])
    return widths is None or widths.op != "Const"


def topological_order(items, needs):
    """Yield items, each after those of them that it needs."""
    items = list(items)
    places = {item: k for k, item in enumerate(items)}
    missing_counts, dependents = {}, {}
    for item in items:
        needed = {need for need in needs(item) if need in places}
        missing_counts[item] = len(needed)
        for need in needed:
            dependents.setdefault(need, []).append(item)
    ready = [places[item] for item in items if not missing_counts[item]]
    # A heap: items that are ready come in their given order.
    while ready:
        item = items[heapq.heappop(ready)]
        yield item
        for dependent in dependents.get(item, ()):
            missing_counts[dependent] -= 1
            if not missing_counts[dependent]:
                heapq.heappush(ready, places[dependent])


def keep_order(nodes, graph, first, *, resources):
    """Let reads and assignments of a variable stay in their order.

    TensorFlow adds that order to a graph only when its trace ends. What was
    assigned before the first op of the step, as by the optimizer of another
    loss, the step finds as it is. `resources` has what is behind each handle
    that the graph is given, by name.
    """
    variables, last_writes, pending_reads = dict(resources), {}, {}
    operations = graph.get_operations()
    earlier_ops = () if first is None else operations[: operations.index(first)]
    earlier_ops = {op.name for op in earlier_ops}
    for name in nodes.by_name:
        op = graph.get_operation_by_name(name)
        handles = {
            k: variables.get(t.name, t.name)
            for k, t in enumerate(op.inputs)
            if t.dtype == tf.resource
        }
        traits = FACTS[op.type].traits
        if handles and traits & FORWARDS:
            for k, handle in handles.items():
                variables[op.outputs[k].name] = handle
            continue
        for handle in handles.values():
            # All wait for the last write, and a write for the reads before.
            nodes.needs[name] += last_writes.get(handle, [])
            if traits & READS:
                pending_reads.setdefault(handle, []).append(name)
            elif name not in earlier_ops:
                nodes.needs[name] += pending_reads.pop(handle, [])
                last_writes[handle] = [name]
