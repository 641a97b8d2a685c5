"""The types of calls, conditions and loops, from those of their bodies."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.keras_internals.graph_nodes import placeholder, tensor_name
from keras_pergrad.samples.op_facts import (
    CONDITIONS,
    FUNCTION_CALLS,
    LOOPS,
)
from keras_pergrad.samples.types.sample_loops import (
    SampleLoop,
    Single,
    of_choice,
)
from keras_pergrad.samples.types.tensor_types import (
    FREE,
    Free,
    Mixed,
    Mixes,
    Untyped,
    joined_or_mixed,
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
