"""An op as its type rule sees it: shapes, attributes, static numbers."""

import math

import numpy as np
import tensorflow as tf

from keras_pergrad.samples.types.tensor_types import Untyped


class TypedOp:
    """One op of the typed graph.

    Attributes:
        op: the op.
        n: the number of samples, with which it is typed.
        any_number: whether the step takes any number of samples.
        lengths: the `OpenLengths` of the batch.
        type_of: the type of a tensor.
    """

    def __init__(self, op, typing, numbers):
        self.op, self._numbers = op, numbers
        self.n, self.any_number = typing.n, typing.any_number
        self.lengths, self._lists = typing.lengths, typing.lists
        self.type_of = typing.of

    @property
    def type(self):
        """The op's type, a string."""
        return self.op.type

    @property
    def inputs(self):
        """The tensors that it takes."""
        return self.op.inputs

    @property
    def outputs(self):
        """The tensors that it gives."""
        return self.op.outputs

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
        value = self._numbers.of(self.op.inputs[k])
        if value is None:
            raise Untyped(f"input {k} is not known while tracing")
        return np.asarray(value)

    def number_or_none(self, k):
        """Return the same, or None."""
        return self._numbers.of(self.op.inputs[k])

    def length(self, k):
        """Return how many tensors are in a list, or None."""
        return self._lists.of(self.op.inputs[k])[0]

    def of_tensor(self, tensor):
        """Return the value of a tensor that shapes alone determine, or None."""
        return self._numbers.of(tensor)

    def partial_number(self, k):
        """Return a vector of which some entries may be None."""
        value = self._numbers.of(self.op.inputs[k])
        if value is None:
            value = tf.get_static_value(self.op.inputs[k], partial=True)
        if value is None:
            return None
        return [None if v is None else int(v) for v in np.ravel(value)]

    def axes(self, k, rank):
        """Return an input of axes as a sorted list of places."""
        return sorted(int(v) % rank for v in np.ravel(self.number(k)))


def known_rank(tensor):
    """Return a tensor's rank, or raise `Untyped`."""
    if tensor.shape.rank is None:
        raise Untyped("the rank of a tensor is not known")
    return tensor.shape.rank


def product(sizes):
    """Return the product of sizes, or raise `Untyped`."""
    if any(s is None for s in sizes):
        raise Untyped("a size is not known while tracing")
    return math.prod(sizes)
