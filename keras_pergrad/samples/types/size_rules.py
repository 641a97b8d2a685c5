"""The inputs of ops that are sizes, and the ops that only arrange sizes."""

import tensorflow as tf

#: The places of inputs that are sizes or places. What follows the number of
#: samples there gives a tensor its shape, not its values.
SHAPE_INPUTS = {
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
TAKE_PARTS = {"Slice", "StridedSlice"}
_RUNNING = {"Cumsum", "Cumprod", "CumulativeLogsumexp"}
_ARRANGE = {
    "Cast",
    "ConcatV2",
    "ExpandDims",
    "GatherV2",
    "Identity",
    "Mul",
    "Pack",
    "Prod",
    "Reshape",
    "Slice",
    "Split",
    "SplitV",
    "Squeeze",
    "StridedSlice",
    "Unpack",
}


def arranges(op_type):
    """Whether an op on sizes gives those sizes, or products of them.

    Which of them follow the number of samples shows in their values then.
    """
    return op_type in _ARRANGE


def counts(op, n):
    """Whether an op reduces an axis as long as the samples are many.

    Ones have a sum that follows that number, whatever the samples are.
    """
    if op.type in _RUNNING:
        axis = tf.get_static_value(op.inputs[1])
        length = None if axis is None else op.inputs[0].shape[int(axis)]
        return length is None or _is_multiple(length, n)
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
