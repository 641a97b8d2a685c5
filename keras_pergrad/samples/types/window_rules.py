"""Type rules of convolutions, pooling and other ops on images."""

import numpy as np

from keras_pergrad.samples.types.elementwise_rules import of_totals
from keras_pergrad.samples.types.tensor_types import (
    FREE,
    At,
    Free,
    Mixes,
    Total,
    Untyped,
    flags_of,
)
from keras_pergrad.samples.types.type_rules import type_rule


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
