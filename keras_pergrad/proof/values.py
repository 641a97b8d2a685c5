"""All that is known of each tensor of a graph, and of what handles lead to."""

import contextlib
import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.proof.op_facts import (
    ADVANCES,
    ASSIGNS_WHOLE,
    FORWARDS,
    KNOWN_STATE,
    TELLS,
    has,
)
from keras_pergrad.proof.tensor_types import (
    FREE,
    TRAINED,
    Free,
    Mixed,
    Mixes,
    join_or_mixed,
    rule_of,
)

#: In place of a number that nobody has asked for.
NOT_ASKED = object()
#: In place of the value of the tensors of a list that has none.
NO_TENSORS = object()
_ANY: Any = None
UNKNOWN_SHAPE = tf.TensorShape(_ANY)


@dataclasses.dataclass(frozen=True)
class Items:
    """What is known of the tensors in a list.

    Attributes:
        count: how many there are, or None.
        shape: the shape that all have.
        value: the value of all of them, where shapes alone determine it, or
            `NO_TENSORS`; None: it is not known.
    """

    count: int | None = None
    shape: Any = UNKNOWN_SHAPE
    value: Any = None


UNKNOWN_ITEMS = Items()


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """What is known of one tensor.

    Attributes:
        tensor: the tensor. It stays alive, so that no other one gets its id.
        type: its type.
        number: its value where shapes alone determine it, an array; None: they
            do not; `NOT_ASKED`: nobody has asked.
        is_size: whether it is made of nothing but sizes, some of which follow
            the number of samples.
        is_irregular: whether it is known for one number of samples alone.
        has_irregular_shape: whether its shape is.
        items: of a list, what is known of its tensors.
        original: the tensor of another graph that is equal to it; None: it is
            no stand-in, or one whose value changes.
        value_number: a number that tensors of equal values share, or None.
        variable: of a handle, the `Value` of the first handle that leads to
            the same variable; None: it is that one, or leads elsewhere.
        is_lost: whether it is not known where a handle leads.
    """

    tensor: Any
    type: Any = FREE
    number: Any = NOT_ASKED
    is_size: bool = False
    is_irregular: bool = False
    has_irregular_shape: bool = False
    items: Items = UNKNOWN_ITEMS
    original: Any = None
    value_number: int | None = None
    variable: Any = None
    is_lost: bool = False

    @property
    def key(self):
        """The `Value` by which a variable is known."""
        return self if self.variable is None else self.variable

    @property
    def is_known_handle(self):
        """Whether it is known to which variable a handle leads."""
        is_given = self.variable is not None or (
            self.tensor.op.type == "Placeholder"
        )
        return is_given and not self.is_lost


class Values:
    """The `Value` of each tensor; one without has the type `Free`."""

    def __init__(self):
        self._by_id = {}

    def __getitem__(self, tensor) -> Value:
        value = self._by_id.get(id(tensor))
        if value is None:
            value = self._by_id[id(tensor)] = Value(tensor)
        return value

    def type_of(self, tensor):
        """Return the type of a tensor."""
        value = self._by_id.get(id(tensor))
        return FREE if value is None else value.type

    def types_of(self, tensors):
        """Return the types of several tensors."""
        values = [self._by_id.get(id(t)) for t in tensors]
        return [FREE if value is None else value.type for value in values]

    def around(self, operations):
        """Return (op, `Value`s of its inputs, those of its outputs) of ops."""
        return [
            (op, [self[t] for t in op.inputs], [self[t] for t in op.outputs])
            for op in operations
        ]

    def bind(self, stand_in, tensor, tensor_type, *, is_equal=True):
        """Let a tensor stand for one of another graph.

        Args:
            stand_in: the tensor.
            tensor: the one for which it stands.
            tensor_type: the type of the stand-in.
            is_equal: whether both are equal whenever they are computed. What
                a loop changes is not.
        """
        value, original = self[stand_in], self[tensor]
        value.type = tensor_type
        value.is_size = original.is_size
        value.is_irregular = original.is_irregular
        value.has_irregular_shape = original.has_irregular_shape
        value.original = tensor if is_equal else None
        self.forward(tensor, stand_in)

    def forward(self, tensor, output):
        """Let a handle or list lead where another one does."""
        if tensor.dtype not in (tf.resource, tf.variant):
            return
        value, source = self[output], self[tensor]
        value.items, value.variable = source.items, source.key
        value.is_lost = value.is_lost or not source.is_known_handle

    def original(self, tensor):
        """Return the first tensor to which one is equal as a stand-in."""
        while (original := self[tensor].original) is not None:
            tensor = original
        return tensor


class State:
    """The types of what is kept behind handles.

    Args:
        values: the `Values` of the tensors, by which variables are known.

    Attributes:
        trained: the keys of trainable variables.
        assigned: the key of a variable → the type of what it was given.
    """

    def __init__(self, values):
        self._values = values
        self.trained, self.assigned, self._changed = set(), {}, set()

    @contextlib.contextmanager
    def record_changes(self):
        """Yield a set that gets the keys of what is assigned meanwhile."""
        changed_before, self._changed = self._changed, set()
        try:
            yield self._changed
        finally:
            self._changed = changed_before | self._changed

    def lose_if_other(self, handle, other):
        """Lose a handle that may lead elsewhere; tell whether that is new."""
        handle, other = self._values[handle], self._values[other]
        if handle.tensor.dtype != tf.resource or not handle.is_known_handle:
            return False
        if other.is_known_handle and handle.key is other.key:
            return False
        handle.is_lost = True
        return True

    def assign(self, op, types):
        """Note what an op that has `ASSIGNS` assigns."""
        key, assigned_type = op.input_values[0].key, FREE
        for value_type in types[1:]:
            assigned_type = join_or_mixed(op, assigned_type, value_type)
        if op.type != "AssignVariableOp":  # which replaces the value
            is_part = not has(op, ASSIGNS_WHOLE)
            if is_part and not isinstance(assigned_type, Free):
                assigned_type = Mixed(
                    op.type,
                    op.name,
                    "gives a part of a variable what follows the samples",
                )
            type_before = self.assigned.get(key, FREE)
            assigned_type = join_or_mixed(op, type_before, assigned_type)
        self.assigned[key] = assigned_type
        self._changed.add(key)

    def advance(self, op):
        """Note that an op draws from the state behind its first input."""
        self._changed.add(op.input_values[0].key)


def refuse_state_of_samples(op, types):
    """Refuse an op that uses what the step has kept of its samples."""
    for tensor, input_type in zip(op.inputs, types):
        if tensor.dtype == tf.resource and not isinstance(input_type, Free):
            raise Mixes("uses a state that the step has set from its samples")


def has_unknown_state(op, types):
    """Whether an op keeps or reads state in a way that no rule knows."""
    has_rule = rule_of(op.type) is not None or has(op, FORWARDS)
    if has_rule and not has(op, ADVANCES | TELLS):
        return False
    if has(op, KNOWN_STATE):
        if op.type == "PrintV2":
            # What is printed into a file can be read from there.
            return op.attribute("output_stream").startswith(b"file:")
        draws_without_rule = has(op, ADVANCES) and not has_rule
        return draws_without_rule and not all(
            isinstance(t, Free) for t in types
        )
    if has_rule:
        return False
    makes_handle = any(t.dtype == tf.resource for t in op.outputs)
    return makes_handle or op.facts.has_state


def type_read(op, typing):
    """Type what an op reads behind a handle; whether nothing is left to do."""
    handle = op.input_values[0]
    lost = _lost_handle(op, handle, typing)
    if lost is not None:
        typing.set_types(op, lost)
        return True
    key = handle.key
    held = typing.state.assigned.get(key, FREE)
    flags = TRAINED if key in typing.state.trained else 0
    if op.type == "ReadVariableOp":
        is_free = isinstance(held, Free)
        held = Free(held.flags | flags) if is_free else held.flagged(flags)
        typing.set_types(op, held)
        return True
    if not isinstance(held, Free):
        why = "looks up what the step has assigned from its samples"
        typing.set_types(op, typing.failed(op, why, False))
        return True
    if flags | held.flags:
        handle.type = Free(flags | held.flags)
    return False


def forward_handles(op, typing):
    """Let handles and lists that an op gives be those that it takes."""
    for handle, output in zip(op.inputs, op.outputs):
        typing.values.forward(handle, output)


def type_assignment(op, types, typing):
    """Note what an op assigns."""
    lost = _lost_handle(op, op.input_values[0], typing)
    if lost is None:
        typing.state.assign(op, types)
    else:
        # Any variable may have been changed.
        typing.effects.append(lost)


def with_held_types(op, types, typing):
    """Return the types of inputs; a handle has that of what is kept."""
    held_types = list(types)
    for k, handle in enumerate(op.input_values):
        if handle.tensor.dtype == tf.resource:
            held = _lost_handle(op, handle, typing)
            held = held or typing.state.assigned.get(handle.key, FREE)
            held_types[k] = held.flagged(types[k].flags)
    return held_types


def _lost_handle(op, handle, typing):
    """Return a `Mixed` if it is not known what is behind a handle's `Value`."""
    if isinstance(handle.type, Mixed):
        return handle.type
    if handle.is_known_handle:
        return None
    why = "uses a handle that may lead to what samples have set"
    return typing.failed(op, why, False)
