"""The types of lists of tensors, and the shapes of their entries.

The type of a list is that of its tensors.
"""

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
from keras_pergrad.proof.values import NO_TENSORS, UNKNOWN_ITEMS, Items


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
    return [At(0, input_type.rows, lead, flags=input_type.flags), Free(BY_SIZE)]


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


class ListShapes:
    """Finds what is known of lists, and of the tensors in them.

    Args:
        values: the `Values` of the tensors.
        numbers: their `StaticNumbers`.
    """

    def __init__(self, values, numbers):
        self._values, self._numbers = values, numbers

    def count(self, tensor):
        """Return how many tensors are in a list, or None."""
        return self._values[tensor].items.count

    def is_empty(self, tensor):
        """Whether a list is known to have no tensors."""
        items = self._values[tensor].items
        return items.value is NO_TENSORS and items.count is None

    def merge(self, tensor, other):
        """Return the `Items` of a list that is either of two.

        Also returns whether they differ from those of `tensor`.
        """
        items, other_items = (self._values[t].items for t in (tensor, other))
        count = items.count if items.count == other_items.count else None
        shape = items.shape
        has_tensors = items.value is not NO_TENSORS
        if not has_tensors and shape.is_compatible_with(other_items.shape):
            shape = shape.merge_with(other_items.shape)
        elif shape.rank is not None:
            shape = shape.most_specific_compatible_shape(other_items.shape)
        value: Any = items.value
        if not has_tensors:
            value = other_items.value
        elif other_items.value is not NO_TENSORS and not np.array_equal(
            value, other_items.value
        ):
            value = None
        is_unchanged = (
            count == items.count and shape.as_proto() == items.shape.as_proto()
        )
        is_unchanged = is_unchanged and (
            value is items.value or np.array_equal(value, items.value)
        )
        return Items(count, shape, value), not is_unchanged

    def note(self, op):
        """Note what an op on lists does to them, and how long they are."""
        if op.type == "TensorListLength":
            count = self.count(op.inputs[0])
            if count is not None:
                self._numbers.set(op.outputs[0], count)
        elif op.type in ("TensorListPopBack", "TensorListResize"):
            items = self._values[op.inputs[0]].items
            self._values[op.outputs[0]].items = items
        else:
            items = self._items_after(op)
            if items is not None:
                self._values[op.outputs[0]].items = items

    def _items_after(self, op):
        """Return the `Items` of a list that an op makes or extends."""
        if op.type in ("TensorListReserve", "EmptyTensorList"):
            size, count = self._numbers.of(op.inputs[1]), None
            if op.type == "TensorListReserve" and size is not None:
                count = int(size) if size >= 0 else None
            shape = _static_shape(op.inputs[0], self._numbers)
            return Items(count, shape, NO_TENSORS)
        if op.type == "TensorListFromTensor":
            shape = op.inputs[0].shape
            return Items(shape[0], shape[1:]) if shape.rank else None
        if op.type == "OptionalFromValue":
            return Items(shape=op.inputs[0].shape)
        if op.type not in ("TensorListSetItem", "TensorListPushBack"):
            return None
        items, item = self._values[op.inputs[0]].items, op.inputs[-1]
        shape, value = items.shape, None
        if shape.is_compatible_with(item.shape):
            shape = shape.merge_with(item.shape)
        if op.type == "TensorListPushBack":
            number = self._numbers.of(item)
            if items.value is NO_TENSORS or np.array_equal(items.value, number):
                value = number
        return Items(items.count, shape, value)

    def value_of(self, op):
        """Return the value of the tensor that is taken from a list, or None."""
        if op.type != "TensorListPopBack":
            return None
        value = self._values[op.inputs[0]].items.value
        return None if value is NO_TENSORS else value

    def shape_of(self, op, k):
        """Return what is known of the shape of an output."""
        tensor = op.outputs[k]
        items = UNKNOWN_ITEMS
        if op.inputs:
            items = self._values[op.inputs[0]].items
        shape = items.shape
        is_item = op.type in ("TensorListGetItem", "OptionalGetValue")
        if is_item or (op.type == "TensorListPopBack" and k == 1):
            known_shape = shape
        elif op.type == "TensorListStack" and shape.rank is not None:
            known_shape = tf.TensorShape([items.count, *shape])
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
        return UNKNOWN_ITEMS.shape
    return tf.TensorShape([None if s < 0 else int(s) for s in sizes])
