"""The types of what variables and tables hold while a step runs."""

import contextlib

import tensorflow as tf

from keras_pergrad.samples.types.tensor_types import (
    FREE,
    TRAINED,
    Free,
    Mixed,
    joined_or_mixed,
)
from keras_pergrad.samples.types.type_rules import op_types

#: Ops that change what a variable or table holds, and the inputs it takes on.
ASSIGN = {
    "AssignVariableOp": (1,),
    "AssignAddVariableOp": (1,),
    "AssignSubVariableOp": (1,),
    "LookupTableInsertV2": (1, 2),
    "LookupTableImportV2": (1, 2),
    "LookupTableRemoveV2": (1,),
    "ResourceScatterUpdate": (1, 2),
    "ResourceScatterAdd": (1, 2),
    "ResourceScatterSub": (1, 2),
    "ResourceScatterNdUpdate": (1, 2),
    "ResourceScatterNdAdd": (1, 2),
    "ResourceScatterNdSub": (1, 2),
}
#: These give a variable its new value; all others change a part of it.
_WHOLE = {"AssignVariableOp"}
READS = op_types(
    "ReadVariableOp ResourceGather ResourceGatherNd LookupTableFindV2 "
    "LookupTableExportV2"
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
        for k in ASSIGN[op.type]:
            kind = joined_or_mixed(op, kind, types[k])
        if op.type not in _WHOLE:
            before = self.assigned.get(key, FREE)
            kind = joined_or_mixed(op, before, kind)
        self.assigned[key] = kind
        self._noted.add(key)

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

    def keep(self, op, kind):
        """Note that an op without a rule may keep samples."""
        for tensor in op.inputs:
            if tensor.dtype == tf.resource:
                self.assigned[self.key(tensor)] = kind
                self._noted.add(self.key(tensor))


def may_keep(op, types):
    """Whether an op has handles and samples: it may keep these there."""
    return (
        op.op_def.is_stateful
        and any(t.dtype == tf.resource for t in op.inputs)
        and not all(isinstance(t, Free) for t in types)
    )
