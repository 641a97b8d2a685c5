"""The types of products, convolutions and other windows."""

import numpy as np

from keras_pergrad.proof.elementwise_rules import of_totals
from keras_pergrad.proof.tensor_types import (
    FREE,
    UNKNOWN_RANK,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
    only_first,
    type_rule,
)
from keras_pergrad.uses.contraction_rules import labelled


def linear_in_totals(op, types):
    """Return the type of a product of sums over samples and free numbers."""
    if any(isinstance(t, At) for t in types):
        raise Mixes("multiplies samples by sums over the samples")
    if sum(isinstance(t, Total) for t in types) == 1 and not any(
        isinstance(t, Divisor) for t in types
    ):
        return Total(flags_of(types))
    return of_totals(op, types)


@type_rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
def product(op, types):
    """Add products over the labels that are not in the output."""
    if any(isinstance(t, (Total, Divisor)) for t in types):
        return linear_in_totals(op, types)
    if op.type == "Einsum" and len(op.inputs) == 1:
        equation = op.attribute("equation").decode()
        if "..." in equation:
            raise Untyped(f"its equation is {equation}")
        source, target = equation.split("->")
        labels = [source]
    else:
        if any(t.shape.rank is None for t in op.inputs):
            raise Untyped(UNKNOWN_RANK)
        labelling = labelled(op.op)
        if isinstance(labelling, str):
            raise Untyped(labelling)
        labels, target = labelling
    where, shapes, flags = set(), set(), 0
    for term, kind in zip(labels, types):
        flags |= kind.flags
        if isinstance(kind, At):
            where.add(term[kind.axis])
            shapes.add((kind.rows, kind.lead))
    if len(where) > 1 or len(shapes) > 1:
        raise Mixes("multiplies all pairs of samples")
    (label,), ((rows, lead),) = where, shapes
    if label not in target:
        return Total(flags)
    return At(target.index(label), rows, lead, flags)


@type_rule("SparseTensorDenseMatMul")
def sparse_product(op, types):
    """Multiply a sparse matrix of no samples with a dense one of samples."""
    *sparse, dense = types
    if not all(isinstance(t, Free) for t in sparse):
        raise Untyped("sparse tensors have no axis for the samples")
    if not isinstance(dense, At):
        return linear_in_totals(op, [Free(flags_of(sparse)), dense])
    if dense.axis == (1 if op.attribute("adjoint_b") else 0):
        raise Mixes("multiplies all pairs of samples")
    return At(1, dense.rows, dense.lead, flags_of(types))


_INNER = {
    1: [
        "FFT",
        "IFFT",
        "RFFT",
        "IRFFT",
        "MatrixDiag",
        "MatrixDiagV2",
        "MatrixDiagV3",
        "BatchFFT",
        "BatchIFFT",
    ],
    2: [
        "FFT2D",
        "IFFT2D",
        "RFFT2D",
        "IRFFT2D",
        "MatrixBandPart",
        "MatrixDiagPart",
        "MatrixDiagPartV2",
        "MatrixDiagPartV3",
        "MatrixInverse",
        "Cholesky",
        "MatrixDeterminant",
        "LogMatrixDeterminant",
        "SelfAdjointEigV2",
        "Svd",
        "Qr",
        "MatrixExponential",
        "MatrixSquareRoot",
        "MatrixLogarithm",
        "Lu",
        "Eig",
        "BatchMatrixBandPart",
        "TridiagonalMatMul",
    ],
    3: ["FFT3D", "IFFT3D", "RFFT3D", "IRFFT3D"],
}
_AXES = {op: count for count, ops in _INNER.items() for op in ops}


@type_rule(*_AXES)
def transform(op, types):
    """Something over the last axes."""
    kind = only_first(types)
    if not isinstance(kind, At):
        if isinstance(kind, Total) and "FFT" in op.type:
            return kind
        return of_totals(op, types)
    if kind.axis >= op.rank() - _AXES[op.type]:
        raise Mixes("transforms the samples' axis")
    return kind


@type_rule(
    "MatrixSolve MatrixTriangularSolve MatrixSolveLs CholeskyGrad "
    "MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 TridiagonalSolve "
    "BandedTriangularSolve Cross"
)
def several_matrices(op, types):
    """Something over the last axes of several tensors."""
    by_axis = {}
    if _are_right_sides(op, types):
        return types[1].flagged(types[0].flags)
    for k, kind in enumerate(types):
        if isinstance(kind, (Total, Divisor)):
            raise Mixes("takes sums over the samples")
        if isinstance(kind, At):
            inner = 1 if op.type == "Cross" or _is_diagonal(op, k) else 2
            if kind.axis >= op.rank(k) - inner:
                raise Mixes("takes the samples' axis for that of matrices")
            # Counted from the axes of the matrices.
            by_axis[kind.axis - (op.rank(k) - inner)] = kind
    if len(by_axis) != 1:
        raise Mixes("brings samples together that are on different axes")
    ((place, kind),) = by_axis.items()
    inner = 1 if op.type == "Cross" else 2
    return At(
        op.rank_out() - inner + place, kind.rows, kind.lead, flags_of(types)
    )


def _is_diagonal(op, k):
    return k == 1 and op.type.startswith("MatrixSetDiag")


def _are_right_sides(op, types):
    """Whether each sample is one right side: the columns are solved alone."""
    if op.type not in ("MatrixSolve", "MatrixTriangularSolve"):
        return False
    matrix, sides = types
    columns = isinstance(sides, At) and sides.axis == op.rank(1) - 1
    # Where the matrices have more axes than the right sides, theirs come first.
    return columns and isinstance(matrix, Free) and op.rank(0) <= op.rank(1)


# Type rules of convolutions, pooling and other ops on images.


def _images(op, types, places):
    """Return the type if the samples are on axis 0 of these inputs alone."""
    layouts = set()
    for k, kind in enumerate(types):
        if isinstance(kind, Free):
            continue
        if not isinstance(kind, At):
            return of_totals(op, types)
        if k not in places:
            raise Mixes("takes samples for its weights or sizes")
        if kind.axis != 0:
            raise Mixes("takes the samples for pixels or channels")
        layouts.add(kind.place)
    if len(layouts) != 1:
        raise Mixes("brings samples together that lie differently")
    return At.placed(layouts.pop(), flags_of(types))


@type_rule(
    "Conv Conv2D Conv3D DepthwiseConv2dNative Dilation2D MaxPool MaxPoolV2 "
    "MaxPool3D MaxPoolWithArgmax AvgPool AvgPool3D LRN SpaceToDepth "
    "DepthToSpace ExtractImagePatches ExtractVolumePatches ResizeArea "
    "ResizeBicubic ResizeBilinear ResizeNearestNeighbor ScaleAndTranslate "
    "AdjustContrast DataFormatVecPermute QuantizeV2 Dequantize "
    "QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 "
    "FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel"
)
def image(op, types):
    """Each image by itself."""
    if op.type in ("MaxPoolWithArgmax",) and op.attribute(
        "include_batch_in_index"
    ):
        raise Mixes("counts places over all samples")
    kind = _images(op, types, {0})
    ranged = op.type.startswith("QuantizeAndDequantize")
    if ranged and not op.attribute("range_given"):
        raise Mixes("takes its range from all samples")
    return kind


@type_rule("FractionalAvgPool", "FractionalMaxPool")
def fractional(op, types):
    """Each image by itself, in regions that are drawn for all of them."""
    return [_images(op, types, {0}), FREE, FREE]


@type_rule("AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB")
def colours(op, types):
    """Each pixel, or each image, by itself: the last axes."""
    kind = types[0]
    if any(not isinstance(t, Free) for t in types[1:]):
        raise Mixes("takes its factor from the samples")
    inner = 3 if op.type == "AdjustContrastv2" else 1
    if isinstance(kind, At) and kind.axis >= op.rank() - inner:
        raise Mixes("takes the samples for pixels or colours")
    if not isinstance(kind, At):
        return of_totals(op, types)
    return kind


@type_rule("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def moved_image(op, types):
    """Each image by itself, by its own transform or the same for all."""
    if any(not isinstance(t, Free) for t in types[2:]):
        raise Mixes("takes sizes from the samples")
    return _images(op, types[:2], {0, 1})


#: The places of images, of what there is for each box, and of the numbers of
#: the boxes' images among the inputs.
_CROPS = {
    "CropAndResize": ((0,), (1,), 2),
    "CropAndResizeGradImage": ((), (0, 1), 2),
    "CropAndResizeGradBoxes": ((1,), (0, 2), 3),
}


@type_rule(*_CROPS)
def cropped(op, types):
    """Boxes are taken from the images that their numbers name."""
    images, boxes, numbers = _CROPS[op.type]
    if any(not isinstance(t, (Free, At)) for t in types):
        return of_totals(op, types)
    into_images = op.type == "CropAndResizeGradImage"
    count = op.shape_out()[0] if into_images else op.shape(images[0])[0]
    ids, of_images = op.number_or_none(numbers), into_images
    of_images |= any(isinstance(types[k], At) for k in images)
    length = op.shape(numbers)[0]
    if ids is None or not count or count % op.n or length % op.n:
        raise Untyped("which images its boxes are of is given by numbers")
    rows, each = count // op.n, length // op.n
    if of_images and (ids // rows != np.arange(length) // each).any():
        raise Mixes("takes boxes from the images of other samples")
    for k, kind in enumerate(types):
        place = (0, rows if k in images else each, 1)
        allowed = k in images or k in boxes
        if isinstance(kind, At) and not (allowed and kind.place == place):
            raise Mixes("brings samples together that lie differently")
    if rows == 1 and of_images:
        # Each number is that of its sample, however many there are.
        types = [t for k, t in enumerate(types) if k != numbers]
    return At(0, rows if into_images else each, 1, flags_of(types))


@type_rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(op, types):
    """By fixed statistics, each image by itself."""
    if op.attribute("is_training"):
        raise Mixes("normalises by the statistics of the batch")
    return _images(op, types, {0})


@type_rule(
    "Conv2DBackpropInput Conv3DBackpropInput Conv3DBackpropInputV2 "
    "DepthwiseConv2dNativeBackpropInput"
)
def transposed(op, types):
    """Find the gradient of a convolution's input; or convolve transposed."""
    return _images(op, types, {2})


@type_rule("AvgPoolGrad AvgPool3DGrad FractionalAvgPoolGrad")
def gradient_by_shape(op, types):
    """Find the gradient of pooling from (its input's shape, gradient)."""
    return _images(op, types, {1})


@type_rule(
    "MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad MaxPoolGradGrad MaxPoolGradGradV2 "
    "MaxPool3DGradGrad MaxPoolGradWithArgmax Dilation2DBackpropInput "
    "FractionalMaxPoolGrad LRNGrad ResizeBilinearGrad "
    "ResizeNearestNeighborGrad ResizeBicubicGrad ScaleAndTranslateGrad"
)
def gradient_by_images(op, types):
    """Find the gradient of an op on images, from images."""
    return _images(op, types, {0, 1, 2})


@type_rule(
    "QuantizeAndDequantizeV4Grad FakeQuantWithMinMaxVarsGradient "
    "FakeQuantWithMinMaxVarsPerChannelGradient"
)
def gradient_of_a_range(op, types):
    """Find the gradients of what is rounded, and of the least and largest."""
    kind = _images(op, types, {0, 1})
    by_channel = op.type == "FakeQuantWithMinMaxVarsPerChannelGradient"
    if isinstance(kind, At) and by_channel and op.rank() < 2:
        raise Mixes("takes the samples for channels")
    return [kind, Total(kind.flags), Total(kind.flags)]


@type_rule("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def batch_norm_gradient(op, types):
    """By fixed statistics, each image by itself; sums for the weights."""
    if op.attribute("is_training"):
        raise Mixes("normalises by the statistics of the batch")
    kind = _images(op, types, {0, 1})
    total = Total(kind.flags)
    return [kind, *[total] * (len(op.outputs) - 1)]


@type_rule(
    "Conv2DBackpropFilter Conv3DBackpropFilter Conv3DBackpropFilterV2 "
    "DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter"
)
def kernel_gradient(op, types):
    """Find a kernel's gradient, a sum over the samples."""
    return Total(_images(op, types, {0, 2}).flags)
