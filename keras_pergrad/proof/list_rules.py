"""The types of lists of tensors, and the shapes of their entries.

The type of a list is that of its tensors.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.sample_loops import OTHER_ORDER
from keras_pergrad.proof.tensor_types import (
    ALL,
    BY_SIZE,
    At,
    Free,
    Mixes,
    OfBranches,
    Total,
    Untyped,
    join_types,
    type_rule,
)


@type_rule("TensorListFromTensor", inputs=0)
def from_tensor(op, types):
    """Make a list of the entries of the first axis."""
    input_type = types[0]
    if not isinstance(input_type, At):
        return input_type
    if input_type.place != (0, 1, 1) and input_type.axis == 0:
        raise Mixes(OTHER_ORDER)
    return input_type.on(input_type.axis - 1)


@type_rule("TensorListGetItem", inputs=0)
def get_item(op, types):
    """Take one tensor of the list."""
    return types[0]


@type_rule("TensorListGather", inputs=0)
def gather(op, types):
    """Stack some tensors of the list."""
    input_type = types[0]
    return (
        input_type.on(input_type.axis + 1)
        if isinstance(input_type, At)
        else input_type
    )


@type_rule("TensorListScatterV2", inputs=0)
@type_rule("TensorListScatterIntoExistingList", inputs=(0, 1))
def scatter(op, types):
    """Make a list from a tensor's entries of the first axis."""
    tensor_input = 0 if op.type == "TensorListScatterV2" else 1
    input_type = types[tensor_input]
    if isinstance(input_type, At):
        if input_type.axis == 0:
            raise Mixes(OTHER_ORDER)
        input_type = input_type.on(input_type.axis - 1)
    return join_types(types[0], input_type) if tensor_input else input_type


@type_rule("TensorListSetItem", inputs=(0, 2))
def set_item(op, types):
    """Put another tensor at a place of a list."""
    return join_types(types[0], types[2])


@type_rule("TensorListPushBack", inputs=ALL)
def push_back(op, types):
    """Add one more tensor to a list."""
    return join_types(types[0], types[1])


@type_rule("TensorListPopBack", inputs=0)
def pop_back(op, types):
    """Take the last tensor from a list."""
    return types[0]


@type_rule("TensorListStack", inputs=0)
def stack(op, types):
    """Add one axis, for the tensors."""
    input_type = types[0]
    return (
        input_type.on(input_type.axis + 1)
        if isinstance(input_type, At)
        else input_type
    )


@type_rule("TensorListConcat", "TensorListConcatV2", inputs=0)
def concat(op, types):
    """Join the tensors one after the other."""
    input_type = types[0]
    if not isinstance(input_type, At):
        return [input_type, Free()]
    if input_type.axis:
        return [input_type, Free()]
    length = op.shape_out()[0]
    if length is None or length % (op.n * input_type.rows * input_type.lead):
        raise Untyped("how many tensors it joins is not known while tracing")
    lead = length // (op.n * input_type.rows)
    return [At(0, input_type.rows, lead, input_type.flags), Free(BY_SIZE)]


@type_rule("TensorListSplit", inputs=0)
def split(op, types):
    """Make a list of parts of the first axis."""
    input_type = types[0]
    if isinstance(input_type, At) and input_type.axis == 0:
        raise Mixes(OTHER_ORDER)
    return input_type


@type_rule("OptionalFromValue", inputs=ALL)
@type_rule("OptionalGetValue", inputs=0)
def optional(op, types):
    """Keep tensors for the gradient of a condition, or give them back."""
    if len(set(types)) > 1:
        raise Mixes("keeps samples and other tensors together")
    input_type = types[0]
    if op.type == "OptionalGetValue":
        if isinstance(input_type, OfBranches):
            (output,) = op.outputs
            spec = tf.TensorSpec(output.shape, output.dtype)
            return input_type.taken_as(spec)
        return input_type
    if len(types) == 1 and isinstance(input_type, (At, Total, OfBranches)):
        (value,) = op.inputs
        spec = tf.TensorSpec(value.shape, value.dtype)
        return OfBranches(frozenset({(spec, input_type)}))
    return input_type


@type_rule("TensorListResize", inputs=0)
def resize(op, types):
    """Give a list another length."""
    return types[0]


@type_rule("TensorListConcatLists", inputs=ALL)
def join_lists(op, types):
    """Make one list of several."""
    input_type = types[0]
    for other in types[1:]:
        input_type = join_types(input_type, other)
    return input_type


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

    _facts: dict = dataclasses.field(default_factory=dict)
    _alive: list = dataclasses.field(default_factory=list)

    def of(self, tensor):
        """Return (number or None, shape, value or None) of a list."""
        return self._facts.get(id(tensor), _UNKNOWN)

    def is_empty(self, tensor):
        """Whether a list is known to have no tensors."""
        return self.of(tensor)[2] is _EMPTY and self.of(tensor)[0] is None

    def alias(self, stand_in, tensor):
        """Note that a list stands for another one."""
        if stand_in.dtype == tf.variant and id(tensor) in self._facts:
            self.set_facts(stand_in, self.of(tensor))

    def merge(self, tensor, other):
        """Return what is known of a list that is either of two.

        Also returns whether it differs from what is known of `tensor`.
        """
        facts, other_facts = self.of(tensor), self.of(other)
        number = facts[0] if facts[0] == other_facts[0] else None
        shape = facts[1]
        if facts[2] is _EMPTY and shape.is_compatible_with(other_facts[1]):
            shape = shape.merge_with(other_facts[1])
        elif shape.rank is not None:
            shape = shape.most_specific_compatible_shape(other_facts[1])
        value: Any = facts[2]
        if value is _EMPTY:
            value = other_facts[2]
        elif other_facts[2] is not _EMPTY and not np.array_equal(
            value, other_facts[2]
        ):
            value = None
        is_unchanged = (
            number == facts[0] and shape.as_proto() == facts[1].as_proto()
        )
        is_unchanged = is_unchanged and (
            value is facts[2] or np.array_equal(value, facts[2])
        )
        return (number, shape, value), not is_unchanged

    def set_facts(self, tensor, facts):
        """Set what is known of a list."""
        self._alive.append(tensor)
        self._facts[id(tensor)] = facts

    def note(self, op, numbers):
        """Note what an op on lists does to them, and how long they are."""
        if op.type == "TensorListLength":
            length = self.of(op.inputs[0])[0]
            if length is not None:
                numbers.set(op.outputs[0], length)
            return
        if op.type in ("TensorListReserve", "EmptyTensorList"):
            size, number = numbers.of(op.inputs[1]), None
            if op.type == "TensorListReserve" and size is not None:
                number = int(size) if size >= 0 else None
            shape = _static_shape(op.inputs[0], numbers)
            self.set_facts(op.outputs[0], (number, shape, _EMPTY))
        elif op.type == "TensorListFromTensor":
            shape = op.inputs[0].shape
            if shape.rank:
                self.set_facts(op.outputs[0], (shape[0], shape[1:], None))
        elif op.type == "OptionalFromValue":
            self.set_facts(op.outputs[0], (None, op.inputs[0].shape, None))
        elif op.type in ("TensorListSetItem", "TensorListPushBack"):
            number, shape, value = self.of(op.inputs[0])
            item_shape = op.inputs[-1].shape
            if shape.is_compatible_with(item_shape):
                shape = shape.merge_with(item_shape)
            item_value = numbers.of(op.inputs[-1])
            is_equal = value is _EMPTY or np.array_equal(value, item_value)
            value = (
                item_value
                if is_equal and op.type == "TensorListPushBack"
                else None
            )
            self.set_facts(op.outputs[0], (number, shape, value))
        elif op.type in ("TensorListPopBack", "TensorListResize"):
            self.alias(op.outputs[0], op.inputs[0])

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
        is_item = op.type in ("TensorListGetItem", "OptionalGetValue")
        if is_item or (op.type == "TensorListPopBack" and k == 1):
            known_shape = shape
        elif op.type == "TensorListStack" and shape.rank is not None:
            known_shape = tf.TensorShape([number, *shape])
        elif op.type == "LookupTableFindV2":
            known_shape = op.inputs[1].shape
        else:
            return tensor.shape
        if tensor.shape.is_compatible_with(known_shape):
            return tensor.shape.merge_with(known_shape)
        return tensor.shape


def _static_shape(tensor, numbers):
    sizes = numbers.of(tensor)
    if sizes is None or sizes.ndim == 0:
        return tf.TensorShape(_ANY)
    return tf.TensorShape([None if s < 0 else int(s) for s in sizes])
