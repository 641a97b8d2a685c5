"""Generative models, as in keras.io's examples."""

import keras
import numpy as np
import tensorflow as tf

from tests.further import tasks
from tests.further.dynamics import own_loss
from tests.further.kinds import Own, attended, conv, kind, layers, mlp, ops

IMAGE = (6, 6, 1)


def _raised(filters, kernel, strides=2, *, activation=None):
    return layers.Conv2DTranspose(
        filters, kernel, strides, "same", activation=activation
    )


class Sampling(layers.Layer):
    """A draw, and the divergence from a standard normal distribution."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, pair):
        mean, logs = pair
        inner = 1 + logs - ops.square(mean) - ops.exp(logs)
        self.add_loss(-0.5 * ops.mean(ops.sum(inner, 1)))
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * logs) * noise


@kind(tasks.shares(*IMAGE), y=tasks.SAME, draws=True)
def vae(inputs):
    """Draws; divergence by add_loss."""
    x = layers.Flatten()(conv(4, 3, 2)(inputs))
    x = layers.Dense(6, "relu")(x)
    z = Sampling()([layers.Dense(3)(x), layers.Dense(3)(x)])
    x = layers.Reshape((3, 3, 4))(layers.Dense(36, "relu")(z))
    x = _raised(1, 3, 1, activation="sigmoid")(
        _raised(4, 3, 2, activation="relu")(x)
    )
    return x, "binary_crossentropy"


def _wasserstein(net, x, y, y_pred):
    """A critic's, with a gradient penalty; the targets are generated."""
    between = 0.3 * x + 0.7 * y
    with tf.GradientTape() as tape:
        tape.watch(between)
        score = net(between)
    slope = tape.gradient(score, between)
    norm = ops.sqrt(ops.sum(ops.square(slope), (1, 2, 3)) + 1e-6)
    penalty = 10.0 * ops.mean(ops.square(norm - 1))
    return ops.mean(net(y)) - ops.mean(y_pred) + penalty


@kind(tasks.shares(*IMAGE), y=tasks.shares(*IMAGE))
def gan_critic(inputs):
    """Gradient penalty by an inner tape."""
    first = layers.Conv2D(4, 3, 2, activation="swish")
    net = keras.Sequential([first, layers.Flatten(), layers.Dense(1)])
    return own_loss(net, _wasserstein, inputs)


@kind((4,), y=tasks.given(np.ones((tasks.N, 1))), dtype="float32")
def dcgan_generator(noise):
    """With a frozen discriminator."""
    x = layers.Reshape((2, 2, 4))(layers.Dense(16)(noise))
    x = layers.LeakyReLU(0.2)(_raised(4, 4)(x))
    x = layers.UpSampling2D(interpolation="bilinear")(x)
    fake = conv(1, 3, activation="tanh")(x)
    judge = keras.Sequential(
        [
            layers.Conv2D(3, 3, 2, activation="relu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(1),
        ]
    )
    judge.trainable = False
    return judge(fake), tasks.BINARY()


def _block(x, time, width):
    skip = layers.Conv2D(width, 1)(x)
    x = conv(width, 3, activation="swish")(layers.GroupNormalization(2)(x))
    x += layers.Dense(width)(time)[:, None, None]
    return skip + conv(width, 3, activation=None)(x)


class Noisy(layers.Layer):
    """Images mixed with noise, at drawn times."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        level = keras.random.uniform((ops.shape(x)[0], 1), seed=self.seeds)
        noise = keras.random.normal(ops.shape(x), seed=self.seeds)
        angle = level[:, None, None] * 1.5
        return ops.cos(angle) * x + ops.sin(angle) * noise, level, noise


@kind((8, 8, 2), y=tasks.given(np.zeros((tasks.N, 8, 8, 2))), draws=True)
def diffusion(inputs):
    """A U-Net that predicts drawn noise."""
    images, level, noise = Noisy()(inputs)
    angles = level * np.exp(np.linspace(0, 3, 4))
    time = ops.concatenate([ops.sin(angles), ops.cos(angles)], -1)
    first = _block(images, time, 4)
    x = _block(layers.AveragePooling2D(2)(first), time, 6)
    flat = layers.Reshape((16, 6))(x)
    x += layers.Reshape((4, 4, 6))(attended(flat))
    x = layers.UpSampling2D(interpolation="nearest")(x)
    x = _block(layers.Concatenate()([x, first]), time, 4)
    return layers.Conv2D(2, 1)(x) - noise, "mse"


class Likelihood(keras.losses.Loss):
    """Of a flow: the last entry is the logarithm of its volume."""

    def call(self, y_true, y_pred):
        del y_true
        return 0.5 * ops.sum(y_pred[:, :-1] ** 2, -1) - y_pred[:, -1]


@kind((4,), y=(4,))
def real_nvp(x):
    """A normalising flow by couplings."""
    volume = 0.0
    for _ in range(3):
        a, b = ops.split(x, 2, -1)
        scale, shift = ops.split(mlp(2, 5, 4)(a), 2, -1)
        scale = ops.tanh(scale)
        x = ops.concatenate([b * ops.exp(scale) + shift, a], -1)
        volume += ops.sum(scale, -1, keepdims=True)
    return ops.concatenate([x, volume], -1), Likelihood()


class Quantizer(layers.Layer):
    """The nearest row of a code book, straight through."""

    def build(self, shape):
        self.codes = self.add_weight((5, shape[-1]), name="codes")

    def call(self, x):
        flat = ops.reshape(x, (-1, ops.shape(x)[-1]))
        far = (
            ops.sum(flat**2, 1, keepdims=True)
            + ops.sum(self.codes**2, 1)
            - 2 * ops.matmul(flat, ops.transpose(self.codes))
        )
        chosen = ops.one_hot(ops.argmin(far, 1), 5, dtype=x.dtype)
        found = ops.reshape(ops.matmul(chosen, self.codes), ops.shape(x))
        stop = ops.stop_gradient
        self.add_loss(0.25 * ops.mean((stop(found) - x) ** 2))
        self.add_loss(ops.mean((found - stop(x)) ** 2))
        return x + stop(found - x)


@kind((8, 8, 1), y=(8, 8, 1))
def vq_vae(inputs):
    """A code book; straight-through gradients."""
    x = layers.Conv2D(3, 1)(conv(3, 4, 2)(inputs))
    return _raised(1, 4)(Quantizer()(x)), "mse"


def _masked(x, w):
    """A convolution that sees no pixel after its own."""
    mask = np.zeros((3, 3, 1, 1))
    mask[0] = mask[1, :1] = 1
    return ops.conv(x, w * ops.cast(mask, w.dtype), 1, "same")


@kind(tasks.integers(2, *IMAGE, dtype=None), y=tasks.SAME)
def pixelcnn(inputs):
    """Pixel by pixel, by masked kernels."""
    x = layers.ReLU()(Own(_masked, (3, 3, 1, 4))(inputs))
    x += layers.Conv2D(4, 1, activation="relu")(Own(_masked, (3, 3, 4, 4))(x))
    return layers.Conv2D(1, 1, activation="sigmoid")(x), "binary_crossentropy"


class Hidden(layers.Layer):
    """Hides a part of the patches, drawn for each sample."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.seeds = kept, keras.random.SeedGenerator(2)

    def build(self, shape):
        self.token = self.add_weight((shape[-1],), name="token")

    def call(self, x):
        n, count = ops.shape(x)[0], x.shape[1]
        order = ops.argsort(keras.random.uniform((n, count), seed=self.seeds))
        rank = ops.argsort(order)
        seen = ops.take_along_axis(x, order[:, : self.kept, None], 1)
        left = ops.broadcast_to(self.token, ops.shape(x))[:, self.kept :]
        all_in_order = ops.concatenate([seen, left], 1)
        return ops.take_along_axis(all_in_order, rank[:, :, None], 1)


@kind((8, 8, 1), y=(4, 16), draws=True)
def masked_autoencoder(inputs):
    """Random patches are hidden."""
    x = layers.Reshape((4, 16))(ops.image.extract_patches(inputs, 4))
    x = Hidden(2)(layers.Dense(6)(x))
    return layers.Dense(16)(layers.LayerNormalization()(x + attended(x))), "mse"


def _sliced(net, x, y, y_pred):
    """The slope of a density: sliced score matching by inner tapes."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        along = ops.sum(net(x) * y)
    slope = tape.gradient(along, x)
    return ops.mean(ops.sum(slope * y + 0.5 * y_pred**2, -1))


@kind((4,), y=(4,))
def score_matching(inputs):
    """Directional derivatives, by an inner tape."""
    return own_loss(mlp(4, 6, 4), _sliced, inputs)


@kind((8, 8, 2), y=(8, 8, 2))
def cycle_generator(inputs):
    """Reflected edges, instance norms."""
    x = ops.pad(inputs, [[0, 0], [1, 1], [1, 1], [0, 0]], "reflect")
    x = layers.ReLU()(layers.GroupNormalization(-1)(layers.Conv2D(4, 3)(x)))
    y = _raised(4, 3)(conv(4, 3, 2)(x))
    return conv(2, 3, activation="tanh")(x + y), "mae"


def _adapted(x, style):
    """Adaptive instance normalisation by a style, as in StyleGAN."""
    mean, variance = ops.moments(x, (1, 2), keepdims=True)
    style = layers.Dense(2 * x.shape[-1])(style)[:, None, None]
    scale, shift = ops.split(style, 2, -1)
    return (x - mean) / ops.sqrt(variance + 1e-5) * (1 + scale) + shift


@kind((4,), y=(4, 4, 1), draws=True)
def style_generator(inputs):
    """Adaptive instance norms, drawn noise."""
    w = layers.Dense(4, layers.LeakyReLU(0.2))(inputs)
    x = layers.Reshape((4, 4, 3))(layers.Dense(48)(w))
    for _ in range(2):
        x = layers.GaussianNoise(0.1, seed=4)(x)
        x = layers.LeakyReLU(0.2)(_adapted(conv(3, 3, activation=None)(x), w))
    return layers.Conv2D(1, 1)(x), "mse"
