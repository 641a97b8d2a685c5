"""The record of each tensor of a graph: all that is known of it."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_pergrad.proof.tensor_types import FREE

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
