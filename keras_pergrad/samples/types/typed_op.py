"""An op as its type rule sees it: shapes, attributes, static numbers."""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_pergrad.samples.types.tensor_types import Free, Mixes, Untyped

UNKNOWN_RANK = "the rank of a tensor is not known"


@dataclasses.dataclass
class TypedOp:
    """One op of the typed graph.

    Attributes:
        op: the op.
        type: its type, a string.
        inputs, outputs: the tensors that it takes and gives.
        type_of: the type of a tensor.
        n: the number of samples, with which it is typed.
        any_number: whether the step takes any number of samples.
        lengths: the `OpenLengths` of the batch.
        numbers: the `StaticNumbers` of the typed graph.
        lists: its `ListShapes`.
    """

    op: Any
    type: str
    inputs: Any
    outputs: Any
    type_of: Any
    n: int
    any_number: bool
    lengths: Any
    numbers: Any
    lists: Any

    def attribute(self, name):
        """Return an attribute of the op."""
        return self.op.get_attr(name)

    def rank(self, k=0):
        """Return the rank of an input, or raise `Untyped`."""
        return known_rank(self.op.inputs[k])

    def rank_out(self, k=0):
        """Return the rank of an output, as `rank`."""
        return known_rank(self.op.outputs[k])

    def shape(self, k=0):
        """Return the sizes of an input, None where one is not known."""
        self.rank(k)
        return self.op.inputs[k].shape.as_list()

    def shape_out(self, k=0):
        """Return the sizes of an output, None where one is not known."""
        self.rank_out(k)
        return self.op.outputs[k].shape.as_list()

    def number(self, k):
        """Return the array that shapes alone make of an input, or `Untyped`."""
        value = self.numbers.of(self.op.inputs[k])
        if value is None:
            raise Untyped(f"input {k} is not known while tracing")
        return np.asarray(value)

    def number_or_none(self, k):
        """Return the same, or None."""
        return self.numbers.of(self.op.inputs[k])

    def length(self, k):
        """Return how many tensors are in a list, or None."""
        return self.lists.of(self.op.inputs[k])[0]

    def of_tensor(self, tensor):
        """Return the value of a tensor that shapes alone determine, or None."""
        return self.numbers.of(tensor)

    def partial_number(self, k):
        """Return a vector of which some entries may be None."""
        value = self.numbers.of(self.op.inputs[k])
        if value is None:
            value = tf.get_static_value(self.op.inputs[k], partial=True)
        if value is None:
            return None
        return [None if v is None else int(v) for v in np.ravel(value)]

    def axes(self, k, rank):
        """Return an input of axes as a sorted list of places."""
        return sorted(int(v) % rank for v in np.ravel(self.number(k)))


def only_first(types):
    """Return the first type, if the others do not follow the samples."""
    if any(not isinstance(t, Free) for t in types[1:]):
        raise Mixes("takes sizes or places from the values of the samples")
    return types[0]


def known_rank(tensor):
    """Return a tensor's rank, or raise `Untyped`."""
    if tensor.shape.rank is None:
        raise Untyped(UNKNOWN_RANK)
    return tensor.shape.rank


def product(sizes):
    """Return the product of sizes, or raise `Untyped`."""
    if any(s is None for s in sizes):
        raise Untyped("a size is not known while tracing")
    return math.prod(sizes)
