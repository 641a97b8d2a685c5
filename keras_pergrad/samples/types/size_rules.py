"""Numbers that follow how many samples there are: see `Sizes`."""

import numpy as np
import tensorflow as tf

from keras_pergrad.samples.op_facts import FACTS, TAKE_PARTS, op_types
from keras_pergrad.samples.types.tensor_types import (
    BY_SIZE,
    FREE,
    At,
    Free,
    Mixes,
    Untyped,
)

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
