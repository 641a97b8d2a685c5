"""Nets for images, as in keras.io's examples."""

import keras
import numpy as np
import tensorflow as tf

from tests.further.kinds import (
    CLASSES,
    classified,
    kind,
    labels,
    layers,
    normal,
    ops,
    perturbed,
)


def patches(inputs, width=6, size=4):
    """Square patches, each as a vector."""
    x = ops.image.extract_patches(inputs, size)
    x = layers.Reshape((-1, x.shape[-1]))(x)
    return layers.Dense(width)(x)


def _norm(x):
    return layers.LayerNormalization()(x)


@kind("mlp_mixer", "dense layers along patches and along channels")
def mixer():
    inputs = keras.Input((8, 8, 3))
    x = patches(inputs)
    for _ in range(2):
        y = layers.Permute((2, 1))(_norm(x))
        y = layers.Dense(4)(layers.Dense(5, "gelu")(y))
        x += layers.Permute((2, 1))(y)
        x += layers.Dense(6)(layers.Dense(8, "gelu")(_norm(x)))
    return classified(inputs, x, normal(8, 8, 3))


def _external(x, memory):
    """Attention to a memory that all samples share."""
    scores = layers.Dense(memory, use_bias=False)(x)
    scores = ops.softmax(scores, 1)
    scores /= ops.sum(scores, -1, keepdims=True) + 1e-9
    return layers.Dense(x.shape[-1], use_bias=False)(scores)


@kind("external_attention", "attention to a memory of weights")
def external():
    inputs = keras.Input((8, 8, 3))
    x = patches(inputs)
    return classified(inputs, x + _external(_norm(x), 5), normal(8, 8, 3))


class Latents(layers.Layer):
    """A few learned rows for each sample."""

    def build(self, shape):
        self.rows = self.add_weight((3, 6), name="rows")

    def call(self, x):
        return ops.zeros_like(x[:, :1, :1]) + self.rows


@kind("perceiver", "a few latent rows look at all pixels")
def perceiver():
    inputs = keras.Input((6, 6, 3))
    pixels = layers.Dense(6)(layers.Reshape((36, 3))(inputs))
    x = Latents()(pixels)
    for _ in range(2):
        x += layers.MultiHeadAttention(1, 6)(_norm(x), pixels)
        y = _norm(x)
        x += layers.MultiHeadAttention(2, 3)(y, y)
        x += layers.Dense(6, "gelu")(_norm(x))
    return classified(inputs, x, normal(6, 6, 3))


class Capsules(layers.Layer):
    """Routing by agreement."""

    def build(self, shape):
        self.w = self.add_weight((shape[1], CLASSES, shape[2], 4))

    def call(self, x):
        votes = ops.einsum("nid,ijdk->nijk", x, self.w)
        logits = ops.zeros_like(votes[..., 0])
        found = None
        for _ in range(3):
            shares = ops.softmax(logits, 2)
            found = _squash(ops.einsum("nij,nijk->njk", shares, votes))
            logits += ops.einsum("njk,nijk->nij", found, votes)
        return ops.norm(found, axis=-1)


def _squash(x):
    square = ops.sum(x * x, -1, keepdims=True)
    return x * square / (1 + square) / ops.sqrt(square + 1e-9)


class Margin(keras.losses.Loss):
    """The loss of capsules."""

    def call(self, y_true, y_pred):
        y = ops.one_hot(ops.cast(y_true, "int32"), CLASSES, dtype=y_pred.dtype)
        missed = ops.square(ops.relu(0.9 - y_pred))
        found = ops.square(ops.relu(y_pred - 0.1))
        return ops.sum(y * missed + 0.5 * (1 - y) * found, -1)


@kind("capsule_net", "capsules, routed by agreement")
def capsules():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(8, 4, 2, activation="relu")(inputs)
    x = layers.Reshape((18, 4))(x)
    outputs = Capsules()(layers.Lambda(_squash)(x))
    model = perturbed(keras.Model(inputs, outputs))
    model.compile("sgd", Margin())
    return model, normal(8, 8, 1), labels()


def _gram(x):
    flat = ops.reshape(x, (-1, x.shape[1] * x.shape[2], x.shape[3]))
    return ops.einsum("nic,nid->ncd", flat, flat) / flat.shape[1]


class Style(keras.losses.Loss):
    """Gram matrices of features, and how smooth an image is."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def call(self, y_true, y_pred):
        found, wanted = self.features(y_pred), self.features(y_true)
        style = ops.sum((_gram(found) - _gram(wanted)) ** 2, (1, 2))
        content = ops.mean((found - wanted) ** 2, (1, 2, 3))
        rough = ops.sum((y_pred[:, 1:] - y_pred[:, :-1]) ** 2, (1, 2, 3))
        return style + content + 0.1 * rough


@kind("neural_style", "Gram matrices of a frozen net's features")
def neural_style():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    model = keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(x))
    features = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(4, 3, 2, activation="relu")]
    )
    features.trainable = False
    perturbed(model).compile("sgd", Style(features))
    return model, normal(8, 8, 3), normal(8, 8, 3, seed=1)


@kind("super_resolution", "pixels from channels")
def super_resolution():
    inputs = keras.Input((5, 5, 1))
    x = layers.Conv2D(6, 3, padding="same", activation="tanh")(inputs)
    x = layers.Conv2D(4, 3, padding="same")(x)
    outputs = layers.Lambda(
        lambda t: tf.nn.depth_to_space(t, 2), output_shape=(10, 10, 1)
    )(x)
    model = perturbed(keras.Model(inputs, outputs))
    model.compile("sgd", "mse")
    return model, normal(5, 5, 1), normal(10, 10, 1)


class Transformer(layers.Layer):
    """Samples an image on a grid that an affine map of its own moves."""

    def call(self, pair):
        images, maps = pair
        side = images.shape[1]
        ticks = ops.linspace(-1.0, 1.0, side)
        ticks = ops.cast(ticks, images.dtype)
        xs, ys = ops.meshgrid(ticks, ticks)
        grid = ops.stack([xs, ys, ops.ones_like(xs)], -1)
        places = ops.einsum(
            "hwk,njk->nhwj", grid, ops.reshape(maps, (-1, 2, 3))
        )
        places = ops.clip((places + 1) / 2 * (side - 1), 0.0, side - 1.001)
        low = ops.floor(places)
        part = places - low
        low = ops.cast(low, "int32")
        flat = ops.reshape(images, (-1, side * side, images.shape[-1]))
        found = 0.0
        for dx in (0, 1):
            for dy in (0, 1):
                index = (low[..., 1] + dy) * side + low[..., 0] + dx
                index = ops.reshape(index, (-1, side * side, 1))
                value = ops.take_along_axis(flat, index, 1)
                share = abs(1 - dx - part[..., :1]) * abs(
                    1 - dy - part[..., 1:]
                )
                found += ops.reshape(value, ops.shape(images)) * share
        return found


@kind("spatial_transformer", "bilinear samples at places of each image")
def spatial_transformer():
    inputs = keras.Input((6, 6, 2))
    maps = layers.Dense(6)(layers.Flatten()(inputs))
    moved = Transformer()([inputs, maps])
    x = layers.Conv2D(3, 3, activation="relu")(moved)
    return classified(inputs, x, normal(6, 6, 2))


class Curves(keras.losses.Loss):
    """Zero-DCE: exposure, colours and smoothness without targets."""

    def call(self, y_true, y_pred):
        images, curves = y_true, y_pred
        for k in range(2):
            curve = curves[..., 3 * k : 3 * k + 3]
            images = images + curve * (images**2 - images)
        bright = ops.average_pool(ops.mean(images, 3, keepdims=True), 4, 4)
        exposure = ops.mean((bright - 0.6) ** 2, (1, 2, 3))
        means = ops.mean(images, (1, 2))
        colour = ops.sum((means - ops.roll(means, 1, 1)) ** 2, -1)
        steps = curves[:, 1:] - curves[:, :-1]
        return (
            exposure + ops.sqrt(colour + 1e-9) + ops.mean(steps**2, (1, 2, 3))
        )


@kind("zero_dce", "curves of light, learned without targets")
def zero_dce():
    inputs = keras.Input((8, 8, 3))
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    second = layers.Conv2D(4, 3, padding="same", activation="relu")(first)
    x = layers.Concatenate()([first, second])
    curves = layers.Conv2D(6, 3, padding="same", activation="tanh")(x)
    model = perturbed(keras.Model(inputs, curves))
    model.compile("sgd", Curves())
    images = 1 / (1 + np.exp(-normal(8, 8, 3)))
    return model, images, images


class Involution(layers.Layer):
    """A kernel of its own for each pixel."""

    def build(self, shape):
        self.kernel = layers.Conv2D(9, 1)
        self.kernel.build(shape)

    def call(self, x):
        kernel = self.kernel(x)[..., None]
        channels = x.shape[-1]
        around = ops.image.extract_patches(x, 3, 1, padding="same")
        around = ops.reshape(around, (*ops.shape(x)[:3], 9, channels))
        return ops.sum(kernel * around, 3)


@kind("involution_net", "kernels made for each pixel")
def involution():
    inputs = keras.Input((6, 6, 3))
    return classified(
        inputs, layers.ReLU()(Involution()(inputs)), normal(6, 6, 3)
    )


@kind("convmixer", "depthwise and pointwise convolutions")
def convmixer():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 2, 2, activation="gelu")(inputs)
    for _ in range(2):
        y = layers.DepthwiseConv2D(3, padding="same", activation="gelu")(x)
        x += layers.GroupNormalization(1)(y)
        x = layers.Conv2D(4, 1, activation="gelu")(x)
    return classified(inputs, x, normal(8, 8, 3))


@kind("cross_covariance", "attention between channels; layer scale")
def xcit():
    inputs = keras.Input((8, 8, 3))
    x = patches(inputs)
    q, k, v = (ops.normalize(layers.Dense(6)(x), 1) for _ in range(3))
    scores = ops.softmax(ops.matmul(ops.transpose(q, (0, 2, 1)), k) / 0.5)
    x += ops.transpose(
        ops.matmul(scores, ops.transpose(v, (0, 2, 1))), (0, 2, 1)
    )
    return classified(inputs, x, normal(8, 8, 3))


@kind("point_net", "points of a cloud, moved by a learned matrix")
def point_net():
    inputs = keras.Input((10, 3))
    x = layers.Conv1D(6, 1, activation="relu")(inputs)
    x = layers.GlobalMaxPooling1D()(x)
    matrix = layers.Reshape((3, 3))(layers.Dense(9)(x))
    x = layers.Dot((2, 1))([inputs, matrix])
    x = layers.Conv1D(8, 1, activation="relu")(x)
    return classified(inputs, layers.GlobalMaxPooling1D()(x), normal(10, 3))


@kind("random_crops", "augmented within the model", draws=True)
def augmented():
    inputs = keras.Input((8, 8, 3))
    x = layers.GaussianNoise(0.1, seed=1)(inputs)
    x = layers.Conv2D(4, 3, 2, activation="relu")(x)
    x = layers.Dropout(0.4, seed=2)(x)
    x = layers.SpatialDropout2D(0.4, seed=3)(x)
    return classified(inputs, x, normal(8, 8, 3))
