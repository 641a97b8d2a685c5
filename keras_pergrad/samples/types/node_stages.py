"""The order in which nodes are put into a graph and typed."""

import heapq

import tensorflow as tf

from keras_pergrad.samples.op_facts import FACTS, HAND_ON, PADS, READS


def stages(nodes, shaped):
    """Yield (first nodes, other nodes): what can be put into a graph together.

    The first are calls, and ops whose shapes are better known once they are
    typed (`shaped(name)`, if given, tells of more). They need only what was
    put there before.
    """
    level, calls = {}, first_ones(nodes, shaped)
    # They begin a level.
    for name in in_order(nodes.by_name, nodes.needs.get):
        needed = [level[one] for one in nodes.needs[name] if one in level]
        level[name] = max(needed, default=0) + (name in calls)
    most = max(level.values(), default=0)
    by_level = [([], []) for _ in range(most + 1)]
    for name, number in level.items():
        by_level[number][name not in calls].append(name)
    return by_level


def first_ones(nodes, shaped):
    """Return the names of nodes behind which shapes follow from types."""
    return {
        name
        for name, node in nodes.by_name.items()
        if FACTS[node.op].goes_first
        or (shaped is not None and shaped(name))
        or (node.op in PADS and _is_computed_pad(nodes, node))
    }


def _is_computed_pad(nodes, node):
    """Whether TensorFlow may not see how wide the padding is.

    A second derivative of `tf.concat` has such ops.
    """
    widths = nodes.by_name.get(node.input[1].split(":")[0])
    return widths is None or widths.op != "Const"


def set_padded_shape(op, numbers):
    """Set the shape of a padded tensor, if it follows from shapes."""
    widths, sizes = numbers.of(op.inputs[1]), op.inputs[0].shape
    if widths is not None and sizes.is_fully_defined():
        op.outputs[0].set_shape(widths.sum(1) + sizes.as_list())


def in_order(items, needs):
    """Yield items, each after those of them that it needs."""
    items = list(items)
    places = {item: k for k, item in enumerate(items)}
    missing, takers = {}, {}
    for item in items:
        needed = {one for one in needs(item) if one in places}
        missing[item] = len(needed)
        for one in needed:
            takers.setdefault(one, []).append(item)
    ready = [places[item] for item in items if not missing[item]]
    while ready:
        item = items[heapq.heappop(ready)]
        yield item
        for taker in takers.get(item, ()):
            missing[taker] -= 1
            if not missing[taker]:
                heapq.heappush(ready, places[taker])


def keep_order(nodes, graph, first, resources):
    """Let reads and assignments of a variable stay in their order.

    TensorFlow adds that order to a graph only when its trace ends. What was
    assigned before the first op of the step, as by the optimizer of another
    loss, the step finds as it is. `resources` has what is behind each handle
    that the graph is given, by name.
    """
    variable, written, read = dict(resources), {}, {}
    operations = graph.get_operations()
    before = () if first is None else operations[: operations.index(first)]
    before = {op.name for op in before}
    for name in nodes.by_name:
        op = graph.get_operation_by_name(name)
        handles = {
            k: variable.get(t.name, t.name)
            for k, t in enumerate(op.inputs)
            if t.dtype == tf.resource
        }
        if op.type in HAND_ON and handles:
            for k, handle in handles.items():
                variable[op.outputs[k].name] = handle
            continue
        for handle in handles.values():
            nodes.needs[name] += written.get(handle, [])
            if op.type in READS:
                read.setdefault(handle, []).append(name)
            elif name not in before:
                nodes.needs[name] += read.pop(handle, [])
                written[handle] = [name]
