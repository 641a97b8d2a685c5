"""An op as its type rule sees it: shapes, attributes, static numbers."""

import functools
import inspect
import math

import numpy as np
import tensorflow as tf

from keras_pergrad.samples.types.tensor_types import Untyped
from keras_pergrad.samples.types.type_rules import op_types


class TypedOp:
    """One op of the typed graph."""

    def __init__(self, op, n, numbers, lists, type_of):
        self.op, self.n, self._numbers = op, n, numbers
        self._lists, self.type_of = lists, type_of

    @property
    def type(self):
        """The op's type, a string."""
        return self.op.type

    @property
    def is_gradient(self):
        """Whether it is of the backward pass, by its name."""
        return "gradients" in self.op.name

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
        found = self._numbers.of(self.op.inputs[k])
        if found is None:
            raise Untyped(f"input {k} is not known while tracing")
        return np.asarray(found)

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
        found = self._numbers.of(self.op.inputs[k])
        if found is None:
            found = tf.get_static_value(self.op.inputs[k], partial=True)
        if found is None:
            return None
        return [None if v is None else int(v) for v in np.ravel(found)]

    def axes(self, k, rank):
        """Return an input of axes as a sorted list of places."""
        return sorted(int(v) % rank for v in np.ravel(self.number(k)))


def known_rank(tensor):
    """Return a tensor's rank, or raise `Untyped`."""
    if tensor.shape.rank is None:
        raise Untyped("the rank of a tensor is not known")
    return tensor.shape.rank


class StaticNumbers:
    """Values of small whole-number tensors, from shapes alone."""

    #: Larger tensors are not evaluated.
    MOST = 2**20

    def __init__(self):
        self._known = {}

    def give(self, tensor, value):
        """Set the value of a tensor."""
        self._known[id(tensor)] = (
            tensor,
            np.asarray(value, tensor.dtype.as_numpy_dtype),
        )

    def of(self, tensor):
        """Return a tensor's value, an array, or None."""
        key = id(tensor)
        if key not in self._known:
            # The tensor is kept, so that its id stays its own.
            self._known[key] = tensor, self._evaluated(tensor)
        return self._known[key][1]

    def _evaluated(self, tensor):
        dtype = tensor.dtype
        if not (dtype.is_integer or dtype.is_bool):
            return None
        size = tensor.shape.num_elements()
        if size is not None and size > self.MOST:
            return None
        op = tensor.op
        if op.type in ("Shape", "ShapeN"):
            shape = op.inputs[tensor.value_index].shape
            if not shape.is_fully_defined():
                return None
            return np.array(shape.as_list(), dtype.as_numpy_dtype)
        if op.type == "Size":
            size = op.inputs[0].shape.num_elements()
            return None if size is None else np.array(size)
        if op.type == "Rank":
            rank = op.inputs[0].shape.rank
            return None if rank is None else np.array(rank)
        if op.type == "Const":
            return tf.get_static_value(tensor)
        if not op.inputs or op.type not in _EVALUATED:
            return None
        given = [self.of(t) for t in op.inputs]
        if any(v is None for v in given):
            return None
        return _run(op, given, tensor.value_index)


#: Ops on shapes that are evaluated.
_EVALUATED = op_types(
    "Identity Cast Add AddV2 Sub Mul FloorDiv FloorMod Mod TruncateDiv "
    "TruncateMod RealDiv Maximum Minimum Neg Abs Sign Pack Unpack ConcatV2 "
    "StridedSlice Slice Reshape ExpandDims Squeeze Transpose GatherV2 "
    "Range Prod Sum Max Min Any All Fill Tile BroadcastTo BroadcastArgs "
    "BroadcastGradientArgs Less LessEqual Greater GreaterEqual Equal "
    "NotEqual LogicalAnd LogicalOr LogicalNot SelectV2 Select Pad PadV2 "
    "ZerosLike OnesLike InvertPermutation ConcatOffset Cumsum Reverse "
    "ReverseV2 ListDiff DynamicStitch Split SplitV ArgMax ArgMin OneHot "
    "Where ScatterNd TensorScatterUpdate Size StopGradient Unique Bitcast "
    "EnsureShape AddN Square Roll MatrixBandPart LeftShift RightShift "
    "Bucketize"
)


def _run(op, given, index):
    """Run an op on arrays; None where that fails."""
    arguments, k = {}, 0
    function = getattr(tf.raw_ops, op.type)
    names = _names(op.type)
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            for name, argument in zip(names, op.op_def.input_arg):
                if argument.number_attr:
                    count = op.get_attr(argument.number_attr)
                    arguments[name] = [
                        tf.constant(v, t.dtype)
                        for v, t in zip(
                            given[k : k + count], op.inputs[k : k + count]
                        )
                    ]
                    k += count
                else:
                    arguments[name] = tf.constant(given[k], op.inputs[k].dtype)
                    k += 1
            numbers = {a.number_attr for a in op.op_def.input_arg}
            types = {a.type_attr for a in op.op_def.input_arg}
            for attribute in op.op_def.attr:
                if attribute.name not in numbers | types:
                    arguments[attribute.name] = op.get_attr(attribute.name)
            found = function(**arguments)
    except (ValueError, TypeError, KeyError, tf.errors.OpError):
        return None
    if isinstance(found, (list, tuple)):
        found = found[index]
    return found.numpy()


@functools.cache
def _names(op_type):
    """Return the arguments of an op: Python has other names for some."""
    return list(inspect.signature(getattr(tf.raw_ops, op_type)).parameters)


def product(sizes):
    """Return the product of sizes, or raise `Untyped`."""
    if any(s is None for s in sizes):
        raise Untyped("a size is not known while tracing")
    return math.prod(sizes)
