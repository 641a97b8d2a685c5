"""Values of small whole-number tensors, from shapes alone."""

import functools
import inspect

import numpy as np
import tensorflow as tf

from keras_pergrad.samples.op_facts import op_types


class StaticNumbers:
    """What is known of such tensors."""

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

    def forget(self, tensor):
        """Let the value of a tensor not be known."""
        self._known[id(tensor)] = tensor, None

    def of(self, tensor):
        """Return a tensor's value, an array, or None."""
        key = id(tensor)
        if key not in self._known:
            # The tensor is kept, so that its id stays its own.
            self._known[key] = tensor, self._evaluated(tensor)
        return self._known[key][1]

    def _evaluated(self, tensor):
        if not self._may_be_known(tensor):
            return None
        dtype, op = tensor.dtype, tensor.op
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
        values = by_numpy(op, given) or by_tensorflow(op, given)
        if values is None:
            return None
        for one, value in zip(op.outputs, values):
            if self._may_be_known(one):
                self._known[id(one)] = one, value
        return values[tensor.value_index]

    def _may_be_known(self, tensor):
        size = tensor.shape.num_elements()
        whole = tensor.dtype.is_integer or tensor.dtype.is_bool
        return whole and (size is None or size <= self.MOST)


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


_BY_NUMPY = {
    "Identity": lambda op, x: [x],
    "AddV2": lambda op, x, y: [x + y],
    "Sub": lambda op, x, y: [x - y],
    "Mul": lambda op, x, y: [x * y],
    "FloorDiv": lambda op, x, y: [x // y],
    "FloorMod": lambda op, x, y: [x % y],
    "Maximum": lambda op, x, y: [np.maximum(x, y)],
    "Pack": lambda op, *parts: [np.stack(parts, op.get_attr("axis"))],
    "ConcatV2": lambda op, *parts: [np.concatenate(parts[:-1], parts[-1])],
    "InvertPermutation": lambda op, x: [np.argsort(x)],
    "Prod": lambda op, x, axes: [
        np.prod(x, tuple(np.ravel(axes)), keepdims=op.get_attr("keep_dims"))
    ],
    "GatherV2": lambda op, x, ids, axis: [np.take(x, ids, int(axis))],
    "StridedSlice": lambda op, x, *bounds: [x[_slice(op, *bounds)]],
    "BroadcastGradientArgs": lambda op, x, y: _broadcast_axes(x, y),
}
_MASKS = ("begin_mask", "end_mask", "shrink_axis_mask")


def by_numpy(op, given):
    """Return the outputs of a frequent op, several times as fast, or None."""
    if op.type not in _BY_NUMPY or not _is_plain(op, given):
        return None
    try:
        with np.errstate(all="ignore"):
            values = _BY_NUMPY[op.type](op, *given)
    except (ValueError, TypeError, IndexError):
        return None  # TensorFlow may refuse it, too.
    return [
        np.asarray(value, t.dtype.as_numpy_dtype)
        for value, t in zip(values, op.outputs)
    ]


def _is_plain(op, given):
    """Whether NumPy does the same on these arrays."""
    if op.type in ("FloorDiv", "FloorMod"):
        return given[1].all()
    if op.type == "GatherV2":
        x, ids, axis = given
        size = x.shape[int(axis)] if x.ndim else 0
        return (
            not op.get_attr("batch_dims") and ((ids >= 0) & (ids < size)).all()
        )
    if op.type == "StridedSlice":
        other = op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask")
        x, begin, _, step = given
        if other or x.ndim != 1 or len(begin) != 1 or step[0] != 1:
            return False
        inside = -len(x) <= begin[0] < len(x)
        return inside or not op.get_attr("shrink_axis_mask")
    if op.type == "InvertPermutation":
        return (np.sort(given[0]) == np.arange(len(given[0]))).all()
    if op.type == "BroadcastGradientArgs":
        pairs = zip(given[0][::-1], given[1][::-1])
        return all(a == b or 1 in (a, b) for a, b in pairs)
    return True


def _slice(op, begin, end, step):
    """Return the index of a strided slice of a vector."""
    first, last, one = (op.get_attr(mask) & 1 for mask in _MASKS)
    if one:
        # TensorFlow does not look at the other masks then.
        return begin[0]
    return slice(None if first else begin[0], None if last else end[0])


def _broadcast_axes(x, y):
    """Return the axes of gradients of both that broadcasting makes sums."""
    if np.array_equal(x, y):
        return [], []
    rank = max(len(x), len(y))
    x, y = ([1] * (rank - len(s)) + list(s) for s in (x, y))
    return (
        [k for k in range(rank) if x[k] == 1],
        [k for k in range(rank) if y[k] == 1],
    )


def by_tensorflow(op, given):
    """Return the outputs of an op for arrays; None where it fails."""
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
            outputs = function(**arguments)
    except (ValueError, TypeError, KeyError, tf.errors.OpError):
        return None
    several = isinstance(outputs, (list, tuple))
    return [t.numpy() for t in (outputs if several else [outputs])]


@functools.cache
def _names(op_type):
    """Return the arguments of an op: Python has other names for some."""
    return list(inspect.signature(getattr(tf.raw_ops, op_type)).parameters)
