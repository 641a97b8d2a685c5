"""The numbers and sizes that a graph knows before it runs."""

import dataclasses
import functools
import inspect

import numpy as np
import tensorflow as tf

from keras_pergrad.proof.op_facts import (
    EVALUATED,
    FACTS,
    FILLS_SHAPE,
    JOINS,
    MOVES,
    SIZE_PRODUCTS,
    SIZE_SUMS,
    TAKES_PARTS,
    has,
    source_of,
)
from keras_pergrad.proof.sample_loops import CurrentSample
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
from keras_pergrad.proof.values import NOT_ASKED


class StaticNumbers:
    """The values of tensors of whole numbers that shapes determine.

    Args:
        values: the `Values` of the tensors.
    """

    #: Larger tensors are not evaluated.
    MAX_SIZE = 2**20

    def __init__(self, values):
        self._values = values

    def set(self, tensor, value):
        """Set the value of a tensor."""
        dtype = tensor.dtype.as_numpy_dtype
        self._values[tensor].number = np.asarray(value, dtype)

    def forget(self, tensors):
        """Forget the values of tensors; they are not evaluated again."""
        for tensor in tensors:
            self._values[tensor].number = None

    def of(self, tensor):
        """Return a tensor's value, an array, or None."""
        return self.of_value(self._values[tensor])

    def of_value(self, value):
        """Return the same of the tensor with a `Value`."""
        if value.number is NOT_ASKED:
            value.number = self._evaluate(value.tensor)
        return value.number

    def _evaluate(self, tensor):
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
        if not op.inputs or not has(op, EVALUATED):
            return None
        input_values = [self.of(t) for t in op.inputs]
        if any(v is None for v in input_values):
            return None
        values = by_numpy(op, input_values) or by_tensorflow(op, input_values)
        if values is None:
            return None
        for output, value in zip(op.outputs, values):
            if self._may_be_known(output):
                self._values[output].number = value
        return values[tensor.value_index]

    def _may_be_known(self, tensor):
        size = tensor.shape.num_elements()
        is_integral = tensor.dtype.is_integer or tensor.dtype.is_bool
        return is_integral and (size is None or size <= self.MAX_SIZE)


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
    "StridedSlice": lambda op, x, *bounds: [x[_slice(op, bounds)]],
    "BroadcastGradientArgs": lambda op, x, y: _broadcast_axes(x, y),
}
_MASKS = ("begin_mask", "end_mask", "shrink_axis_mask")


def by_numpy(op, arrays):
    """Return the outputs of a frequent op, or None.

    NumPy is several times as fast as TensorFlow on such small arrays.
    """
    if op.type not in _BY_NUMPY or not _is_plain(op, arrays):
        return None
    try:
        with np.errstate(all="ignore"):
            values = _BY_NUMPY[op.type](op, *arrays)
    except (ValueError, TypeError, IndexError):
        return None  # TensorFlow may refuse it, too.
    return [
        np.asarray(value, t.dtype.as_numpy_dtype)
        for value, t in zip(values, op.outputs)
    ]


def _is_plain(op, arrays):
    """Whether NumPy does the same on these arrays."""
    if op.type in ("FloorDiv", "FloorMod"):
        return arrays[1].all()
    if op.type == "GatherV2":
        x, ids, axis = arrays
        size = x.shape[int(axis)] if x.ndim else 0
        return (
            not op.get_attr("batch_dims") and ((ids >= 0) & (ids < size)).all()
        )
    if op.type == "StridedSlice":
        has_other_masks = op.get_attr("ellipsis_mask") or op.get_attr(
            "new_axis_mask"
        )
        x, begin, _, step = arrays
        if has_other_masks or x.ndim != 1 or len(begin) != 1 or step[0] != 1:
            return False
        is_inside = -len(x) <= begin[0] < len(x)
        return is_inside or not op.get_attr("shrink_axis_mask")
    if op.type == "InvertPermutation":
        return (np.sort(arrays[0]) == np.arange(len(arrays[0]))).all()
    if op.type == "BroadcastGradientArgs":
        pairs = zip(arrays[0][::-1], arrays[1][::-1])
        return all(a == b or 1 in (a, b) for a, b in pairs)
    return True


def _slice(op, bounds):
    """Return the index of a strided slice of a vector."""
    begin, end, _ = bounds
    first, last, is_index = (op.get_attr(mask) & 1 for mask in _MASKS)
    if is_index:
        # TensorFlow does not look at the other masks then.
        return begin[0]
    return slice(None if first else begin[0], None if last else end[0])


def _broadcast_axes(x, y):
    """Return the axes over which the gradient of each shape is summed."""
    if np.array_equal(x, y):
        return [], []
    rank = max(len(x), len(y))
    x, y = ([1] * (rank - len(s)) + list(s) for s in (x, y))
    return (
        [k for k in range(rank) if x[k] == 1],
        [k for k in range(rank) if y[k] == 1],
    )


def by_tensorflow(op, arrays):
    """Return the outputs of an op for arrays; None where it fails."""
    arguments, k = {}, 0
    function = getattr(tf.raw_ops, op.type)
    names = _argument_names(op.type)
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            for name, input_def in zip(names, op.op_def.input_arg):
                if input_def.number_attr:
                    count = op.get_attr(input_def.number_attr)
                    arguments[name] = [
                        tf.constant(v, t.dtype)
                        for v, t in zip(
                            arrays[k : k + count], op.inputs[k : k + count]
                        )
                    ]
                    k += count
                else:
                    arguments[name] = tf.constant(arrays[k], op.inputs[k].dtype)
                    k += 1
            numbers = {a.number_attr for a in op.op_def.input_arg}
            types = {a.type_attr for a in op.op_def.input_arg}
            for attribute in op.op_def.attr:
                if attribute.name not in numbers | types:
                    arguments[attribute.name] = op.get_attr(attribute.name)
            outputs = function(**arguments)
    except (ValueError, TypeError, KeyError, tf.errors.OpError):
        return None
    is_sequence = isinstance(outputs, (list, tuple))
    return [t.numpy() for t in (outputs if is_sequence else [outputs])]


@functools.cache
def _argument_names(op_type):
    """Return the names of an op's arguments, which differ in Python."""
    return list(inspect.signature(getattr(tf.raw_ops, op_type)).parameters)


def is_zero(tensor):
    """Whether a tensor is known to be zero while tracing."""
    value = tf.get_static_value(tensor)
    return value is not None and not np.any(value)


#: What a rule raises that does not know an op of this shape.
RULE_FAILURES = (
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    TypeError,
    ZeroDivisionError,
)


class Sizes:
    """Tells which tensors without samples follow the number of samples.

    Args:
        n, any_number: as of `Typing`.
        numbers: its `StaticNumbers`.
        values: its `Values`.
    """

    def __init__(self, n, any_number, numbers, *, values):
        self._n, self._any_number, self._numbers = n, any_number, numbers
        self._values = values

    def note(self, tensors):
        """Note tensors of nothing but sizes."""
        for tensor in tensors:
            self._values[tensor].is_size = True

    def flags(self, op, types, flags, *, rule):
        """Return the flags of what an op makes of no samples, by output.

        `flags` are those of all its inputs; `rule(types)` returns the types of
        its outputs, given those of inputs.
        """
        if self._any_number and _follows_sample_count(op, self._n, rule):
            flags |= BY_SIZE
        elif flags & BY_SIZE and self._rearranges_sizes(op, types):
            if not has(op, SIZE_SUMS):
                self.note(op.outputs)
            return self.left(op, flags)
        return [flags] * len(op.outputs)

    def left(self, op, flags):
        """Return flags without `BY_SIZE` where no size follows the samples."""
        if not self._any_number:
            return [flags & ~BY_SIZE] * len(op.outputs)
        numbers = [self._numbers.of(tensor) for tensor in op.outputs]
        if has(op, SIZE_SUMS) and all(n is not None for n in numbers):
            # The sizes of the parts, but for the last.
            follows_samples = any(
                map(self._follows_samples, np.diff(numbers, axis=0))
            )
            return [flags if follows_samples else flags & ~BY_SIZE] * len(
                op.outputs
            )
        return [
            flags if self._follows_samples(number) else flags & ~BY_SIZE
            for number in numbers
        ]

    def _follows_samples(self, number):
        """Whether a number, of several batch sizes, follows the samples."""
        if number is None:
            return True
        return ((number % self._n == 0) & (number != 0)).any()

    def _rearranges_sizes(self, op, types):
        """Whether an op gives some of the sizes that it takes, or products.

        Which of them follow the number of samples shows in their values then.
        """
        source = source_of(op)
        size_inputs = [
            (t, input_type)
            for t, input_type in zip(op.inputs, types)
            if input_type.flags & BY_SIZE
        ]
        if has(op, TAKES_PARTS):
            size_inputs = [
                pair for pair in size_inputs if pair[0] is not op.inputs[source]
            ]
            if size_inputs:
                return False
            size_inputs = [(op.inputs[source], types[source])]
        return has(op, SIZE_PRODUCTS | SIZE_SUMS) and all(
            self._values[t].is_size for t, _ in size_inputs
        )


def without_size_flags(op, types):
    """Return types of inputs; a size that gives a shape gives no value."""
    if has(op, TAKES_PARTS) and isinstance(types[source_of(op)], Free):
        # Which part of a table it is gives the values.
        return types
    size_inputs = FACTS[op.type].size_inputs
    return [
        Free(t.flags & ~BY_SIZE) if k in size_inputs and type(t) is Free else t
        for k, t in enumerate(types)
    ]


def _follows_sample_count(op, n, rule):
    """Whether what an op gives may follow how many samples there are.

    It does if the op joins entries along an axis as long as the samples are
    many: ones have a sum that follows that number, whatever the samples are.
    Its type rule says whether the op would keep samples separate there.
    """
    if any(t.dtype == tf.variant for t in (*op.inputs, *op.outputs)):
        # A list holds what is put into it as it is.
        return False
    input_axes = max((count_sample_axes(t, n) for t in op.inputs), default=0)
    output_axes = max((count_sample_axes(t, n) for t in op.outputs), default=0)
    if not input_axes:
        return output_axes > 0 and not has(op, FILLS_SHAPE)
    if has(op, MOVES | JOINS):
        return False
    if input_axes > output_axes:
        return True
    try:
        output_types = rule([_assumed_type(t, n) for t in op.inputs])
    except (Mixes, Untyped, *RULE_FAILURES):
        return True
    output_types = (
        output_types if isinstance(output_types, list) else [output_types]
    )
    return not all(
        isinstance(output_type, (At, Free)) for output_type in output_types
    )


def _assumed_type(tensor, n):
    """Return the type of a tensor if it had samples where the size is n."""
    sizes = tensor.shape.as_list() if tensor.shape.rank else []
    for axis, size in enumerate(sizes):
        if _is_multiple(size, n):
            return At(axis, size // n)
    return FREE


def count_sample_axes(tensor, n):
    """Return how many axes have a multiple of n as their size."""
    if tensor.shape.rank is None:
        return 0
    return sum(_is_multiple(size, n) for size in tensor.shape.as_list())


def _is_multiple(size, n):
    return bool(size) and size % n == 0


def types_of_one_sample(op, types, n):
    """Return types where there is one sample, or none: nothing can mix."""
    sample_axis = next((t.axis for t in types if isinstance(t, At)), 0)
    output_types = []
    for tensor in op.outputs:
        sizes = tensor.shape.as_list() if tensor.shape.rank else []
        candidates = [k for k, size in enumerate(sizes) if size == n]
        axis = (
            sample_axis
            if sample_axis in candidates
            else next(iter(candidates), None)
        )
        flags = flags_of(types)
        output_types.append(
            Total(flags) if axis is None else At(axis, flags=flags)
        )
    return output_types


def vouched_types(op, types, n):
    """Return the samples where they were, as the user says.

    Where no input has an axis for them, an output has it by its size, n.
    """
    if all(isinstance(t, Free) for t in types):
        return Free(flags_of(types))
    sample_type = next((t for t in types if isinstance(t, At)), None)
    flags = flags_of(types) & ~(BY_SIZE | DIVIDED)
    current_sample = next(
        (t for t in types if isinstance(t, CurrentSample)), None
    )
    if current_sample is not None:
        return dataclasses.replace(current_sample, flags=flags)
    if sample_type is None:
        return [
            At(0, flags=flags | VALUES)
            if t.shape.rank and t.shape[0] == n
            else Total(flags | VALUES)
            for t in op.outputs
        ]
    return [
        dataclasses.replace(sample_type, flags=flags, factor=())
        if t.shape.rank is None or t.shape.rank > sample_type.axis
        else Total(flags | VALUES)
        for t in op.outputs
    ]


def have_sample_axes(op, output_types, n):
    """Whether each output that follows samples has an axis of all of them."""
    if not isinstance(output_types, list):
        return isinstance(output_types, (Free, CurrentSample))
    return all(
        isinstance(output_type, At)
        and t.shape.rank is not None
        and t.shape[output_type.axis] == n * output_type.rows * output_type.lead
        for output_type, t in zip(output_types, op.outputs)
    )
