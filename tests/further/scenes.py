"""Nets that detect, segment, describe or render what is in images."""

import keras
import numpy as np
import tensorflow as tf

from tests.further import tasks
from tests.further.images import IMAGE, latents, patches
from tests.further.kinds import Own, attended, conv, kind, layers, ops


def _boxes(y_true, y_pred):
    """Smooth L1 where there is an object, over the number of the sample's."""
    there = y_true[..., 4:]
    gap = abs(y_true[..., :4] - y_pred)
    smooth = ops.where(gap < 0.5, gap**2, gap - 0.25)
    count = ops.maximum(ops.sum(there, (1, 2)), 1.0)
    return ops.sum(smooth * there, (1, 2)) / count


@kind(
    IMAGE,
    y=[
        tasks.integers(2, 32, 2, dtype=None),
        tasks.integers(2, 32, 5, dtype=None),
    ],
)
def detection_head(inputs):
    """Focal loss of classes, smooth L1 of boxes."""
    x = conv(4, 3, 2)(inputs)
    classes = layers.Reshape((-1, 2))(conv(4, 3, activation=None)(x))
    boxes = layers.Reshape((-1, 4))(conv(8, 3, activation=None)(x))
    focal = keras.losses.BinaryFocalCrossentropy(True, from_logits=True)
    return [classes, boxes], [focal, _boxes]


def _matched(y_true, y_pred):
    """A set of objects, each against the query next to it."""
    far = ops.sum(abs(y_true[:, :, None] - y_pred[:, None]), -1)
    nearest = ops.argmin(far, 2)
    chosen = ops.take_along_axis(y_pred, nearest[..., None], 1)
    return ops.sum((chosen - y_true) ** 2, (1, 2))


@kind(IMAGE, y=(2, 4))
def detr(inputs):
    """Queries to an image; targets matched to the nearest."""
    x = patches(inputs)
    queries = latents()(x)
    queries += attended(queries, x)
    return layers.Dense(4, "sigmoid")(queries), _matched


def _crops(x, boxes):
    count = boxes.shape[1]
    numbers = ops.repeat(ops.arange(ops.shape(x)[0]), count)
    flat = ops.reshape(boxes, (-1, 4))
    found = tf.image.crop_and_resize(x, flat, numbers, (3, 3))
    return ops.reshape(found, (-1, count, 9 * x.shape[-1]))


@kind(
    IMAGE,
    tasks.given([[[0.1, 0.0, 0.8, 0.9], [0.3, 0.2, 1.0, 0.7]]] * tasks.N),
    y=(2, 5),
    dtype="float32",
)
def regions(image, boxes):
    """Boxes cropped out of features."""
    moved = boxes + 0.1 * layers.Dense(4, "tanh")(boxes)
    return layers.Dense(5)(Own(_crops)([conv(4, 3)(image), moved])), "mse"


def _dice(y_true, y_pred):
    """The overlap of masks, sample by sample."""
    both = ops.sum(y_true * y_pred, (1, 2, 3))
    either = ops.sum(y_true + y_pred, (1, 2, 3))
    return 1 - (2 * both + 1) / (either + 1)


@kind((8, 8, 1), y=tasks.integers(2, 8, 8, 1, dtype=None))
def unet(inputs):
    """Segmentation; dice of each sample."""
    first = conv(3, 3)(inputs)
    x = layers.SpatialDropout2D(0.0)(layers.MaxPooling2D()(first))
    x = layers.SeparableConv2D(4, 3, padding="same", activation="relu")(x)
    x = layers.Concatenate()([layers.Conv2DTranspose(3, 2, 2)(x), first])
    return conv(1, 3, activation="sigmoid")(x), _dice


def _rays(x):
    """Colours along each ray, weighed by what is in front of them."""
    opaque = 1 - ops.exp(-ops.relu(x[..., 3]) * 0.3)
    passed = ops.cumprod(1 - opaque + 1e-9, -1)
    room = [[0, 0], [0, 0], [1, 0]]
    passed = ops.pad(passed[..., :-1], room, "constant", 1.0)
    share = opaque * passed
    return ops.sum(share[..., None] * ops.sigmoid(x[..., :3]), -2)


@kind((4, 5, 3), y=(4, 3))
def nerf(inputs):
    """Rays through a radiance field."""
    rates = 2.0 ** np.arange(3)
    waves = [f(inputs * r) for r in rates for f in (ops.sin, ops.cos)]
    x = layers.Dense(6, "relu")(ops.concatenate(waves, -1))
    return Own(_rays)(layers.Dense(4)(x)), "mse"


@kind(IMAGE, tasks.integers(9, 5), y=tasks.integers(9, 5))
def captioning(image, words):
    """An LSTM that attends to an image."""
    places = patches(image)
    start = layers.Dense(6, "tanh")(ops.mean(places, 1))
    x = layers.Embedding(9, 6)(words)
    x = layers.LSTM(6, return_sequences=True)(x, initial_state=[start, start])
    x += layers.AdditiveAttention()([x, places])
    return layers.Dense(9)(x), tasks.CROSSENTROPY()


@kind((3, 6, 6, 1))
def video_convlstm(inputs):
    """Frames by a convolutional LSTM and 3-D kernels."""
    x = layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(inputs)
    x = layers.Conv3D(2, 3, padding="same", activation="relu")(x)
    return layers.TimeDistributed(layers.MaxPooling2D())(x)
