"""The types of calls, branches, loops and the variables in them."""

import dataclasses
import heapq
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import placeholder, tensor_name
from keras_pergrad.proof.op_facts import (
    CALLS,
    CALLS_FUNCTION,
    FACTS,
    FORWARDS,
    IS_CONDITION,
    IS_LOOP,
    PADS,
    READS,
    SHAPED_BY_TYPE,
    has,
)
from keras_pergrad.proof.sample_loops import (
    CurrentSample,
    SampleLoop,
    types_of_choice,
)
from keras_pergrad.proof.tensor_types import (
    FREE,
    Free,
    Mixed,
    Mixes,
    Untyped,
    join_or_mixed,
)

#: The types and shapes of a loop must reach a fixed point in so many turns.
_MAX_ITERATIONS = 12


@dataclasses.dataclass
class Call:
    """A node that calls functions.

    Attributes:
        type, name: as of an op.
        inputs: the tensors of the typed graph that it takes.
        node: its `NodeDef`.
        values: the place of an output → its value, where that is known.
    """

    type: str
    name: str
    inputs: list
    node: object
    values: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, node, tensors):
        """Return the call of a node; `tensors`: name → tensor."""
        names = [tensor_name(text)[1] for text in node.input]
        inputs = [tensors[name] for name in names if name is not None]
        return cls(node.op, node.name, inputs, node=node)

    @property
    def is_control_flow(self):
        """Whether it is a loop or a condition, not a plain call."""
        return not has(self, CALLS_FUNCTION)

    def function(self, attribute):
        """Return the name of the function that an attribute names."""
        return self.node.attr[attribute].func.name

    def branches(self):
        """Return the names of the functions of a condition."""
        if self.type.endswith("If"):
            return [self.function("then_branch"), self.function("else_branch")]
        return [f.name for f in self.node.attr["branches"].list.func]


def type_call(call, types, typing):
    """Return tensors like the outputs of a call, and their types."""
    if has(call, CALLS_FUNCTION):
        _, outputs = typing.type_function(
            call.function("f"), call.inputs, types
        )
        return outputs, [typing.of(t) for t in outputs]
    if has(call, IS_CONDITION):
        return _condition(call, types, typing)
    return _loop(call, types, typing)


def unknown_outputs(call):
    """Return tensors like the outputs of a call, of unknown shape."""
    attribute = "T" if has(call, IS_LOOP) else "Tout"
    with tf.Graph().as_default():
        return [
            placeholder(tf.as_dtype(t), None)
            for t in call.node.attr[attribute].list.type
        ]


def _condition(call, types, typing):
    choice, why = types[0], "lets the samples choose one branch for all of them"
    assigned_before, branch_states = dict(typing.state.assigned), []
    tensors: Any = None
    output_types: Any = None
    with typing.state.record_changes() as changed_keys:
        for name in call.branches():
            # Each branch finds the variables as they were before the choice.
            typing.state.assigned = dict(assigned_before)
            _, outputs = typing.type_function(name, call.inputs[1:], types[1:])
            branch_states.append(typing.state.assigned)
            branch_types = [typing.of(t) for t in outputs]
            if output_types is None:
                tensors, output_types = outputs, branch_types
            else:
                for a, b in zip(tensors, outputs):
                    typing.state.lose_if_other(a, b)
                tensors = [
                    _merge_shapes(a, b) for a, b in zip(tensors, outputs)
                ]
                output_types = _join_all(call, output_types, branch_types)
    typing.state.assigned = _merge_states(call, branch_states)
    return tensors, _types_after_choice(
        call,
        choice,
        output_types,
        changed_keys=changed_keys,
        typing=typing,
        why=why,
    )


def _types_after_choice(
    call, choice, output_types, *, changed_keys, typing, why
):
    """Return the types of what a choice decides, and set those of variables.

    Args:
        choice: the type of the number or truth value that decides.
        output_types: the types of the outputs, whatever is chosen.
        changed_keys: the keys of the variables that the branches assign.
        why: the reason for a refusal, if samples choose.
    """
    if isinstance(choice, Free):
        return [
            tensor_type.flagged(choice.flags) for tensor_type in output_types
        ]
    choice_type = choice
    if not isinstance(choice, (Mixed, CurrentSample)):
        choice_type = Mixed(call.type, call.name, why)
    for key in changed_keys:
        tensor_type = typing.state.assigned.get(key, FREE)
        typing.state.assigned[key] = join_or_mixed(
            call, tensor_type, choice_type
        )
    if isinstance(choice, Mixed):
        return [choice] * len(output_types)
    if isinstance(choice, CurrentSample):
        return types_of_choice(choice, output_types)
    raise Mixes(why)


def _merge_shapes(a, b):
    """Return a tensor with the sizes that two tensors have in common."""
    shape = a.shape.most_specific_compatible_shape(b.shape)
    if shape == a.shape:
        return a
    with a.graph.as_default():
        return placeholder(a.dtype, shape, a)


def _merge_variables(a, b, typing):
    """Return a loop's variable that is one tensor or, a turn later, another."""
    if a.dtype != tf.variant:
        merged = _merge_shapes(a, b)
        if merged is not a:
            typing.values.bind(merged, a, typing.of(a), is_equal=False)
        return merged
    items, changes = typing.lists.merge(a, b)
    if not changes:
        return a
    with a.graph.as_default():
        merged = placeholder(a.dtype, a.shape, a)
    typing.values.bind(merged, a, typing.of(a), is_equal=False)
    typing.values[merged].items = items
    return merged


def _loop(call, types, typing):
    loop_types, tensors = list(types), list(call.inputs)
    sample_loop = SampleLoop.of(call, types, typing)
    if sample_loop is not None:
        typing.level += 1
        try:
            return _find_fixed_point(
                call,
                sample_loop.types_at_begin(loop_types),
                tensors,
                typing=typing,
                sample_loop=sample_loop,
            )
        finally:
            typing.level -= 1
    return _find_fixed_point(call, loop_types, tensors, typing=typing)


def _find_fixed_point(call, loop_types, tensors, *, typing, sample_loop=None):
    """Type a loop's body until its variables keep their types."""
    body, condition = call.function("body"), call.function("cond")
    with typing.state.record_changes() as changed_keys:
        for _ in range(_MAX_ITERATIONS):
            assigned_before = dict(typing.state.assigned)
            failure_count = len(typing.failures)
            _, outputs = typing.type_function(
                body, tensors, loop_types, is_repeated=True
            )
            new_types = [typing.of(t) for t in outputs]
            if sample_loop is None:
                new_types = _join_all(call, loop_types, new_types)
            else:
                new_types = sample_loop.join(
                    loop_types, sample_loop.types_after(new_types)
                )
                typing.state.assigned = {
                    key: sample_loop.carried_type(tensor_type)
                    for key, tensor_type in typing.state.assigned.items()
                }
            typing.state.assigned = _merge_states(
                call, [assigned_before, typing.state.assigned]
            )
            merged_tensors = [
                _merge_variables(a, b, typing) for a, b in zip(tensors, outputs)
            ]
            lost = [
                typing.state.lose_if_other(a, b)
                for a, b in zip(tensors, outputs)
            ]
            is_shape_stable = not any(lost) and all(
                a is b for a, b in zip(merged_tensors, tensors)
            )
            if (
                new_types == loop_types
                and typing.state.assigned == assigned_before
                and is_shape_stable
            ):
                break
            # What failed with these types may not fail with the next ones.
            del typing.failures[failure_count:]
            loop_types, tensors = new_types, merged_tensors
        else:
            raise Untyped("the types of its variables do not settle")
        _, (condition_output,) = typing.type_function(
            condition, tensors, loop_types, is_repeated=True
        )
    if sample_loop is not None and isinstance(
        typing.of(condition_output), Free
    ):
        call.values = sample_loop.counter_values()
        return tensors, sample_loop.types_at_end(loop_types)
    why = "lets the samples choose how often it goes round for all"
    result_types = _types_after_choice(
        call,
        typing.of(condition_output),
        loop_types,
        changed_keys=changed_keys,
        typing=typing,
        why=why,
    )
    # A loop-invariant variable keeps its type, however many turns there are.
    invariant = typing.definitions.nodes(body).passthrough_indices()
    return tensors, [
        loop_types[k] if k in invariant else result_type
        for k, result_type in enumerate(result_types)
    ]


def _merge_states(call, states):
    """Return what variables hold after one of several branches."""
    assigned = {}
    for key in {key for state in states for key in state}:
        held_types = [state.get(key, FREE) for state in states]
        assigned[key] = held_types[0]
        for held_type in held_types[1:]:
            assigned[key] = join_or_mixed(call, assigned[key], held_type)
    return assigned


def _join_all(call, first, second):
    return [join_or_mixed(call, a, b) for a, b in zip(first, second)]


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


def set_computed_shape(op, numbers):
    """Set the shape of a padded tensor, or of counts, where it is known."""
    if not has(op, PADS) and op.type != "DenseBincount":
        return
    number, sizes = numbers.of(op.inputs[1]), op.inputs[0].shape
    if number is None or not sizes.is_fully_defined():
        return
    if has(op, PADS):
        op.outputs[0].set_shape(number.sum(1) + sizes.as_list())
    else:
        op.outputs[0].set_shape([*sizes[:-1], int(number)])


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
        if handles and has(op, FORWARDS):
            for k, handle in handles.items():
                variables[op.outputs[k].name] = handle
            continue
        for handle in handles.values():
            # All wait for the last write, and a write for the reads before.
            nodes.needs[name] += last_writes.get(handle, [])
            if has(op, READS):
                pending_reads.setdefault(handle, []).append(name)
            elif name not in earlier_ops:
                nodes.needs[name] += pending_reads.pop(handle, [])
                last_writes[handle] = [name]
