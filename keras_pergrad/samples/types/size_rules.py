"""Numbers that follow how many samples there are: see `Sizes`."""

import tensorflow as tf

from keras_pergrad.samples.types.tensor_types import BY_SIZE, Free, flags_of
from keras_pergrad.samples.types.type_rules import op_types

#: The places of inputs that are sizes or places. What follows the number of
#: samples there gives a tensor its shape, not its values.
_SHAPE_INPUTS = {
    "Reshape": (1,),
    "Fill": (0,),
    "BroadcastTo": (1,),
    "Tile": (1,),
    "StridedSlice": (1, 2, 3),
    "StridedSliceGrad": (0, 1, 2, 3),
    "Slice": (1, 2),
    "Pad": (1,),
    "PadV2": (1,),
    "SplitV": (1, 2),
    "Transpose": (1,),
    "Empty": (0,),
    "ScatterNd": (2,),
    "UnsortedSegmentSum": (2,),
    "OneHot": (1,),
    "Sum": (1,),
    "Mean": (1,),
    "Conv2DBackpropInput": (0,),
    "Conv3DBackpropInputV2": (0,),
    "DepthwiseConv2dNativeBackpropInput": (0,),
    "Conv2DBackpropFilter": (1,),
    "Conv3DBackpropFilterV2": (1,),
    "DepthwiseConv2dNativeBackpropFilter": (1,),
    "AvgPoolGrad": (0,),
    "AvgPool3DGrad": (0,),
    "ResizeNearestNeighborGrad": (1,),
    "TensorListReserve": (0, 1),
    "EmptyTensorList": (0, 1),
    "TensorListStack": (1,),
    "TensorListGetItem": (1, 2),
    "TensorListFromTensor": (1,),
    "TensorListPopBack": (1,),
    "TensorListConcatV2": (1, 2),
    "MatrixDiagV3": (1, 2, 3),
    "RandomUniform": (0,),
    "RandomUniformInt": (0,),
    "RandomStandardNormal": (0,),
    "TruncatedNormal": (0,),
    "StatelessRandomUniformV2": (0,),
    "StatelessRandomUniformIntV2": (0,),
    "StatelessRandomUniformFullIntV2": (0,),
    "StatelessRandomNormalV2": (0,),
    "StatelessTruncatedNormalV2": (0,),
    "StatelessRandomUniform": (0,),
    "StatelessRandomUniformInt": (0,),
    "StatelessRandomNormal": (0,),
    "StatelessTruncatedNormal": (0,),
    "StatelessRandomGammaV2": (0,),
    "StatelessRandomGammaV3": (0,),
    "StatelessRandomBinomial": (0,),
    "StatelessRandomPoisson": (0,),
    "RngReadAndSkip": (1, 2),
    "RngSkip": (1, 2),
    "StatefulStandardNormalV2": (1, 2),
    "StatefulUniform": (1, 2),
    "BroadcastGradientArgs": (0, 1),
    "BroadcastArgs": (0, 1),
}
#: Ops that take a part of their first input, by places.
_TAKE_PARTS = {"Slice", "StridedSlice"}
_RUNNING = {"Cumsum", "Cumprod", "CumulativeLogsumexp"}
_ARRANGE = op_types(
    "Cast ConcatV2 ExpandDims GatherV2 Identity Mul Pack Prod Reshape "
    "Slice Split SplitV Squeeze StridedSlice Unpack"
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

    def as_shapes(self, op, types):
        """Return types of inputs; a size that gives a shape gives no value."""
        places = _SHAPE_INPUTS.get(op.type, ())
        if op.type in _TAKE_PARTS and isinstance(types[0], Free):
            # Which part of a table it is gives the values.
            places = ()
        return [
            Free(t.flags & ~BY_SIZE) if k in places and type(t) is Free else t
            for k, t in enumerate(types)
        ]

    def flags(self, op, types):
        """Return the flags of what an op makes of no samples."""
        flags = flags_of(types)
        if self._any and _counts(op, self._n):
            flags |= BY_SIZE
        elif flags & BY_SIZE and self._arranges(op, types):
            flags = self.left(op, flags)
            self.note(op.outputs)
        return flags

    def left(self, op, flags):
        """Return flags without `BY_SIZE` where no size follows the samples."""
        if self._any:
            for tensor in op.outputs:
                number = self._numbers.of(tensor)
                if number is None:
                    return flags
                if ((number % self._n == 0) & (number != 0)).any():
                    return flags
        return flags & ~BY_SIZE

    def _arranges(self, op, types):
        """Whether an op gives some of the sizes that it takes, or products.

        Which of them follow the number of samples shows in their values then.
        """
        data = [(t, k) for t, k in zip(op.inputs, types) if k.flags & BY_SIZE]
        if op.type == "GatherV2" or op.type in _TAKE_PARTS:
            data = [pair for pair in data if pair[0] is not op.inputs[0]]
            if data:
                return False
            data = [(op.inputs[0], types[0])]
        return op.type in _ARRANGE and all(id(t) in self._made for t, _ in data)


def _counts(op, n):
    """Whether an op reduces an axis as long as the samples are many.

    Ones have a sum that follows that number, whatever the samples are.
    """
    if op.type in _RUNNING:
        axis = tf.get_static_value(op.inputs[1])
        known = axis is not None and axis.size == 1
        length = op.inputs[0].shape[axis.item()] if known else None
        return length is None or _is_multiple(length, n)
    if any(t.dtype == tf.variant for t in op.outputs):
        # A list holds what is put into it as it is.
        return False
    before = max((_multiples(t, n) for t in op.inputs), default=0)
    after = max((_multiples(t, n) for t in op.outputs), default=0)
    return before > after


def _multiples(tensor, n):
    """Return how many axes have a multiple of n as their size."""
    if tensor.shape.rank is None:
        return 0
    return sum(_is_multiple(size, n) for size in tensor.shape.as_list())


def _is_multiple(size, n):
    return bool(size) and size % n == 0
