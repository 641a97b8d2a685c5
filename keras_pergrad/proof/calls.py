"""The types of calls, branches and loops, and of variables in them."""

import contextlib
import dataclasses
import heapq
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.graphs.nodes import placeholder, tensor_name
from keras_pergrad.proof.op_facts import (
    ADVANCE,
    CONDITIONS,
    FACTS,
    FUNCTION_CALLS,
    HAND_ON,
    KNOWN_STATE,
    LOOPS,
    PADS,
    READS,
)
from keras_pergrad.proof.sample_loops import SampleLoop, Single, of_choice
from keras_pergrad.proof.tensor_types import (
    FREE,
    TRAINED,
    Free,
    Mixed,
    Mixes,
    Untyped,
    joined_or_mixed,
    rule_of,
)

#: So often the types or shapes of a loop may change until they stay.
_TURNS = 12


@dataclasses.dataclass
class Call:
    """A node that calls functions.

    Attributes:
        type, name: as of an op.
        inputs: tensors like those that it is given.
        node: its `NodeDef`.
        values: the values of outputs that are known, by place.
    """

    type: str
    name: str
    inputs: list
    node: object
    values: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, node, known):
        """Return the call; known: name → tensor."""
        names = [tensor_name(text)[1] for text in node.input]
        inputs = [known[name] for name in names if name is not None]
        return cls(node.op, node.name, inputs, node)

    @property
    def repeats(self):
        """Whether it may go round several times, or take one of branches."""
        return self.type not in FUNCTION_CALLS

    def function(self, attribute):
        """Return the name of a function."""
        return self.node.attr[attribute].func.name

    def branches(self):
        """Return the names of the functions of a condition."""
        if self.type.endswith("If"):
            return [self.function("then_branch"), self.function("else_branch")]
        return [f.name for f in self.node.attr["branches"].list.func]


def called(call, types, typing):
    """Return tensors like the outputs of a call, and their types."""
    if call.type in FUNCTION_CALLS:
        _, outputs = typing.function(call.function("f"), call.inputs, types)
        return outputs, [typing.of(t) for t in outputs]
    if call.type in CONDITIONS:
        return _condition(call, types, typing)
    return _loop(call, types, typing)


def unknown_outputs(call):
    """Return tensors like the outputs of a call, of unknown shape."""
    attribute = "T" if call.type in LOOPS else "Tout"
    with tf.Graph().as_default():
        return [
            placeholder(tf.as_dtype(t), None)
            for t in call.node.attr[attribute].list.type
        ]


def _condition(call, types, typing):
    choice, why = types[0], "lets the samples choose one branch for all of them"
    before, after = dict(typing.state.assigned), []
    tensors: Any = None
    kinds: Any = None
    with typing.state.noting() as noted:
        for name in call.branches():
            typing.state.assigned = dict(before)
            _, outputs = typing.function(name, call.inputs[1:], types[1:])
            after.append(typing.state.assigned)
            of_branch = [typing.of(t) for t in outputs]
            if kinds is None:
                tensors, kinds = outputs, of_branch
            else:
                tensors = [_either(a, b) for a, b in zip(tensors, outputs)]
                kinds = _all_joined(call, kinds, of_branch)
    typing.state.assigned = _states(call, after)
    return tensors, _chosen(call, choice, kinds, noted, typing, why)


def _chosen(call, choice, kinds, noted, typing, why):
    """Return the types of what a choice decides, and note them of variables.

    `kinds` are the types whatever it is, `noted` the keys of variables that
    are assigned meanwhile, `why` the reason to refuse it if samples choose.
    """
    if isinstance(choice, Free):
        return [kind.flagged(choice.flags) for kind in kinds]
    held = choice
    if not isinstance(choice, (Mixed, Single)):
        held = Mixed(call.type, call.name, why)
    for key in noted:
        kind = typing.state.assigned.get(key, FREE)
        typing.state.assigned[key] = joined_or_mixed(call, kind, held)
    if isinstance(choice, Mixed):
        return [choice] * len(kinds)
    if isinstance(choice, Single):
        return of_choice(choice, kinds)
    raise Mixes(why)


def _either(a, b):
    """Return a tensor like one or the other."""
    shape = a.shape.most_specific_compatible_shape(b.shape)
    if shape == a.shape:
        return a
    with a.graph.as_default():
        return placeholder(a.dtype, shape, a)


def _either_list(a, b, lists):
    """Return a tensor like one or the other, with what is known of lists."""
    if a.dtype != tf.variant:
        return _either(a, b)
    known, changes = lists.joined(a, b)
    if not changes:
        return a
    with a.graph.as_default():
        either = placeholder(a.dtype, a.shape, a)
    lists.give(either, known)
    return either


def _loop(call, types, typing):
    now, tensors = list(types), list(call.inputs)
    over = SampleLoop.of(call, types, typing)
    if over is not None:
        typing.level += 1
        try:
            return _turns(call, over.begin(now), tensors, typing, over)
        finally:
            typing.level -= 1
    return _turns(call, now, tensors, typing)


def _turns(call, now, tensors, typing, over=None):
    """Type a loop's body until its variables keep their types."""
    body, condition = call.function("body"), call.function("cond")
    with typing.state.noting() as noted:
        for _ in range(_TURNS):
            before = dict(typing.state.assigned)
            failed = len(typing.failures)
            _, outputs = typing.function(body, tensors, now, repeated=True)
            after = [typing.of(t) for t in outputs]
            if over is None:
                after = _all_joined(call, now, after)
            else:
                after = over.joined(now, over.after(after))
                typing.state.assigned = {
                    key: over.left(kind)
                    for key, kind in typing.state.assigned.items()
                }
            typing.state.assigned = _states(
                call, [before, typing.state.assigned]
            )
            like = [
                _either_list(a, b, typing.lists)
                for a, b in zip(tensors, outputs)
            ]
            shapes_stay = all(a is b for a, b in zip(like, tensors))
            if after == now and typing.state.assigned == before and shapes_stay:
                break
            # What failed in this turn may not, with the types of the next.
            del typing.failures[failed:]
            for made, tensor in zip(like, tensors):
                if made is not tensor:
                    typing.state.same(made, tensor)
            now, tensors = after, like
        else:
            raise Untyped("the types of its variables do not settle")
        _, (goes_on,) = typing.function(condition, tensors, now, repeated=True)
    if over is not None and isinstance(typing.of(goes_on), Free):
        call.values = over.counted()
        return tensors, over.end(now)
    why = "lets the samples choose how often it goes round for all"
    kinds = _chosen(call, typing.of(goes_on), now, noted, typing, why)
    # What stays as it is does so however often it goes round.
    stays = typing.definitions.nodes(body).handed_on()
    return tensors, [now[k] if k in stays else f for k, f in enumerate(kinds)]


def _states(call, several):
    """Return what variables hold after one of several branches."""
    assigned = {}
    for key in {key for state in several for key in state}:
        kinds = [state.get(key, FREE) for state in several]
        assigned[key] = kinds[0]
        for kind in kinds[1:]:
            assigned[key] = joined_or_mixed(call, assigned[key], kind)
    return assigned


def _all_joined(call, first, second):
    return [joined_or_mixed(call, a, b) for a, b in zip(first, second)]


# The types of what variables and tables hold while a step runs.


#: These give a variable its new value, or add to it; all others change a part.
_WHOLE, _ADD = (
    "AssignVariableOp",
    {"AssignAddVariableOp", "AssignSubVariableOp"},
)


class State:
    """The types of what is kept behind handles.

    Attributes:
        trained: the keys of trainable variables.
        origins: the id of a handle → the key of its variable.
        assigned: the key of a variable → the type of what it was given.
    """

    def __init__(self):
        self.trained, self.origins, self.assigned = set(), {}, {}
        self._noted = set()

    @contextlib.contextmanager
    def noting(self):
        """Give a set; meanwhile the keys of what is assigned are added."""
        before, self._noted = self._noted, set()
        try:
            yield self._noted
        finally:
            self._noted = before | self._noted

    def key(self, handle):
        """Return the key of the variable behind a handle."""
        return self.origins.get(id(handle), id(handle))

    def same(self, tensor, other):
        """Let a handle be another one, in another graph or behind an op."""
        if other.dtype in (tf.resource, tf.variant):
            self.origins[id(tensor)] = self.key(other)

    def assign(self, op, types):
        """Note what an op of `ASSIGN` assigns."""
        key, kind = self.key(op.inputs[0]), FREE
        for given in types[1:]:
            kind = joined_or_mixed(op, kind, given)
        if op.type != _WHOLE:
            if op.type not in _ADD and not isinstance(kind, Free):
                kind = Mixed(
                    op.type,
                    op.name,
                    "gives a part of a variable what follows the samples",
                )
            before = self.assigned.get(key, FREE)
            kind = joined_or_mixed(op, before, kind)
        self.assigned[key] = kind
        self._noted.add(key)

    def advance(self, op):
        """Note that an op draws from the state behind its first input."""
        self._noted.add(self.key(op.inputs[0]))

    def held(self, handle):
        """Return the type of what the step has assigned behind a handle."""
        return self.assigned.get(self.key(handle), FREE)

    def flags(self, handle):
        """Return the flags of what is read from a handle."""
        return TRAINED if self.key(handle) in self.trained else 0

    def unknown(self, op):
        """Return the `Mixed` that is kept behind a handle of an op, or None."""
        for tensor in op.inputs:
            if tensor.dtype == tf.resource:
                held = self.held(tensor)
                if isinstance(held, Mixed):
                    return held
        return None


def keeps_unknown(op, types):
    """Whether no rule knows what an op keeps, or reads of what is kept."""
    if op.type in KNOWN_STATE:
        if op.type == "PrintV2":
            # What is printed into a file can be read from there.
            return op.get_attr("output_stream").startswith(b"file:")
        moved = op.type in ADVANCE and not rule_of(op.type)
        return moved and not all(isinstance(t, Free) for t in types)
    if rule_of(op.type) or op.type in HAND_ON:
        return False
    gives = any(t.dtype == tf.resource for t in op.outputs)
    return gives or FACTS[op.type].has_state


# The order in which nodes are put into a graph and typed.


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
