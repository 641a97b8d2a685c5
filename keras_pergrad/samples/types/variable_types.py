"""The types of what variables and tables hold while a step runs."""

import contextlib

import tensorflow as tf

from keras_pergrad.samples.op_facts import (
    ADVANCE,
    FACTS,
    HAND_ON,
    KNOWN_STATE,
)
from keras_pergrad.samples.types.tensor_types import (
    FREE,
    TRAINED,
    Free,
    Mixed,
    joined_or_mixed,
)
from keras_pergrad.samples.types.type_rules import rule_of

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
