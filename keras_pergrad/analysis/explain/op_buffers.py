"""The buffer that holds an op's output: a new one, or that of an input."""

import math

import tensorflow as tf

#: The output is an input under another shape or name.
_SAME = frozenset(
    (
        "Bitcast",
        "CheckNumerics",
        "EnsureShape",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "PreventGradient",
        "Reshape",
        "Snapshot",
        "Squeeze",
        "StopGradient",
    )
)
#: Nothing is allocated, or what is lives as long as the graph or the batch.
_STANDING = frozenset(
    (
        "Const",
        "NoOp",
        "Placeholder",
        "PlaceholderWithDefault",
        "ReadVariableOp",
        "VarHandleOp",
        "_Arg",
    )
)
#: Element by element: written over an input that nothing needs any more.
_IN_PLACE = frozenset(
    (
        "Abs",
        "Add",
        "AddN",
        "AddV2",
        "BiasAdd",
        "Ceil",
        "ClipByValue",
        "Cos",
        "Div",
        "DivNoNan",
        "Elu",
        "EluGrad",
        "Erf",
        "Erfc",
        "Exp",
        "Expm1",
        "Floor",
        "FloorDiv",
        "FloorMod",
        "Inv",
        "InvGrad",
        "LeakyRelu",
        "LeakyReluGrad",
        "Log",
        "Log1p",
        "LogSoftmax",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "Maximum",
        "Minimum",
        "Mul",
        "MulNoNan",
        "Neg",
        "Pow",
        "RealDiv",
        "Reciprocal",
        "ReciprocalGrad",
        "Relu",
        "Relu6",
        "Relu6Grad",
        "ReluGrad",
        "Round",
        "Rsqrt",
        "RsqrtGrad",
        "Select",
        "SelectV2",
        "Selu",
        "SeluGrad",
        "Sigmoid",
        "SigmoidGrad",
        "Sign",
        "Sin",
        "Softmax",
        "Softplus",
        "SoftplusGrad",
        "Softsign",
        "SoftsignGrad",
        "Sqrt",
        "SqrtGrad",
        "Square",
        "SquaredDifference",
        "Sub",
        "Tanh",
        "TanhGrad",
        "TensorListPushBack",
        "TensorListSetItem",
        "Xdivy",
        "Xlog1py",
        "Xlogy",
        "_UnaryOpsComposition",
    )
)
#: A part of the input's rows, which is not copied.
_ROWS = frozenset(("Slice", "StridedSlice"))
_SPLITS = {"Unpack": None, "Split": 0, "SplitV": 2}
_PRODUCTS = frozenset(("MatMul", "_FusedMatMul", "_MklMatMul"))
# Measured on products of 128 to 16,384 rows and columns: two threads and the
# caller's.
_PACKED, _MOST_PACKED, _THREADS = 3, 20_000_000, 3
_LISTS = (tf.variant, tf.resource, tf.string)


class Sizes:
    """The bytes of tensors, also where TensorFlow does not know a size.

    What depends on the numbers in the batch, such as how many ids differ, has
    an upper bound.

    Attributes:
        packed: scratch memory of the largest matrix product, which each thread
            keeps.
    """

    def __init__(self, samples):
        self._samples = samples
        self._rows = {}
        self.packed, self._constants = 0, {}

    @property
    def constants(self):
        """Bytes of constants, which live as long as the graph."""
        return sum(self._constants.values())

    def bytes_of(self, tensor):
        """Return the bytes of a tensor; 0: a list, counted elsewhere."""
        if tensor.dtype in _LISTS or tensor.shape.rank is None:
            return 0
        if not tensor.shape.rank:
            return tensor.dtype.size
        rest = [self._samples if d is None else d for d in tensor.shape[1:]]
        return tensor.dtype.size * self._length(tensor) * math.prod(rest)

    def _length(self, tensor):
        length = tensor.shape[0]
        return self._rows.get(id(tensor), 0) if length is None else length

    def bound(self, op):
        """Set the lengths of outputs that are not known."""
        for tensor in op.outputs:
            if tensor.shape.rank and tensor.shape[0] is None:
                self._rows[id(tensor)] = self._bound_of(op)

    def note(self, op):
        """Note a constant, and the scratch memory of a matrix product."""
        if op.type == "Const":
            self._constants[id(op)] = self.bytes_of(op.outputs[0])
        if op.type in _PRODUCTS:
            tensors = *op.inputs[:2], op.outputs[0]
            size = _PACKED * min(map(self.bytes_of, tensors))
            size = _THREADS * min(size, _MOST_PACKED)
            self.packed = max(self.packed, size)

    def _bound_of(self, op):
        if op.type == "GatherV2" and _takes_rows(op):
            return self._length(op.inputs[1])
        known = [self._length(t) for t in op.inputs if t.shape.rank]
        if op.type == "StridedSlice":
            end = tf.get_static_value(op.inputs[2])
            if end is not None and end[0] > 0:
                return min(int(end[0]), known[0])
        return max(known, default=self._samples)


def _takes_rows(op):
    _, indices, axis = op.inputs
    return bool(indices.shape.rank) and tf.get_static_value(axis) == 0


def standing(op):
    """Whether nothing is allocated for an op's outputs during the step."""
    return op.type in _STANDING


def source_of(op, place):
    """Return the input that an output is; None: it is another tensor."""
    if op.type in _SAME and op.inputs:
        return op.inputs[min(place, len(op.inputs) - 1)]
    if op.type in _ROWS:
        given, result = op.inputs[0].shape, op.outputs[0].shape
        if given.rank and result.rank and given.is_fully_defined():
            rest = given[1:].as_list()
            if rest == result.as_list()[result.rank - len(rest) :]:
                return op.inputs[0]
    if op.type in _SPLITS:
        return _split_rows(op)
    return None


def _split_rows(op):
    axis = _SPLITS[op.type]
    if axis is None:
        axis, given = op.get_attr("axis"), op.inputs[0]
    else:
        given = op.inputs[1 if op.type == "Split" else 0]
        axis = tf.get_static_value(op.inputs[axis])
    return given if axis == 0 else None


def may_overwrite(op):
    """Whether an op can write its output over an input of the same size."""
    return op.type in _IN_PLACE
