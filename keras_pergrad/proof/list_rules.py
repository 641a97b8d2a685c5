"""The types of lists of tensors, and the shapes of their entries.

The type of a list is that of its tensors.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.sample_loops import BY_SAMPLE
from keras_pergrad.proof.tensor_types import (
    At,
    Free,
    Mixes,
    Untyped,
    joined,
    type_rule,
)


@type_rule("TensorListFromTensor")
def from_tensor(op, types):
    """Make a list of the entries of the first axis."""
    kind = types[0]
    if not isinstance(kind, At):
        return kind
    if kind.place != (0, 1, 1) and kind.axis == 0:
        raise Mixes(BY_SAMPLE)
    return kind.on(kind.axis - 1)


@type_rule("TensorListGetItem")
def get(op, types):
    """Take one tensor of the list."""
    _require_free(types[1:])
    return types[0]


@type_rule("TensorListGather")
def gather(op, types):
    """Stack some tensors of the list."""
    _require_free(types[1:])
    kind = types[0]
    return kind.on(kind.axis + 1) if isinstance(kind, At) else kind


@type_rule("TensorListScatterV2", "TensorListScatterIntoExistingList")
def scatter(op, types):
    """Make a list from a tensor's entries of the first axis."""
    value = 0 if op.type == "TensorListScatterV2" else 1
    _require_free(t for k, t in enumerate(types) if k > 1 - (value == 1))
    kind = types[value]
    if isinstance(kind, At):
        if kind.axis == 0:
            raise Mixes(BY_SAMPLE)
        kind = kind.on(kind.axis - 1)
    return joined(types[0], kind) if value else kind


@type_rule("TensorListSetItem")
def put(op, types):
    """Put another tensor at a place of a list."""
    _require_free(types[1:2])
    return joined(types[0], types[2])


@type_rule("TensorListPushBack")
def push(op, types):
    """Add one more tensor to a list."""
    return joined(types[0], types[1])


@type_rule("TensorListPopBack")
def pop(op, types):
    """Take the last tensor from a list."""
    _require_free(types[1:])
    return types[0]


@type_rule("TensorListStack")
def stack(op, types):
    """Add one axis, for the tensors."""
    kind = types[0]
    return kind.on(kind.axis + 1) if isinstance(kind, At) else kind


@type_rule("TensorListConcat", "TensorListConcatV2")
def concat(op, types):
    """Join the tensors one after the other."""
    kind = types[0]
    if not isinstance(kind, At):
        return kind
    if kind.axis:
        return [kind, Free()]
    length = op.shape_out()[0]
    if length is None or length % (op.n * kind.rows * kind.lead):
        raise Untyped("how many tensors it joins is not known while tracing")
    lead = length // (op.n * kind.rows)
    return [At(0, kind.rows, lead, kind.flags), Free()]


@type_rule("TensorListSplit")
def split(op, types):
    """Make a list of parts of the first axis."""
    kind = types[0]
    if isinstance(kind, At) and kind.axis == 0:
        raise Mixes(BY_SAMPLE)
    return kind


@type_rule("OptionalFromValue", "OptionalGetValue")
def optional(op, types):
    """Keep a tensor for the gradient of a condition, or give it back."""
    return list(types) if op.type == "OptionalFromValue" else types[0]


@type_rule("TensorListResize")
def resize(op, types):
    """Give a list another length."""
    _require_free(types[1:])
    return types[0]


@type_rule("TensorListConcatLists", "AddNVariant")
def join_lists(op, types):
    """Make one list of several."""
    kind = types[0]
    for other in types[1:]:
        kind = joined(kind, other)
    return kind


def _require_free(types):
    if any(not isinstance(t, Free) for t in types):
        raise Mixes("takes a place from the values of the samples")


# The shapes of what lists of tensors hold: TensorFlow loses them in loops.


_ANY: Any = None
_UNKNOWN = None, tf.TensorShape(_ANY), None
#: In place of the value of a list without tensors.
_EMPTY = object()


@dataclasses.dataclass
class ListShapes:
    """What is known of lists: (number of tensors or None, shape, value).

    The value is that of all its tensors, where shapes alone determine it.
    """

    _known: dict = dataclasses.field(default_factory=dict)
    _kept: list = dataclasses.field(default_factory=list)

    def of(self, tensor):
        """Return (number or None, shape, value or None) of a list."""
        return self._known.get(id(tensor), _UNKNOWN)

    def is_empty(self, tensor):
        """Whether a list is known to have no tensors."""
        return self.of(tensor)[2] is _EMPTY and self.of(tensor)[0] is None

    def same(self, tensor, other):
        """Let a list be like another one."""
        if tensor.dtype == tf.variant and id(other) in self._known:
            self.give(tensor, self.of(other))

    def joined(self, tensor, other):
        """Return what is known of both lists, and if it differs from a's."""
        first, second = self.of(tensor), self.of(other)
        number = first[0] if first[0] == second[0] else None
        shape = first[1]
        if first[2] is _EMPTY and shape.is_compatible_with(second[1]):
            shape = shape.merge_with(second[1])
        elif shape.rank is not None:
            shape = shape.most_specific_compatible_shape(second[1])
        value: Any = first[2]
        if value is _EMPTY:
            value = second[2]
        elif second[2] is not _EMPTY and not np.array_equal(value, second[2]):
            value = None
        same = number == first[0] and shape.as_proto() == first[1].as_proto()
        same = same and (value is first[2] or np.array_equal(value, first[2]))
        return (number, shape, value), not same

    def give(self, tensor, known):
        """Set what is known of a list."""
        self._kept.append(tensor)
        self._known[id(tensor)] = known

    def note(self, op, numbers):
        """Note what an op on lists does to them, and how long they are."""
        if op.type == "TensorListLength":
            length = self.of(op.inputs[0])[0]
            if length is not None:
                numbers.give(op.outputs[0], length)
            return
        if op.type in ("TensorListReserve", "EmptyTensorList"):
            size, number = numbers.of(op.inputs[1]), None
            if op.type == "TensorListReserve" and size is not None:
                number = int(size) if size >= 0 else None
            shape = _shape(op.inputs[0], numbers)
            self.give(op.outputs[0], (number, shape, _EMPTY))
        elif op.type == "TensorListFromTensor":
            shape = op.inputs[0].shape
            if shape.rank:
                self.give(op.outputs[0], (shape[0], shape[1:], None))
        elif op.type == "OptionalFromValue":
            self.give(op.outputs[0], (None, op.inputs[0].shape, None))
        elif op.type in ("TensorListSetItem", "TensorListPushBack"):
            number, shape, value = self.of(op.inputs[0])
            given = op.inputs[-1].shape
            if shape.is_compatible_with(given):
                shape = shape.merge_with(given)
            new = numbers.of(op.inputs[-1])
            same = value is _EMPTY or np.array_equal(value, new)
            value = new if same and op.type == "TensorListPushBack" else None
            self.give(op.outputs[0], (number, shape, value))
        elif op.type in ("TensorListPopBack", "TensorListResize"):
            self.same(op.outputs[0], op.inputs[0])

    def value_of(self, op):
        """Return the value of the tensor that is taken from a list, or None."""
        if op.type != "TensorListPopBack":
            return None
        value = self.of(op.inputs[0])[2]
        return None if value is _EMPTY else value

    def shape_of(self, op, k):
        """Return what is known of the shape of an output."""
        tensor = op.outputs[k]
        number, shape, _ = self.of(op.inputs[0]) if op.inputs else _UNKNOWN
        single = op.type in ("TensorListGetItem", "OptionalGetValue")
        if single or (op.type == "TensorListPopBack" and k == 1):
            known = shape
        elif op.type == "TensorListStack" and shape.rank is not None:
            known = tf.TensorShape([number, *shape])
        elif op.type == "LookupTableFindV2":
            known = op.inputs[1].shape
        else:
            return tensor.shape
        if tensor.shape.is_compatible_with(known):
            return tensor.shape.merge_with(known)
        return tensor.shape


def _shape(tensor, numbers):
    sizes = numbers.of(tensor)
    if sizes is None or sizes.ndim == 0:
        return tf.TensorShape(_ANY)
    return tf.TensorShape([None if s < 0 else int(s) for s in sizes])
