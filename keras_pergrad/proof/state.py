"""The types of what variables and tables hold while a step runs."""

import contextlib

import tensorflow as tf

from keras_pergrad.proof.op_facts import (
    ADVANCES,
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

#: These give a variable its new value, or add to it; all others change a part.
_REPLACES = "AssignVariableOp"
_ADDS = {"AssignAddVariableOp", "AssignSubVariableOp"}


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
        if op.type != _REPLACES:
            if op.type not in _ADDS and not isinstance(assigned_type, Free):
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
        typing.set_types(op, held.flagged(flags) if flags else held)
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
