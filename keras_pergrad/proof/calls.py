"""The types of nodes put into a graph, and of calls, branches and loops.

The nodes of a step are put into a graph in which the batch has a number of
samples that nothing else has, so that all shapes are known there. What follows
a call (of a function, a condition, a loop) is put there after its body, which
gives the shapes of its outputs.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import placeholder, tensor_name
from keras_pergrad.proof.op_facts import (
    CALLS,
    CALLS_FUNCTION,
    FACTS,
    IS_CONDITION,
    IS_LOOP,
    PADS,
    has,
)
from keras_pergrad.proof.order import stages
from keras_pergrad.proof.sample_loops import (
    CurrentSample,
    SampleLoop,
    types_of_choice,
)
from keras_pergrad.proof.tensor_types import (
    FREE,
    At,
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


def type_nodes(nodes, tensors, graph, *, typing):
    """Put nodes into a graph and type them; extend name → tensor."""
    for leading, names in stages(nodes, typing.has_known_shape):
        for name in leading:
            node_facts = FACTS[nodes.by_name[name].op]
            put = _put_with_shape
            if node_facts.has(CALLS):
                put = _put_call
            put(nodes, name, tensors, graph=graph, typing=typing)
        typing.run(nodes.put(graph, names, tensors))


def type_function(name, arguments, types, *, typing, is_repeated=False):
    """Return (inputs, outputs) of a function, typed, in a new graph.

    `is_repeated`: it is called again with its own outputs, as a loop's body.
    Then only inputs that it hands on keep known values.
    """
    nodes = typing.definitions.nodes(name)
    if nodes is None:
        raise Untyped(f"calls a function that is not known: {name}")
    graph, tensors = tf.Graph(), {}
    with graph.as_default():
        inputs = [placeholder(t.dtype, t.shape, t) for t in arguments]
    tensors.update(zip(nodes.inputs, inputs))
    constants = (
        nodes.passthrough_indices() if is_repeated else range(len(inputs))
    )
    for k, (inner, outer, input_type) in enumerate(
        zip(inputs, arguments, types)
    ):
        typing.values.bind(inner, outer, input_type, is_equal=not is_repeated)
        value = typing.numbers.of(outer)
        if k in constants and value is not None:
            with graph.as_default():
                inner = tf.constant(value, outer.dtype)
            typing.values.bind(inner, outer, input_type, is_equal=False)
            tensors[nodes.inputs[k]] = inner
    try:
        type_nodes(nodes, tensors, graph, typing=typing)
    except (ValueError, tf.errors.OpError) as error:
        if typing.lengths.tied(error) is not None:
            raise  # The step is typed again.
        raise Untyped(f"shapes do not fit in {name}: {error}") from None
    return inputs, [tensors[n] for n in nodes.outputs]


def _put_call(nodes, name, tensors, *, graph, typing):
    """Type a call; placeholders stand for its outputs."""
    call = Call.of(nodes.by_name[name], tensors)
    types = typing.values.types_of(call.inputs)
    typing.count += 1
    outputs: Any
    results: Any
    try:
        with typing.inside(name):
            outputs, results = _type_call(call, types, typing)
    except (Mixes, Untyped) as error:
        mixed = typing.failed(call, str(error), isinstance(error, Untyped))
        outputs = _unknown_outputs(call)
        results = [mixed] * len(outputs)
    # Not inside of the graph: there nothing can be evaluated.
    values: Any = [
        call.values.get(k) if call.is_control_flow else typing.numbers.of(t)
        for k, t in enumerate(outputs)
    ]
    with graph.as_default():
        for k, (tensor, result) in enumerate(zip(outputs, results)):
            stand_in = placeholder(tensor.dtype, tensor.shape, tensor)
            tensors[f"{name}:{k}"] = stand_in
            is_equal = not call.is_control_flow
            typing.values.bind(stand_in, tensor, result, is_equal=is_equal)
            if values[k] is not None:
                stand_in = tf.constant(values[k], tensor.dtype)
                typing.values.bind(stand_in, tensor, result, is_equal=False)
                tensors[f"{name}:{k}"] = stand_in


def _put_with_shape(nodes, name, tensors, *, graph, typing):
    """Put an op whose shapes its type, or a list, knows better."""
    operations = nodes.put(graph, [name], tensors)
    (op,) = operations
    _set_computed_shape(op, typing.numbers)
    typing.run(operations)
    value = typing.lists.value_of(op)
    if value is not None:
        # A constant, so that shapes that follow from it are known.
        with graph.as_default():
            tensors[f"{name}:1"] = tf.constant(value, op.outputs[1].dtype)
        constant = typing.values[tensors[f"{name}:1"]]
        constant.type = typing.of(op.outputs[1])
    for k, tensor in enumerate(op.outputs):
        shape = typing.lists.shape_of(op, k)
        shape = nodes.shape_of(f"{name}:{k}", shape)
        result = typing.of(tensor)
        if shape.rank is not None and isinstance(result, At):
            size = typing.n * result.rows * result.lead
            sizes = shape.as_list()
            if 0 <= result.axis < len(sizes):
                sizes[result.axis] = size
            shape = tf.TensorShape(sizes)
        if tensor.shape.is_compatible_with(shape):
            tensor.set_shape(shape)


def _type_call(call, types, typing):
    """Return tensors like the outputs of a call, and their types."""
    if has(call, CALLS_FUNCTION):
        _, outputs = type_function(
            call.function("f"), call.inputs, types, typing=typing
        )
        return outputs, [typing.of(t) for t in outputs]
    if has(call, IS_CONDITION):
        return _condition(call, types, typing)
    return _loop(call, types, typing)


def _unknown_outputs(call):
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
            _, outputs = type_function(
                name, call.inputs[1:], types[1:], typing=typing
            )
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
            _, outputs = type_function(
                body, tensors, loop_types, typing=typing, is_repeated=True
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
        _, (condition_output,) = type_function(
            condition, tensors, loop_types, typing=typing, is_repeated=True
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


def _set_computed_shape(op, numbers):
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
