"""The types of convolutions, other windows and transforms."""

import numpy as np

from keras_pergrad.proof.elementwise_rules import type_of_totals
from keras_pergrad.proof.tensor_types import (
    ALL,
    FREE,
    At,
    Divisor,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
    type_rule,
)

_OPS_BY_INNER_AXES = {
    1: [
        "FFT",
        "IFFT",
        "RFFT",
        "IRFFT",
        "MatrixDiag",
        "MatrixDiagV2",
        "MatrixDiagV3",
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
        "MatrixSquareRoot",
        "MatrixLogarithm",
        "Lu",
        "Eig",
    ],
    3: ["FFT3D", "IFFT3D", "RFFT3D", "IRFFT3D"],
}
_INNER_AXES = {
    op: count for count, ops in _OPS_BY_INNER_AXES.items() for op in ops
}


@type_rule(*_INNER_AXES, inputs=0)
def transform(op, types):
    """Something over the last axes."""
    input_type = types[0]
    if not isinstance(input_type, At):
        if isinstance(input_type, Total) and "FFT" in op.type:
            return input_type
        return type_of_totals(op, types)
    if op.type in ("MatrixDiagV2", "MatrixDiagV3"):
        # A band of several diagonals has an axis for them.
        outer_axes = op.rank_out() - 2
    else:
        outer_axes = op.rank() - _INNER_AXES[op.type]
    if input_type.axis >= outer_axes:
        raise Mixes("transforms the samples' axis")
    return input_type


@type_rule(
    "MatrixSolve MatrixTriangularSolve CholeskyGrad TridiagonalSolve "
    "TridiagonalMatMul BandedTriangularSolve Cross",
    inputs=ALL,
)
@type_rule(
    "MatrixSolveLs MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3",
    inputs=(0, 1),
)
def several_matrices(op, types):
    """Something over the last axes of several tensors."""
    places, inner_axes_out = set(), 1 if op.type == "Cross" else 2
    if _are_right_sides(op, types):
        return types[1].flagged(types[0].flags)
    for k, input_type in enumerate(types):
        if isinstance(input_type, (Total, Divisor)):
            raise Mixes("takes sums over the samples")
        if isinstance(input_type, At):
            outer_axes = op.rank(k) - inner_axes_out
            if k == 1 and op.type.startswith("MatrixSetDiag"):
                # The diagonal, or a band, has the outer axes of the matrix.
                outer_axes = op.rank_out() - 2
            if input_type.axis >= outer_axes:
                raise Mixes("takes the samples' axis for that of matrices")
            # Counted from the axes of the matrices.
            place = input_type.axis - outer_axes
            places.add((place, input_type.rows, input_type.lead))
    if len(places) != 1:
        raise Mixes("brings samples together that lie differently")
    ((place, rows, lead),) = places
    axis = op.rank_out() - inner_axes_out + place
    return At(axis, rows, lead, flags=flags_of(types))


def _are_right_sides(op, types):
    """Whether each sample is one right side: the columns are solved alone."""
    if op.type not in ("MatrixSolve", "MatrixTriangularSolve"):
        return False
    matrix_type, side_type = types
    is_column = isinstance(side_type, At) and side_type.axis == op.rank(1) - 1
    # Where the matrices have more axes than the right sides, theirs come first.
    return (
        is_column and isinstance(matrix_type, Free) and op.rank(0) <= op.rank(1)
    )


def _image_type(op, types):
    """Return the type if the samples are on axis 0 of all inputs."""
    layouts = set()
    for input_type in types:
        if isinstance(input_type, Free):
            continue
        if not isinstance(input_type, At):
            return type_of_totals(op, types)
        if input_type.axis != 0:
            raise Mixes("takes the samples for pixels or channels")
        layouts.add(input_type.place)
    if len(layouts) != 1:
        raise Mixes("brings samples together that lie differently")
    return At.placed(layouts.pop(), flags_of(types))


def _total_of(input_type):
    """Return the type of a sum over all samples, as of a weight's gradient."""
    return Total(input_type.flags) if isinstance(input_type, At) else input_type


@type_rule(
    "Conv Conv2D Conv3D DepthwiseConv2dNative Dilation2D MaxPool MaxPoolV2 "
    "MaxPool3D MaxPoolWithArgmax AvgPool AvgPool3D LRN SpaceToDepth "
    "DepthToSpace ExtractImagePatches ExtractVolumePatches ResizeArea "
    "ResizeBicubic ResizeBilinear ResizeNearestNeighbor ScaleAndTranslate "
    "QuantizeV2 Dequantize "
    "QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 "
    "FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel",
    inputs=0,
)
def image(op, types):
    """Each image by itself."""
    if op.type in ("MaxPoolWithArgmax",) and op.attribute(
        "include_batch_in_index"
    ):
        raise Mixes("counts places over all samples")
    input_type = _image_type(op, types)
    has_range = op.type.startswith("QuantizeAndDequantize")
    if has_range and not op.attribute("range_given"):
        raise Mixes("takes its range from all samples")
    if op.type == "QuantizeV2":
        return [input_type, *[Free(flags_of(types[1:]))] * 2]
    return input_type


@type_rule("FractionalAvgPool", "FractionalMaxPool", inputs=0)
def fractional_pool(op, types):
    """Each image by itself, in regions that are drawn for all of them."""
    return [_image_type(op, types), FREE, FREE]


@type_rule(
    "AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB", inputs=0
)
def colours(op, types):
    """Each pixel, or each image, by itself: the last axes."""
    input_type = types[0]
    inner_axes = 3 if op.type == "AdjustContrastv2" else 1
    if isinstance(input_type, At) and input_type.axis >= op.rank() - inner_axes:
        raise Mixes("takes the samples for pixels or colours")
    if not isinstance(input_type, At):
        return type_of_totals(op, types)
    return input_type


@type_rule(
    "ImageProjectiveTransformV2 ImageProjectiveTransformV3", inputs=(0, 1)
)
def projective_transform(op, types):
    """Each image by itself, by its own transform or the same for all."""
    return _image_type(op, types)


#: The places of images, of what there is for each box, and of the numbers of
#: the boxes' images among the inputs.
_CROPS = {
    "CropAndResize": ((0,), (1,), 2),
    "CropAndResizeGradImage": ((), (0, 1), 2),
    "CropAndResizeGradBoxes": ((1,), (0, 2), 3),
}


@type_rule(
    *_CROPS,
    inputs={op: (*images, *boxes) for op, (images, boxes, _) in _CROPS.items()},
)
def crop_and_resize(op, types):
    """Boxes are taken from the images that their numbers name."""
    images, _, numbers = _CROPS[op.type]
    if any(not isinstance(t, (Free, At)) for t in types):
        return type_of_totals(op, types)
    into_images = op.type == "CropAndResizeGradImage"
    count = op.shape_out()[0] if into_images else op.shape(images[0])[0]
    ids, uses_images = op.number_or_none(numbers), into_images
    uses_images |= any(isinstance(types[k], At) for k in images)
    length = op.shape(numbers)[0]
    if ids is None or not count or count % op.n or length % op.n:
        raise Untyped("which images its boxes are of is given by numbers")
    images_per_sample, boxes_per_sample = count // op.n, length // op.n
    if (
        uses_images
        and (
            ids // images_per_sample != np.arange(length) // boxes_per_sample
        ).any()
    ):
        raise Mixes("takes boxes from the images of other samples")
    for k, input_type in enumerate(types):
        place = (0, images_per_sample if k in images else boxes_per_sample, 1)
        if isinstance(input_type, At) and input_type.place != place:
            raise Mixes("brings samples together that lie differently")
    if images_per_sample == 1 and uses_images:
        # Each number is that of its sample, however many there are.
        types = [t for k, t in enumerate(types) if k != numbers]
    return At(
        0,
        images_per_sample if into_images else boxes_per_sample,
        1,
        flags=flags_of(types),
    )


@type_rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", inputs=0)
def batch_norm(op, types):
    """By fixed statistics, each image by itself."""
    if op.attribute("is_training"):
        raise Mixes("normalises by the statistics of the batch")
    weights = Free(flags_of(types[1:]))
    return [_image_type(op, types), *[weights] * (len(op.outputs) - 1)]


@type_rule(
    "Conv2DBackpropInput Conv3DBackpropInputV2 "
    "DepthwiseConv2dNativeBackpropInput",
    inputs=2,
)
@type_rule("AvgPoolGrad AvgPool3DGrad FractionalAvgPoolGrad", inputs=1)
@type_rule("ResizeNearestNeighborGrad", inputs=0)
@type_rule(
    "ResizeBilinearGrad ResizeBicubicGrad ScaleAndTranslateGrad", inputs=(0, 1)
)
@type_rule("Dilation2DBackpropInput", inputs=(0, 2))
@type_rule(
    "MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad MaxPoolGradGrad MaxPoolGradGradV2 "
    "MaxPool3DGradGrad MaxPoolGradWithArgmax FractionalMaxPoolGrad LRNGrad",
    inputs=(0, 1, 2),
)
def image_gradient(op, types):
    """Find the gradient of an op on images, each by itself."""
    if op.type == "MaxPoolGradWithArgmax" and op.attribute(
        "include_batch_in_index"
    ):
        raise Mixes("counts places over all samples")
    return _image_type(op, types)


@type_rule(
    "QuantizeAndDequantizeV4Grad FakeQuantWithMinMaxVarsGradient "
    "FakeQuantWithMinMaxVarsPerChannelGradient",
    inputs=(0, 1),
)
def range_gradient(op, types):
    """Find the gradients of what is rounded, and of the least and largest."""
    input_type = _image_type(op, types)
    by_channel = op.type == "FakeQuantWithMinMaxVarsPerChannelGradient"
    if isinstance(input_type, At) and by_channel and op.rank() < 2:
        raise Mixes("takes the samples for channels")
    return [input_type, _total_of(input_type), _total_of(input_type)]


@type_rule(
    "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
    inputs=(0, 1),
)
def batch_norm_gradient(op, types):
    """By fixed statistics, each image by itself; sums for the weights."""
    if op.attribute("is_training"):
        raise Mixes("normalises by the statistics of the batch")
    input_type = _image_type(op, types)
    return [input_type, *[_total_of(input_type)] * (len(op.outputs) - 1)]


@type_rule(
    "Conv2DBackpropFilter Conv3DBackpropFilterV2 "
    "DepthwiseConv2dNativeBackpropFilter Dilation2DBackpropFilter",
    inputs=(0, 2),
)
def kernel_gradient(op, types):
    """Find a kernel's gradient, a sum over the samples."""
    return _total_of(_image_type(op, types))


@type_rule("CudnnRNNV3", inputs=(0, 1, 2, 4))
@type_rule("CudnnRNNBackpropV3", inputs=(0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12))
def recurrent_steps(op, types):
    """Each sequence by itself; the sum of its weights' gradients."""
    # Lengths and what is kept for the backward pass have the samples alone.
    axis = 1 if op.attribute("time_major") else 0
    places = set()
    for tensor, input_type in zip(op.inputs, types):
        if isinstance(input_type, Free):
            continue
        if not isinstance(input_type, At):
            raise Mixes("takes sums over the samples for sequences")
        if input_type.axis != (0 if tensor.shape.rank == 1 else axis):
            raise Mixes("takes the samples for steps or features")
        places.add((input_type.rows, input_type.lead))
    if len(places) != 1:
        raise Mixes("brings samples together that lie differently")
    flags, (place,) = flags_of(types), places
    output_types = [
        # A GRU has no state c, but an empty tensor in its place.
        Free(flags)
        if tensor.shape.rank == 0
        else At.placed((0 if tensor.shape.rank == 1 else axis, *place), flags)
        for tensor in op.outputs
    ]
    if op.type == "CudnnRNNV3":
        return output_types
    return [*output_types[:3], Total(flags)]
