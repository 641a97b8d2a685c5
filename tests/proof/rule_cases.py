"""An example of each op that has a type rule: what it takes, and how.

An input is a `Given`: an array, and another one that is as valid. Axes of a
size of their own (6 for what may be samples) tell where entries go.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from keras_pergrad.proof import elementwise_rules
from keras_pergrad.proof.tensor_types import RULES

_rng = np.random.default_rng(5)


@dataclasses.dataclass
class Given:
    """An input: an array, and another one (None: no other is valid)."""

    array: np.ndarray
    other: np.ndarray | None
    is_list: bool = False


def real(*shape, dtype="float64"):
    """Return normal numbers."""
    return Given(*(_rng.normal(size=shape).astype(dtype) for _ in "ab"))


def some(*shape, dtype="float64"):
    """Return numbers between 0.1 and 0.9."""
    return Given(
        *(_rng.uniform(0.1, 0.9, size=shape).astype(dtype) for _ in "ab")
    )


def whole(limit, *shape, dtype="int32"):
    """Return whole numbers below a limit; the others are all different."""
    array = np.asarray(_rng.integers(limit, size=shape)).astype(dtype)
    return Given(array, ((array + 1) % limit).astype(dtype))


def truth(*shape):
    """Return truth values."""
    array = np.asarray(_rng.random(shape) > 0.5)
    return Given(array, ~array)


def text(*shape):
    """Return texts of numbers."""
    both = [
        np.asarray(_rng.integers(9, size=shape)).astype("S").astype(object)
        for _ in "ab"
    ]
    both[1] = np.vectorize(lambda t: t + b"1", otypes=[object])(both[0])
    return Given(*both)


def fixed(value, other=None, dtype="int32"):
    """Return a size, a place or the like."""
    return Given(
        np.asarray(value, dtype),
        None if other is None else np.asarray(other, dtype),
    )


def listed(*shape):
    """Return a list of real tensors, one for each entry of the first axis."""
    return dataclasses.replace(real(*shape), is_list=True)


def image(*shape):
    """Return images."""
    return real(*shape, dtype="float32")


#: Op → (its inputs, its attributes). `[...]` has the tensors of one argument.
CASES = {}


def _case(names, *inputs, **attributes):
    for name in names.split():
        CASES[name] = inputs, attributes


_INTEGRAL = "BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift"
_TEXT = (
    "StringLower StringUpper StringStrip StringLength StringToHashBucketFast "
    "StringToHashBucket StringToNumber"
)
for _name, _rule in RULES.items():
    if _name in ("DebugIdentityV3", "_EagerConst"):
        continue
    if _rule is elementwise_rules.unary:
        _case(_name, some(6, 5))
    elif _rule is elementwise_rules.elementwise:
        _case(_name, some(6, 5), some(6, 5))
_case("IsFinite IsInf IsNan", real(6, 5))
_case("Angle ComplexAbs Imag Real Conj", real(6, 5, dtype="complex64"))
_case("LogicalNot", truth(6, 5))
_case("LogicalAnd LogicalOr", truth(6, 5), truth(6, 5))
_case(_INTEGRAL, whole(7, 6, 5), whole(7, 6, 5))
_case("Invert PopulationCount", whole(7, 6, 5))
_case(_TEXT, text(6, 5))
_case("StringToHashBucketFast StringToHashBucket", text(6, 5), num_buckets=99)
_case("StringToHashBucketStrong", text(6, 5), num_buckets=99, key=[1, 2])
_case("StaticRegexReplace", text(6, 5), pattern="1", rewrite="2")
_case("StaticRegexFullMatch", text(6, 5), pattern="1.*")
_case("EncodeBase64", text(6, 5))
_case(
    "DecodeBase64", Given(*(np.full((6, 5), t, object) for t in (b"YQ", b"Yg")))
)
_case(
    "UnicodeTranscode",
    text(6, 5),
    input_encoding="UTF-8",
    output_encoding="UTF-8",
)
_case("StringJoin", [text(6, 5), text(6, 5)])
_case("AddN", [real(6, 5), real(6, 5)])
_case("AccumulateNV2", [real(6, 5), real(6, 5)], shape=[6, 5])
_case("AsString", whole(9, 6, 5))
_case("Bitcast", real(6, 5), type="int64")
_case("Bucketize", real(6, 5), boundaries=[-0.5, 0.0, 0.5])
_case("Cast", real(6, 5), DstT="float32")
_case("CheckNumerics CheckNumericsV2", real(6, 5), message="m")
_case("EnsureShape PlaceholderWithDefault", real(6, 5), shape=[6, 5])
_case("FakeQuantWithMinMaxArgs", image(6, 5))
_case("FakeQuantWithMinMaxArgsGradient", image(6, 5), image(6, 5))
_case("Betainc ClipByValue", *[some(6, 5) for _ in "abc"])
_case("Complex", image(6, 5), image(6, 5))
_case("Select SelectV2", truth(6, 5), real(6, 5), real(6, 5))
_case("NextAfter", real(6, 5), real(6, 5))
_case("BiasAdd BiasAddV1", real(6, 5), real(5))
_case("BiasAddGrad", real(6, 5))
_case("IdentityN", [real(6, 5), real(6, 4)])
_case("Sum Mean Max Min Prod EuclideanNorm", real(6, 5, 4), fixed([1], [2]))
_case("All Any", truth(6, 5, 4), fixed([1], [2]))
_case("ArgMax ArgMin", real(6, 5, 4), fixed(1, 2))
_case("Cumsum Cumprod CumulativeLogsumexp", real(6, 5, 4), fixed(1, 2))
_case("Softmax LogSoftmax", real(6, 5))
_case("TopKV2", real(4, 6, 5), fixed(2))
_case("NthElement", real(4, 6, 5), fixed(2, 1))
_case("Multinomial", real(6, 5), fixed(3), seed=1, seed2=2)
_case(
    "CTCGreedyDecoder",
    real(5, 6, 4),
    Given(np.full(6, 4, "int32"), np.full(6, 3, "int32")),
)
_case("InTopK", image(6, 5), whole(5, 6), k=2)
_case("InTopKV2", image(6, 5), whole(5, 6), fixed(2, 1))
_sorted = [np.sort(_rng.normal(size=(6, 5)), 1) for _ in "ab"]
_case("LowerBound UpperBound", Given(*_sorted), real(6, 4))
_case("SoftmaxCrossEntropyWithLogits", real(6, 5), some(6, 5))
_case("SparseSoftmaxCrossEntropyWithLogits", real(6, 5), whole(5, 6))
_case("L2Loss", real(6, 5))
_case("Unique UniqueWithCounts", whole(3, 6))
_case("UniqueV2", whole(3, 6), fixed([0]))
_case("Where", truth(6, 5))
_case("ListDiff", whole(5, 6), whole(5, 4))
_case("DynamicPartition", real(6, 5), whole(2, 6), num_partitions=2)
_case("DynamicStitch", [whole(6, 6)], [real(6, 5)])
_case("Bincount", whole(4, 6), fixed(4, 5), real(6))
_case("DenseBincount", whole(4, 6, 5), fixed(4, 5), real(6, 5))
_case("Range", *[fixed(v, v + 1) for v in (1, 9, 2)])
_case("LinSpace", real(), real(), fixed(4, 5))
_case("Fill", fixed([6, 5], [5, 6]), real())
_seed = fixed([1, 2], [3, 4])
_shape = fixed([7, 6, 5], [8, 6, 5])
_case("RandomGamma RandomPoissonV2", fixed([7]), some(6, 5), seed=1, seed2=2)
_case("RandomGammaGrad", some(6, 5), some(6, 5))
_case("StatelessRandomGammaV2", _shape, _seed, some(6, 5))
_case("StatelessRandomPoisson", _shape, _seed, some(6, 5), dtype="float64")
_case(
    "StatelessRandomGammaV3",
    _shape,
    fixed([3], [4], "uint64"),
    fixed([3, 1], [4, 1], "uint64"),
    fixed(1, 2),
    some(6, 5),
)
_case(
    "StatelessRandomBinomial",
    _shape,
    _seed,
    real(6, 5),
    some(6, 5),
    dtype="float64",
)
CASES["StatelessRandomBinomial"][0][2].array[:] = 7.0
CASES["StatelessRandomBinomial"][0][2].other[:] = 99.0
_bounds = Given(np.full((6, 5), -2.0), np.full((6, 5), -1.0))
_upper = Given(np.full((6, 5), 2.0), np.full((6, 5), 1.0))
_parameters = real(6, 5), some(6, 5), _bounds, _upper
_case("StatelessParameterizedTruncatedNormal", _shape, _seed, *_parameters)
_rows = [Given(p.array[:, 0].copy(), p.other[:, 0].copy()) for p in _parameters]
_case(
    "ParameterizedTruncatedNormal",
    fixed([6, 7], [6, 8]),
    *_rows,
    seed=1,
    seed2=2,
)
_case("StatelessMultinomial", real(6, 5), fixed(7, 8), _seed)
_case("RandomShuffle", real(7, 6, 5), seed=1, seed2=2)
_item = fixed([6, 5])
_case("TensorListFromTensor", real(7, 6, 5), _item)
_case(
    "TensorListGetItem",
    listed(7, 6, 5),
    fixed(1, 2),
    _item,
    element_dtype="float64",
)
_case(
    "TensorListGather",
    listed(7, 6, 5),
    whole(7, 4),
    _item,
    element_dtype="float64",
)
_case(
    "TensorListScatterV2",
    real(7, 6, 5),
    fixed(range(7), [1, 0, 2, 3, 4, 5, 6]),
    _item,
    fixed(7, 8),
)
_case(
    "TensorListScatterIntoExistingList",
    listed(7, 6, 5),
    real(2, 6, 5),
    fixed([1, 2], [3, 4]),
)
_case("TensorListSetItem", listed(7, 6, 5), fixed(1, 2), real(6, 5))
_case("TensorListPushBack", listed(7, 6, 5), real(6, 5))
_case(
    "TensorListPopBack TensorListStack",
    listed(7, 6, 5),
    _item,
    element_dtype="float64",
)
_case(
    "TensorListConcat",
    listed(7, 6, 5),
    element_dtype="float64",
    element_shape=[6, 5],
)
_case(
    "TensorListConcatV2",
    listed(7, 6, 5),
    fixed([-1, 5]),
    fixed([], dtype="int64"),
    element_dtype="float64",
)
_case(
    "TensorListSplit",
    real(7, 6, 5),
    fixed([-1, 6, 5]),
    fixed([3, 4], [4, 3], "int64"),
)
_case("TensorListResize", listed(7, 6, 5), fixed(7, 6))
_case(
    "TensorListConcatLists",
    listed(7, 6, 5),
    listed(7, 6, 5),
    element_dtype="float64",
)
_case("Gather", real(7, 6, 5), whole(7, 6))
_case("GatherV2", real(7, 6, 5), whole(5, 4), fixed(2, 1))
_ids = fixed([0, 0, 1, 2, 2, 2], [0, 1, 1, 1, 2, 2])
_case(
    "SegmentSum SegmentMean SegmentProd SegmentMax SegmentMin", real(6, 5), _ids
)
_case(
    "UnsortedSegmentSum UnsortedSegmentProd UnsortedSegmentMax "
    "UnsortedSegmentMin",
    real(6, 5),
    _ids,
    fixed(3, 4),
)
_case(
    "SparseReshape",
    fixed([[0], [1]], [[2], [3]], "int64"),
    fixed([6], dtype="int64"),
    fixed([2, 3], [3, 2], "int64"),
)
_case("SparseToDense", whole(6, 2, 1), fixed([6]), real(2), real())
_case("GatherNd", real(6, 7, 5), whole(6, 4, 1))
_case("ScatterNd", fixed([[0], [2]], [[1], [3]]), real(2, 6), fixed([5, 6]))
_case(
    "TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub "
    "TensorScatterUpdate",
    real(5, 6),
    fixed([[0], [2]], [[1], [3]]),
    real(2, 6),
)
_case("MatMul BatchMatMul BatchMatMulV2", real(6, 5), real(5, 4))
_case("BatchMatMulV3", real(3, 6, 5), real(3, 5, 4), Tout="float64")
_case("Einsum", [real(7, 6, 5), real(5, 6)], equation="bij,ji->bi")
_case(
    "SparseTensorDenseMatMul",
    fixed([[0, 1], [1, 2]], [[0, 2], [1, 3]], "int64"),
    real(2),
    fixed([4, 5], dtype="int64"),
    real(5, 6),
)
_complex = real(7, 6, 5, 4, dtype="complex128")
_case("FFT FFT2D FFT3D IFFT IFFT2D IFFT3D", _complex)
_case("RFFT", real(6, 5), fixed([5]), Tcomplex="complex128")
_case("RFFT2D", real(6, 5, 4), fixed([5, 4]), Tcomplex="complex128")
_case("RFFT3D", real(6, 5, 4, 3), fixed([5, 4, 3]), Tcomplex="complex128")
_case("IRFFT", _complex, fixed([5], [4]), Treal="float64")
_case("IRFFT2D", _complex, fixed([5, 5], [5, 4]), Treal="float64")
_case("IRFFT3D", _complex, fixed([6, 5, 5], [6, 5, 4]), Treal="float64")
_case("MatrixDiag", real(6, 5))
_none = fixed(-1)
_diagonal = fixed([0, 1], [-1, 0]), _none, _none, real()
_case("MatrixDiagV2 MatrixDiagV3", real(7, 2, 6), *_diagonal)
_case("MatrixDiagPart", real(6, 5, 4))
_case("MatrixDiagPartV2 MatrixDiagPartV3", real(6, 5, 4), *_diagonal[::3])
_case(
    "MatrixBandPart",
    real(6, 5, 4),
    fixed(1, 2, "int64"),
    fixed(1, 2, "int64"),
)
_square = real(6, 4, 4)
_case(
    "MatrixInverse MatrixDeterminant LogMatrixDeterminant Svd Qr Lu",
    _square,
)
_case("Eig", _square, Tout="complex128")
_case("MatrixSquareRoot MatrixLogarithm", real(6, 4, 4, dtype="complex128"))
_definite = [
    m @ m.transpose(0, 2, 1) + np.eye(4) for m in (_square.array, _square.other)
]
_definite = Given(*_definite)
_case("Cholesky SelfAdjointEigV2", _definite)
_lower = Given(
    *(np.linalg.cholesky(m) for m in (_definite.array, _definite.other))
)
_case("CholeskyGrad", _lower, _square)
_case("MatrixSolve", _definite, real(6, 4, 5))
_case("MatrixTriangularSolve", _lower, real(6, 4, 5))
_case("BandedTriangularSolve", some(6, 3, 4), real(6, 4, 5))
_case("MatrixSolveLs", real(6, 5, 4), real(6, 5, 3), some())
_case("MatrixSetDiag", real(6, 5, 4), real(6, 4))
_case(
    "MatrixSetDiagV2 MatrixSetDiagV3",
    real(7, 6, 6),
    real(7, 2, 6),
    _diagonal[0],
)
_case("TridiagonalSolve", real(6, 3, 5), real(6, 5, 4))
_case("TridiagonalMatMul", *[real(6, 1, 5) for _ in "abc"], real(6, 5, 4))
_case("Cross", real(6, 5, 3), real(6, 5, 3))
_x, _kernel = image(6, 8, 9, 4), image(2, 3, 4, 5)
_conv = {"strides": [1, 1, 1, 1], "padding": "VALID"}
_case("Conv2D", _x, _kernel, **_conv)
_case("Conv", _x, _kernel, **_conv)
_case("DepthwiseConv2dNative", _x, image(2, 3, 4, 5), **_conv)
_case(
    "Conv2DBackpropInput",
    fixed([6, 8, 9, 4]),
    _kernel,
    image(6, 7, 7, 5),
    **_conv,
)
_case(
    "Conv2DBackpropFilter", _x, fixed([2, 3, 4, 5]), image(6, 7, 7, 5), **_conv
)
_case(
    "DepthwiseConv2dNativeBackpropInput",
    fixed([6, 8, 9, 4]),
    _kernel,
    image(6, 7, 7, 20),
    **_conv,
)
_case(
    "DepthwiseConv2dNativeBackpropFilter",
    _x,
    fixed([2, 3, 4, 5]),
    image(6, 7, 7, 20),
    **_conv,
)
_x3, _kernel3 = image(6, 3, 8, 9, 4), image(1, 2, 3, 4, 5)
_conv3 = {"strides": [1] * 5, "padding": "VALID"}
_case("Conv3D", _x3, _kernel3, **_conv3)
_out3 = image(6, 3, 7, 7, 5)
_case(
    "Conv3DBackpropInputV2", fixed([6, 3, 8, 9, 4]), _kernel3, _out3, **_conv3
)
_case("Conv3DBackpropFilterV2", _x3, fixed([1, 2, 3, 4, 5]), _out3, **_conv3)
_dilation = {"strides": [1] * 4, "rates": [1] * 4, "padding": "VALID"}
_case("Dilation2D", _x, image(2, 3, 4), **_dilation)
_case(
    "Dilation2DBackpropInput Dilation2DBackpropFilter",
    _x,
    image(2, 3, 4),
    image(6, 7, 7, 4),
    **_dilation,
)
_pool = {"ksize": [1, 2, 3, 1], **_conv}
_case("MaxPool MaxPoolWithArgmax", _x, **_pool)
_case("AvgPool", _x, **_pool)
_window = fixed([1, 2, 3, 1], [1, 3, 2, 1]), fixed([1, 1, 1, 1], [1, 2, 1, 1])
_case("MaxPoolV2", _x, *_window, padding="VALID")
_pool3 = {"ksize": [1, 1, 2, 3, 1], **_conv3}
_case("MaxPool3D AvgPool3D", _x3, **_pool3)
_pooled = image(6, 7, 7, 4)
_case("AvgPoolGrad", fixed([6, 8, 9, 4]), _pooled, **_pool)
_case("AvgPool3DGrad", fixed([6, 3, 8, 9, 4]), image(6, 3, 7, 7, 4), **_pool3)
_case("MaxPoolGrad", _x, _pooled, _pooled, **_pool)
_case("MaxPoolGradGrad", _x, _pooled, _x, **_pool)
_case("MaxPoolGradV2", _x, _pooled, _pooled, *_window, padding="VALID")
_case("MaxPoolGradGradV2", _x, _pooled, _x, *_window, padding="VALID")
_case("MaxPool3DGrad", _x3, *[image(6, 3, 7, 7, 4)] * 2, **_pool3)
_case("MaxPool3DGradGrad", _x3, image(6, 3, 7, 7, 4), _x3, **_pool3)
_case(
    "MaxPoolGradWithArgmax",
    _x,
    _pooled,
    whole(60, 6, 7, 7, 4, dtype="int64"),
    **_pool,
)
_fraction = {
    "pooling_ratio": [1.0, 1.4, 1.4, 1.0],
    "deterministic": True,
    "seed": 1,
    "seed2": 2,
}
_case("FractionalAvgPool FractionalMaxPool", _x, **_fraction)
_cuts = [
    fixed([0, 2, 4, 8], [0, 3, 5, 8], "int64"),
    fixed([0, 3, 6, 9], [0, 2, 6, 9], "int64"),
]
_case(
    "FractionalAvgPoolGrad",
    fixed([6, 8, 9, 4], dtype="int64"),
    image(6, 3, 3, 4),
    *_cuts,
)
_case("LRN", _x)
_case("LRNGrad", _x, _x, _x)
_case("SpaceToDepth DepthToSpace", image(6, 4, 8, 8), block_size=2)
_patches = {
    "ksizes": [1, 2, 3, 1],
    "strides": [1, 1, 1, 1],
    "rates": [1, 1, 1, 1],
    "padding": "VALID",
}
_case("ExtractImagePatches", _x, **_patches)
_case(
    "ExtractVolumePatches",
    _x3,
    ksizes=[1, 1, 2, 3, 1],
    strides=[1] * 5,
    padding="VALID",
)
_size = fixed([5, 7], [7, 5])
_case(
    "ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor", _x, _size
)
_case("ResizeBilinearGrad ResizeBicubicGrad", image(6, 5, 7, 4), _x)
_case("ResizeNearestNeighborGrad", image(6, 5, 7, 4), fixed([8, 9]))
_scales = some(2, dtype="float32"), some(2, dtype="float32")
_case("ScaleAndTranslate", _x, _size, *_scales)
_case("ScaleAndTranslateGrad", image(6, 5, 7, 4), _x, *_scales)
_range = fixed(-2.0, -1.0, "float32"), fixed(2.0, 1.0, "float32")
_case(
    "AdjustContrastv2 AdjustHue AdjustSaturation",
    some(6, 5, 4, 3, dtype="float32"),
    some(dtype="float32"),
)
_small = tf.qint8.as_numpy_dtype
_case(
    "Dequantize",
    Given(*(_rng.integers(9, size=(6, 5)).astype(_small) for _ in "ab")),
    *_range,
)
_case("RGBToHSV HSVToRGB", some(6, 5, 3))
_case("QuantizeV2", image(6, 5), *_range, T="qint8")
_case(
    "QuantizeAndDequantizeV2 QuantizeAndDequantizeV4",
    image(6, 5),
    *_range,
    range_given=True,
)
_case(
    "QuantizeAndDequantizeV3",
    image(6, 5),
    *_range,
    fixed(8, 5),
    range_given=True,
)
_case("FakeQuantWithMinMaxVars", image(6, 5), *_range)
_each = (
    Given(np.full(5, -2, "float32"), np.full(5, -1, "float32")),
    Given(np.full(5, 2, "float32"), np.full(5, 1, "float32")),
)
_case("FakeQuantWithMinMaxVarsPerChannel", image(6, 5), *_each)
_case(
    "FakeQuantWithMinMaxVarsGradient QuantizeAndDequantizeV4Grad",
    image(6, 5),
    image(6, 5),
    *_range,
)
_case(
    "FakeQuantWithMinMaxVarsPerChannelGradient",
    image(6, 5),
    image(6, 5),
    *_each,
)
_turns = image(6, 8)
_turns.array[:, 6:] = _turns.other[:, 6:] = 0
_fill = some(dtype="float32")
_moved = {"interpolation": "BILINEAR"}
_case("ImageProjectiveTransformV2", _x, _turns, _size, **_moved)
_case("ImageProjectiveTransformV3", _x, _turns, _size, _fill, **_moved)
_boxes, _owners = (
    some(6, 4, dtype="float32"),
    fixed(range(6), [1, 0, 2, 3, 4, 5]),
)
_case("CropAndResize", _x, _boxes, _owners, _size)
_case(
    "CropAndResizeGradImage",
    image(6, 5, 7, 4),
    _boxes,
    _owners,
    fixed([6, 8, 9, 4]),
    T="float32",
)
_case("CropAndResizeGradBoxes", image(6, 5, 7, 4), _x, _boxes, _owners)
_channel = [some(4, dtype="float32") for _ in range(5)]
_norm = {"is_training": False}
_case(
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3",
    _x,
    *_channel[:4],
    **_norm,
)
_case("FusedBatchNormGrad FusedBatchNormGradV2", _x, _x, *_channel[:3], **_norm)
_case("FusedBatchNormGradV3", _x, _x, *_channel[:4], **_norm)
_case("Reshape", real(6, 5, 4), fixed([6, 20], [30, 4]))
_case("ExpandDims", real(6, 5), fixed(1, 0))
_case("Squeeze", real(6, 1, 5), axis=[1])
_case("Transpose", real(7, 6, 5), fixed([1, 2, 0], [0, 2, 1]))
_case(
    "ConjugateTranspose",
    real(7, 6, 5, dtype="complex128"),
    fixed([1, 2, 0], [0, 2, 1]),
)
_case("ConcatV2", [real(6, 5), real(6, 5)], fixed(1, 0))
_case("Concat", fixed(1, 0), [real(6, 5), real(6, 5)])
_case("Pack", [real(6, 5), real(6, 5)], axis=1)
_case("Unpack", real(6, 2, 5), num=2, axis=1)
_case("Split", fixed(1), real(6, 4), num_split=2)
_case("SplitV", real(6, 4), fixed([1, 3], [2, 2]), fixed(1), num_split=2)
_case("Tile", real(6, 5), fixed([2, 3], [3, 2]))
_case("BroadcastTo", real(6, 1, 5), fixed([7, 6, 4, 5], [7, 6, 3, 5]))
_case("OneHot", whole(4, 6, 5), fixed(4, 5), real(), real(), axis=1)
_case("Roll", real(6, 5), fixed([2], [1]), fixed([1], [0]))
_case("ReverseV2", real(6, 5), fixed([1], [0]))
_case(
    "Reverse",
    real(7, 6, 5),
    fixed([False, False, True], [True, False, True], "bool"),
)
_case(
    "ReverseSequence",
    real(5, 6, 4),
    whole(5, 6, dtype="int64"),
    seq_dim=0,
    batch_dim=1,
)
_blocks = fixed([2, 2]), fixed([[0, 0], [0, 0]])
_case("SpaceToBatchND", real(6, 4, 8, 5), *_blocks)
_case("BatchToSpaceND", real(12, 4, 8, 5), *_blocks)
_case("Slice", real(6, 5), fixed([0, 1], [0, 2]), fixed([6, 3], [6, 2]))
_case(
    "StridedSlice",
    real(6, 5),
    fixed([0, 1], [0, 0]),
    fixed([6, 4], [6, 5]),
    fixed([1, 1], [1, 2]),
)
_case(
    "StridedSliceGrad",
    fixed([6, 5]),
    fixed([0, 1], [0, 2]),
    fixed([6, 4], [6, 5]),
    fixed([1, 1]),
    real(6, 3),
)
_case("Pad", real(6, 5), fixed([[0, 0], [1, 2]], [[0, 0], [2, 1]]))
_case("PadV2", real(6, 5), fixed([[0, 0], [1, 2]], [[0, 0], [2, 1]]), real())
_case(
    "MirrorPad",
    real(6, 5),
    fixed([[0, 0], [1, 2]], [[0, 0], [2, 1]]),
    mode="REFLECT",
)
_case(
    "MirrorPadGrad",
    real(6, 8),
    fixed([[0, 0], [1, 2]], [[0, 0], [2, 1]]),
    mode="REFLECT",
)
