"""Nets for images, as in keras.io's examples."""

import keras
import tensorflow as tf

from tests.further import tasks
from tests.further.kinds import Own, attended, conv, kind, layers, normed, ops

IMAGE = (8, 8, 3)


def patches(inputs, width=6, size=4):
    """Square patches, each as a vector."""
    x = ops.image.extract_patches(inputs, size)
    x = layers.Reshape((-1, x.shape[-1]))(x)
    return layers.Dense(width)(x)


@kind(IMAGE)
def mlp_mixer(inputs):
    """Dense layers along patches and along channels."""
    x = patches(inputs)
    for _ in range(2):
        y = layers.Permute((2, 1))(normed(x))
        y = layers.Dense(4)(layers.Dense(5, "gelu")(y))
        x += layers.Permute((2, 1))(y)
        x += layers.Dense(6)(layers.Dense(8, "gelu")(normed(x)))
    return x


@kind(IMAGE)
def external_attention(inputs):
    """Attention to a memory of weights."""
    x = patches(inputs)
    scores = layers.Dense(5, use_bias=False)(normed(x))
    scores = ops.softmax(scores, 1)
    scores /= ops.sum(scores, -1, keepdims=True) + 1e-9
    return x + layers.Dense(6, use_bias=False)(scores)


def latents():
    """A layer of a few learned rows for each sample."""
    return Own(lambda x, rows: ops.zeros_like(x[:, :1, :1]) + rows, (3, 6))


@kind((6, 6, 3))
def perceiver(inputs):
    """A few latent rows attend to all pixels."""
    pixels = layers.Dense(6)(layers.Reshape((36, 3))(inputs))
    x = latents()(pixels)
    for _ in range(2):
        x += attended(normed(x), pixels, 1, size=6)
        x += attended(normed(x))
        x += layers.Dense(6, "gelu")(normed(x))
    return x


def _routed(x, w):
    votes = ops.einsum("nid,ijdk->nijk", x, w)
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
        y = ops.one_hot(
            ops.cast(y_true, "int32"), tasks.CLASSES, dtype=y_pred.dtype
        )
        missed = ops.square(ops.relu(0.9 - y_pred))
        found = ops.square(ops.relu(y_pred - 0.1))
        return ops.sum(y * missed + 0.5 * (1 - y) * found, -1)


@kind((8, 8, 1))
def capsule_net(inputs):
    """Capsules, routed by agreement."""
    x = layers.Conv2D(8, 4, 2, activation="relu")(inputs)
    x = layers.Lambda(_squash)(layers.Reshape((18, 4))(x))
    return Own(_routed, (18, tasks.CLASSES, 4, 4))(x), Margin()


def _gram(x):
    flat = ops.reshape(x, (-1, x.shape[1] * x.shape[2], x.shape[3]))
    return ops.einsum("nic,nid->ncd", flat, flat) / flat.shape[1]


@kind(IMAGE, y=IMAGE)
def neural_style(inputs):
    """Gram matrices of a frozen net's features."""
    features = keras.Sequential(
        [keras.Input(IMAGE), layers.Conv2D(4, 3, 2, activation="relu")]
    )
    features.trainable = False

    def loss(y_true, y_pred):
        found, wanted = features(y_pred), features(y_true)
        style = ops.sum((_gram(found) - _gram(wanted)) ** 2, (1, 2))
        content = ops.mean((found - wanted) ** 2, (1, 2, 3))
        rough = ops.sum((y_pred[:, 1:] - y_pred[:, :-1]) ** 2, (1, 2, 3))
        return style + content + 0.1 * rough

    return conv(3, 3, activation=None)(conv(4, 3)(inputs)), loss


@kind((5, 5, 1), y=(10, 10, 1))
def super_resolution(inputs):
    """Pixels from channels."""
    x = conv(4, 3, activation=None)(conv(6, 3, activation="tanh")(inputs))
    return Own(lambda t: tf.nn.depth_to_space(t, 2))(x), "mse"


def _moved(images, maps):
    """Samples images on a grid that an affine map of their own moves."""
    side = images.shape[1]
    ticks = ops.cast(ops.linspace(-1.0, 1.0, side), images.dtype)
    xs, ys = ops.meshgrid(ticks, ticks)
    grid = ops.stack([xs, ys, ops.ones_like(xs)], -1)
    places = ops.einsum("hwk,njk->nhwj", grid, ops.reshape(maps, (-1, 2, 3)))
    places = ops.clip((places + 1) / 2 * (side - 1), 0.0, side - 1.001)
    low = ops.floor(places)
    part = places - low
    low = ops.cast(low, "int32")
    flat = ops.reshape(images, (-1, side * side, images.shape[-1]))
    found = 0.0
    for dx, dy in ((0, 0), (0, 1), (1, 0), (1, 1)):
        index = (low[..., 1] + dy) * side + low[..., 0] + dx
        index = ops.reshape(index, (-1, side * side, 1))
        value = ops.take_along_axis(flat, index, 1)
        share = abs(1 - dx - part[..., :1]) * abs(1 - dy - part[..., 1:])
        found += ops.reshape(value, ops.shape(images)) * share
    return found


@kind((6, 6, 2))
def spatial_transformer(inputs):
    """Bilinear sampling at positions in each image."""
    maps = layers.Dense(6)(layers.Flatten()(inputs))
    return conv(3, 3, padding="valid")(Own(_moved)([inputs, maps]))


def _exposure(images, curves):
    """Zero-DCE: exposure, colours and smoothness without targets."""
    for k in range(2):
        curve = curves[..., 3 * k : 3 * k + 3]
        images = images + curve * (images**2 - images)
    bright = ops.average_pool(ops.mean(images, 3, keepdims=True), 4, 4)
    exposure = ops.mean((bright - 0.6) ** 2, (1, 2, 3))
    means = ops.mean(images, (1, 2))
    colour = ops.sum((means - ops.roll(means, 1, 1)) ** 2, -1)
    rough = ops.mean((curves[:, 1:] - curves[:, :-1]) ** 2, (1, 2, 3))
    return exposure + ops.sqrt(colour + 1e-9) + rough


@kind(tasks.shares(*IMAGE), y=tasks.SAME)
def zero_dce(inputs):
    """Brightness curves, learned without targets."""
    first = conv(4, 3)(inputs)
    x = layers.Concatenate()([first, conv(4, 3)(first)])
    return conv(6, 3, activation="tanh")(x), _exposure


def _involved(x, kernel):
    around = ops.image.extract_patches(x, 3, 1, padding="same")
    around = ops.reshape(around, (*ops.shape(x)[:3], 9, x.shape[-1]))
    return ops.sum(kernel(x)[..., None] * around, 3)


@kind((6, 6, 3))
def involution_net(inputs):
    """A kernel computed for each pixel."""
    kernel = layers.Conv2D(9, 1)
    kernel.build((None, 6, 6, 3))
    return ops.relu(Own(_involved, kernel)(inputs))


@kind(IMAGE)
def convmixer(inputs):
    """Depthwise and pointwise convolutions."""
    x = layers.Conv2D(4, 2, 2, activation="gelu")(inputs)
    for _ in range(2):
        y = layers.DepthwiseConv2D(3, padding="same", activation="gelu")(x)
        x += layers.GroupNormalization(1)(y)
        x = layers.Conv2D(4, 1, activation="gelu")(x)
    return x


@kind(IMAGE)
def cross_covariance(inputs):
    """Attention between channels; layer scale."""
    x = patches(inputs)
    q, k, v = (ops.normalize(layers.Dense(6)(x), 1) for _ in range(3))
    scores = ops.softmax(ops.matmul(ops.transpose(q, (0, 2, 1)), k) / 0.5)
    y = ops.matmul(scores, ops.transpose(v, (0, 2, 1)))
    return x + ops.transpose(y, (0, 2, 1))


@kind((10, 3))
def point_net(inputs):
    """A point cloud, transformed by a learned matrix."""
    x = layers.Conv1D(6, 1, activation="relu")(inputs)
    x = layers.GlobalMaxPooling1D()(x)
    matrix = layers.Reshape((3, 3))(layers.Dense(9)(x))
    x = layers.Dot((2, 1))([inputs, matrix])
    x = layers.Conv1D(8, 1, activation="relu")(x)
    return layers.GlobalMaxPooling1D()(x)


@kind(IMAGE, draws=True)
def random_crops(inputs):
    """Augmented within the model."""
    x = layers.GaussianNoise(0.1, seed=1)(inputs)
    x = layers.Conv2D(4, 3, 2, activation="relu")(x)
    x = layers.Dropout(0.4, seed=2)(x)
    return layers.SpatialDropout2D(0.4, seed=3)(x)
