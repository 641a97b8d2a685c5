"""Nets that find, cut out, describe or draw what is in images."""

import keras
import numpy as np
import tensorflow as tf

from tests.further.images import Latents, patches
from tests.further.kinds import (
    classified,
    integers,
    kind,
    layers,
    normal,
    ops,
    perturbed,
)


class Boxes(keras.losses.Loss):
    """Smooth L1 where there is an object, over the number of the sample's."""

    def call(self, y_true, y_pred):
        there = y_true[..., :1]
        gap = abs(y_true[..., 1:] - y_pred)
        smooth = ops.where(gap < 0.5, gap**2, gap - 0.25)
        count = ops.maximum(ops.sum(there, (1, 2)), 1.0)
        return ops.sum(smooth * there, (1, 2)) / count


@kind("detection_head", "focal loss of classes, smooth L1 of boxes")
def detection():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, 2, "same", activation="relu")(inputs)
    logits = layers.Reshape((-1, 2))(layers.Conv2D(4, 3, padding="same")(x))
    boxes = layers.Reshape((-1, 4))(layers.Conv2D(8, 3, padding="same")(x))
    model = perturbed(keras.Model(inputs, [logits, boxes]))
    focal = keras.losses.BinaryFocalCrossentropy(True, from_logits=True)
    model.compile("sgd", [focal, Boxes()])
    there = integers(2, 32, 1).astype("float64")
    y = [
        integers(2, 32, 2).astype("float64"),
        np.concatenate([there, normal(32, 4)], -1),
    ]
    return model, normal(8, 8, 3), y


class Matched(keras.losses.Loss):
    """A set of objects, each against the query next to it."""

    def call(self, y_true, y_pred):
        far = ops.sum(abs(y_true[:, :, None] - y_pred[:, None]), -1)
        nearest = ops.argmin(far, 2)
        chosen = ops.take_along_axis(y_pred, nearest[..., None], 1)
        return ops.sum((chosen - y_true) ** 2, (1, 2))


@kind("detr", "queries to an image; targets matched to the nearest")
def detr():
    inputs = keras.Input((8, 8, 3))
    x = patches(inputs)
    queries = Latents()(x)
    queries += layers.MultiHeadAttention(2, 3)(queries, x)
    model = keras.Model(inputs, layers.Dense(4, "sigmoid")(queries))
    perturbed(model).compile("sgd", Matched())
    return model, normal(8, 8, 3), normal(2, 4)


class Crops(layers.Layer):
    """Crops the boxes of each image out of its features."""

    def call(self, pair):
        x, boxes = pair
        count = boxes.shape[1]
        numbers = ops.repeat(ops.arange(ops.shape(x)[0]), count)
        flat = ops.reshape(boxes, (-1, 4))
        found = tf.image.crop_and_resize(x, flat, numbers, (3, 3))
        return ops.reshape(found, (-1, count, 3, 3, x.shape[-1]))

    def compute_output_shape(self, shapes):
        return (shapes[0][0], shapes[1][1], 3, 3, shapes[0][-1])


@kind("regions", "boxes cropped out of features", dtype="float32")
def regions():
    image, boxes = keras.Input((8, 8, 3)), keras.Input((2, 4))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(image)
    moved = boxes + 0.1 * layers.Dense(4, "tanh")(boxes)
    x = layers.Reshape((2, 36))(Crops()([x, moved]))
    model = perturbed(keras.Model([image, boxes], layers.Dense(5)(x)))
    model.compile("sgd", "mse")
    places = np.tile([[0.1, 0.0, 0.8, 0.9], [0.3, 0.2, 1.0, 0.7]], (3, 1, 1))
    x = [normal(8, 8, 3), places.astype("float32")]
    return model, x, normal(2, 5)


class Dice(keras.losses.Loss):
    """The overlap of masks, sample by sample."""

    def call(self, y_true, y_pred):
        both = ops.sum(y_true * y_pred, (1, 2, 3))
        either = ops.sum(y_true + y_pred, (1, 2, 3))
        return 1 - (2 * both + 1) / (either + 1)


@kind("unet", "segmentation; dice of each sample")
def unet():
    inputs = keras.Input((8, 8, 1))
    first = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D()(first)
    x = layers.SpatialDropout2D(0.0)(x)
    x = layers.SeparableConv2D(4, 3, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(3, 2, 2)(x)
    x = layers.Concatenate()([x, first])
    outputs = layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x)
    model = perturbed(keras.Model(inputs, outputs))
    model.compile("sgd", Dice())
    return model, normal(8, 8, 1), integers(2, 8, 8, 1).astype("float64")


class Rays(layers.Layer):
    """Colours along each ray, weighed by what is in front of them."""

    def call(self, x):
        density = ops.relu(x[..., 3])
        opaque = 1 - ops.exp(-density * 0.3)
        passed = ops.cumprod(1 - opaque + 1e-9, -1)
        passed = ops.pad(
            passed[..., :-1], [[0, 0], [0, 0], [1, 0]], "constant", 1.0
        )
        share = opaque * passed
        return ops.sum(share[..., None] * ops.sigmoid(x[..., :3]), -2)


@kind("nerf", "rays through a field of light")
def nerf():
    inputs = keras.Input((4, 5, 3))
    rates = 2.0 ** np.arange(3)
    waves = ops.concatenate(
        [f(inputs * r) for r in rates for f in (ops.sin, ops.cos)], -1
    )
    x = layers.Dense(4)(layers.Dense(6, "relu")(waves))
    model = perturbed(keras.Model(inputs, Rays()(x)))
    model.compile("sgd", "mse")
    return model, normal(4, 5, 3), abs(normal(4, 3))


@kind("captioning", "an LSTM that looks at an image")
def captioning():
    image, words = keras.Input((8, 8, 3)), keras.Input((5,), dtype="int32")
    places = patches(image)
    start = layers.Dense(6, "tanh")(ops.mean(places, 1))
    x = layers.Embedding(9, 6)(words)
    x = layers.LSTM(6, return_sequences=True)(x, initial_state=[start, start])
    x += layers.AdditiveAttention()([x, places])
    model = perturbed(keras.Model([image, words], layers.Dense(9)(x)))
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model, [normal(8, 8, 3), integers(9, 5)], integers(9, 5, seed=1)


@kind("video_convlstm", "frames by a convolutional LSTM and 3-D kernels")
def video():
    inputs = keras.Input((3, 6, 6, 1))
    x = layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(inputs)
    x = layers.Conv3D(2, 3, padding="same", activation="relu")(x)
    x = layers.TimeDistributed(layers.MaxPooling2D())(x)
    return classified(inputs, x, normal(3, 6, 6, 1))
