"""The numbers and sizes that a graph knows before it runs."""

import dataclasses
import functools
import inspect

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.op_facts import FACTS, TAKE_PARTS, op_types
from keras_pergrad.proof.sample_loops import Single
from keras_pergrad.proof.tensor_types import (
    BY_SIZE,
    DIVIDED,
    FREE,
    VALUES,
    At,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
)


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

    def forget(self, tensors):
        """Let the values of tensors not be known."""
        for tensor in tensors:
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


# Numbers that follow how many samples there are: see `Sizes`.


#: Ops that move entries, or repeat them, and make no new ones of them.
_MOVE = op_types(
    "BroadcastTo Concat ConcatV2 ExpandDims Fill GatherNd GatherV2 Identity "
    "Pack Reshape ReverseV2 Slice Split SplitV Squeeze StopGradient "
    "StridedSlice Tile Transpose Unpack"
)
#: Ops that give as many equal entries, or draws, as they are told to.
_ALIKE = op_types("BroadcastTo Empty Fill Reshape Tile")
_DRAW = ("Random", "Stateless", "StatefulUniform", "StatefulStandardNormal")
#: What a rule raises that does not know an op of this shape.
FAILURES = (
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    TypeError,
    ZeroDivisionError,
)
_ARRANGE = op_types(
    "Cast ConcatOffset ConcatV2 ExpandDims GatherV2 Identity Mul Pack Prod "
    "Reshape Slice Split SplitV Squeeze StridedSlice Unpack"
)


class Sizes:
    """Tells which tensors without samples follow the number of samples."""

    def __init__(self, n, any_number, numbers):
        self._n, self._any, self._numbers = n, any_number, numbers
        # Tensors of nothing but sizes, some of which follow the samples.
        self._made = set()

    def note(self, tensors):
        """Note tensors of nothing but sizes."""
        self._made.update(map(id, tensors))

    def same(self, made, tensor):
        """Note that a tensor stands for another one."""
        if id(tensor) in self._made:
            self._made.add(id(made))

    def flags(self, op, types, flags, rule):
        """Return the flags of what an op makes of no samples, by output.

        `flags` are those of all its inputs; `rule(types)` returns the types of
        its outputs, given those of inputs.
        """
        if self._any and _counts(op, self._n, rule):
            flags |= BY_SIZE
        elif flags & BY_SIZE and self._arranges(op, types):
            if op.type != "ConcatOffset":  # It gives sums of sizes.
                self.note(op.outputs)
            return self.left(op, flags)
        return [flags] * len(op.outputs)

    def left(self, op, flags):
        """Return flags without `BY_SIZE` where no size follows the samples."""
        if not self._any:
            return [flags & ~BY_SIZE] * len(op.outputs)
        numbers = [self._numbers.of(tensor) for tensor in op.outputs]
        if op.type == "ConcatOffset" and all(n is not None for n in numbers):
            # The sizes of the parts, but for the last.
            follows = any(map(self._follows, np.diff(numbers, axis=0)))
            return [flags if follows else flags & ~BY_SIZE] * len(op.outputs)
        return [
            flags if self._follows(number) else flags & ~BY_SIZE
            for number in numbers
        ]

    def _follows(self, number):
        """Whether a number, of several batch sizes, follows the samples."""
        if number is None:
            return True
        return ((number % self._n == 0) & (number != 0)).any()

    def _arranges(self, op, types):
        """Whether an op gives some of the sizes that it takes, or products.

        Which of them follow the number of samples shows in their values then.
        """
        data = [(t, k) for t, k in zip(op.inputs, types) if k.flags & BY_SIZE]
        if op.type == "GatherV2" or op.type in TAKE_PARTS:
            data = [pair for pair in data if pair[0] is not op.inputs[0]]
            if data:
                return False
            data = [(op.inputs[0], types[0])]
        return op.type in _ARRANGE and all(id(t) in self._made for t, _ in data)


def as_shapes(op, types):
    """Return types of inputs; a size that gives a shape gives no value."""
    if op.type in TAKE_PARTS and isinstance(types[0], Free):
        # Which part of a table it is gives the values.
        return types
    places = FACTS[op.type].sizes
    return [
        Free(t.flags & ~BY_SIZE) if k in places and type(t) is Free else t
        for k, t in enumerate(types)
    ]


def _counts(op, n, rule):
    """Whether what an op gives may follow how many samples there are.

    It does if the op joins entries along an axis as long as the samples are
    many: ones have a sum that follows that number, whatever the samples are.
    Its type rule tells whether the op would keep samples apart there.
    """
    if any(t.dtype == tf.variant for t in (*op.inputs, *op.outputs)):
        # A list holds what is put into it as it is.
        return False
    before = max((_multiples(t, n) for t in op.inputs), default=0)
    after = max((_multiples(t, n) for t in op.outputs), default=0)
    if not before:
        alike = op.type in _ALIKE or op.type.startswith(_DRAW)
        return after > 0 and not alike
    if op.type in _MOVE:
        return False
    if before > after:
        return True
    try:
        kinds = rule([_as_samples(t, n) for t in op.inputs])
    except (Mixes, Untyped, *FAILURES):
        return True
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return not all(isinstance(kind, (At, Free)) for kind in kinds)


def _as_samples(tensor, n):
    """Return the type of a tensor if it had samples where the size is n."""
    sizes = tensor.shape.as_list() if tensor.shape.rank else []
    for axis, size in enumerate(sizes):
        if _is_multiple(size, n):
            return At(axis, size // n)
    return FREE


def _multiples(tensor, n):
    """Return how many axes have a multiple of n as their size."""
    if tensor.shape.rank is None:
        return 0
    return sum(_is_multiple(size, n) for size in tensor.shape.as_list())


def _is_multiple(size, n):
    return bool(size) and size % n == 0


# The types of ops of which nothing is proved: what holds all the same.


def of_one_sample(op, types, n):
    """Return types where there is one sample, or none: nothing can mix."""
    place = next((t.axis for t in types if isinstance(t, At)), 0)
    kinds = []
    for tensor in op.outputs:
        sizes = tensor.shape.as_list() if tensor.shape.rank else []
        ones = [k for k, size in enumerate(sizes) if size == n]
        axis = place if place in ones else next(iter(ones), None)
        flags = flags_of(types)
        kinds.append(Total(flags) if axis is None else At(axis, flags=flags))
    return kinds


def as_vouched(op, types, n):
    """Return the samples where they were, as the user says.

    Where no input has an axis for them, an output has it by its size, n.
    """
    if all(isinstance(t, Free) for t in types):
        return Free(flags_of(types))
    at = next((t for t in types if isinstance(t, At)), None)
    flags = flags_of(types) & ~(BY_SIZE | DIVIDED)
    single = next((t for t in types if isinstance(t, Single)), None)
    if single is not None:
        return dataclasses.replace(single, flags=flags)
    if at is None:
        return [
            At(0, flags=flags | VALUES)
            if t.shape.rank and t.shape[0] == n
            else Total(flags | VALUES)
            for t in op.outputs
        ]
    return [
        dataclasses.replace(at, flags=flags, factor=())
        if t.shape.rank is None or t.shape.rank > at.axis
        else Total(flags | VALUES)
        for t in op.outputs
    ]


def are_placed(op, kinds, n):
    """Whether each output that follows samples has an axis of all of them."""
    if not isinstance(kinds, list):
        return isinstance(kinds, (Free, Single))
    return all(
        isinstance(kind, At)
        and t.shape.rank is not None
        and t.shape[kind.axis] == n * kind.rows * kind.lead
        for kind, t in zip(kinds, op.outputs)
    )
