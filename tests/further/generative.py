"""Generative models, as in keras.io's examples."""

import keras
import numpy as np
import tensorflow as tf

from tests.further.kinds import kind, layers, normal, ops, perturbed

_L = 3


def _images(*shape, seed=0):
    return 1 / (1 + np.exp(-normal(*shape, seed=seed)))


class _Sampling(layers.Layer):
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


@kind("vae", "draws; divergence by add_loss", draws=True)
def vae():
    inputs = keras.Input((6, 6, 1))
    x = layers.Conv2D(4, 3, 2, "same", activation="relu")(inputs)
    x = layers.Dense(6, "relu")(layers.Flatten()(x))
    z = _Sampling()([layers.Dense(_L)(x), layers.Dense(_L)(x)])
    x = layers.Reshape((3, 3, 4))(layers.Dense(36, "relu")(z))
    x = layers.Conv2DTranspose(4, 3, 2, "same", activation="relu")(x)
    outputs = layers.Conv2DTranspose(1, 3, 1, "same", activation="sigmoid")(x)
    model = perturbed(keras.Model(inputs, outputs))
    model.compile("sgd", "binary_crossentropy")
    images = _images(6, 6, 1)
    return model, images, images


class Critic(keras.Model):
    """A critic of Wasserstein's distance, with a gradient penalty.

    The targets are the generated images.
    """

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                layers.Conv2D(4, 3, 2, activation="swish"),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def call(self, x):
        return self.net(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        between = 0.3 * x + 0.7 * y
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.net(between)
        slope = tape.gradient(score, between)
        norm = ops.sqrt(ops.sum(ops.square(slope), (1, 2, 3)) + 1e-6)
        penalty = 10.0 * ops.mean(ops.square(norm - 1))
        return ops.mean(self.net(y)) - ops.mean(y_pred) + penalty


@kind("gan_critic", "gradient penalty by an inner tape")
def critic():
    model = Critic()
    x = _images(6, 6, 1)
    model(x)
    perturbed(model).compile("sgd")
    return model, x, _images(6, 6, 1, seed=1)


@kind("dcgan_generator", "behind a frozen judge", dtype="float32")
def generator():
    noise = keras.Input((4,))
    x = layers.Reshape((2, 2, 4))(layers.Dense(16)(noise))
    x = layers.Conv2DTranspose(4, 4, 2, "same")(x)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.UpSampling2D(interpolation="bilinear")(x)
    fake = layers.Conv2D(1, 3, padding="same", activation="tanh")(x)
    judge = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(3, 3, 2, activation="relu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(1),
        ]
    )
    judge.trainable = False
    model = perturbed(keras.Model(noise, judge(fake)))
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    return model, normal(4), np.ones((3, 1))


def _block(x, time, width):
    skip = layers.Conv2D(width, 1)(x)
    x = layers.GroupNormalization(2)(x)
    x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    x += layers.Dense(width)(time)[:, None, None]
    return skip + layers.Conv2D(width, 3, padding="same")(x)


class Diffusion(keras.Model):
    """Predicts the noise that it mixes with images, at drawn times."""

    def __init__(self):
        super().__init__()
        images, level = keras.Input((8, 8, 2)), keras.Input((1,))
        rates = np.exp(np.linspace(0, 3, 4))
        time = ops.concatenate(
            [ops.sin(level * rates), ops.cos(level * rates)], -1
        )
        first = _block(images, time, 4)
        x = layers.AveragePooling2D(2)(first)
        x = _block(x, time, 6)
        flat = layers.Reshape((16, 6))(x)
        x += layers.Reshape((4, 4, 6))(
            layers.MultiHeadAttention(2, 3)(flat, flat)
        )
        x = layers.UpSampling2D(interpolation="nearest")(x)
        x = _block(layers.Concatenate()([x, first]), time, 4)
        self.net = keras.Model([images, level], layers.Conv2D(2, 1)(x))
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        n = ops.shape(x)[0]
        level = keras.random.uniform((n, 1), seed=self.seeds)
        noise = keras.random.normal(ops.shape(x), seed=self.seeds)
        angle = level[:, None, None] * 1.5
        noisy = ops.cos(angle) * x + ops.sin(angle) * noise
        return self.net([noisy, level]) - noise


@kind("diffusion", "a U-Net that predicts drawn noise", draws=True)
def diffusion():
    model = Diffusion()
    x = normal(8, 8, 2)
    model(x)
    perturbed(model).compile("sgd", "mse")
    return model, x, np.zeros_like(x)


class _Couplings(layers.Layer):
    """Real NVP: half of the entries scale and shift the other half."""

    def build(self, shape):
        half = shape[-1] // 2
        self.nets = [
            keras.Sequential(
                [
                    keras.Input((half,)),
                    layers.Dense(5, "tanh"),
                    layers.Dense(2 * half),
                ]
            )
            for _ in range(3)
        ]

    def call(self, x):
        volume = 0.0
        for net in self.nets:
            a, b = ops.split(x, 2, -1)
            scale, shift = ops.split(net(a), 2, -1)
            scale = ops.tanh(scale)
            x = ops.concatenate([b * ops.exp(scale) + shift, a], -1)
            volume += ops.sum(scale, -1, keepdims=True)
        return ops.concatenate([x, volume], -1)


class _Likelihood(keras.losses.Loss):
    def call(self, y_true, y_pred):
        del y_true
        return 0.5 * ops.sum(y_pred[:, :-1] ** 2, -1) - y_pred[:, -1]


@kind("real_nvp", "a normalising flow by couplings")
def flow():
    inputs = keras.Input((4,))
    model = perturbed(keras.Model(inputs, _Couplings()(inputs)))
    model.compile("sgd", _Likelihood())
    return model, normal(4), normal(4)


class _Quantizer(layers.Layer):
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


@kind("vq_vae", "a code book; straight-through gradients")
def vq_vae():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(3, 4, 2, "same", activation="relu")(inputs)
    x = _Quantizer()(layers.Conv2D(3, 1)(x))
    outputs = layers.Conv2DTranspose(1, 4, 2, "same")(x)
    model = perturbed(keras.Model(inputs, outputs))
    model.compile("sgd", "mse")
    return model, normal(8, 8, 1), normal(8, 8, 1)


class _Masked(layers.Layer):
    """A convolution that sees no pixel after its own."""

    def build(self, shape):
        mask = np.zeros((3, 3, 1, 1))
        mask[0] = mask[1, :1] = 1
        self.mask = mask
        self.w = self.add_weight((3, 3, shape[-1], 4))

    def call(self, x):
        kernel = self.w * ops.cast(self.mask, self.w.dtype)
        return ops.conv(x, kernel, 1, "same")


@kind("pixelcnn", "pixel by pixel, by masked kernels")
def pixelcnn():
    inputs = keras.Input((6, 6, 1))
    x = layers.ReLU()(_Masked()(inputs))
    x += layers.Conv2D(4, 1, activation="relu")(_Masked()(x))
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    perturbed(model).compile("sgd", "binary_crossentropy")
    images = _images(6, 6, 1).round()
    return model, images, images


class _Hidden(layers.Layer):
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


@kind("masked_autoencoder", "drawn patches are hidden", draws=True)
def masked_autoencoder():
    inputs = keras.Input((8, 8, 1))
    patches = ops.image.extract_patches(inputs, 4)
    patches = layers.Reshape((4, 16))(patches)
    x = _Hidden(2)(layers.Dense(6)(patches))
    x += layers.MultiHeadAttention(2, 3)(x, x)
    model = keras.Model(
        inputs, layers.Dense(16)(layers.LayerNormalization()(x))
    )
    perturbed(model).compile("sgd", "mse")
    return model, normal(8, 8, 1), normal(4, 16)


class Score(keras.Model):
    """The slope of a density: sliced score matching by inner tapes."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(4)]
        )

    def call(self, x):
        return self.net(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        with tf.GradientTape() as tape:
            tape.watch(x)
            along = ops.sum(self.net(x) * y)
        slope = tape.gradient(along, x)
        return ops.mean(ops.sum(slope * y + 0.5 * y_pred**2, -1))


@kind("score_matching", "slopes along given directions, by an inner tape")
def score():
    model = Score()
    x = normal(4)
    model(x)
    perturbed(model).compile("sgd")
    return model, x, normal(4, seed=1)


@kind("cycle_generator", "reflected edges, instance norms")
def cycle():
    inputs = keras.Input((8, 8, 2))
    x = ops.pad(inputs, [[0, 0], [1, 1], [1, 1], [0, 0]], "reflect")
    x = layers.Conv2D(4, 3)(x)
    x = layers.ReLU()(layers.GroupNormalization(-1)(x))
    y = layers.Conv2D(4, 3, 2, "same", activation="relu")(x)
    y = layers.Conv2DTranspose(4, 3, 2, "same")(y)
    outputs = layers.Conv2D(2, 3, padding="same", activation="tanh")(x + y)
    model = perturbed(keras.Model(inputs, outputs))
    model.compile("sgd", "mae")
    return model, normal(8, 8, 2), normal(8, 8, 2, seed=1)


class _Adaptive(layers.Layer):
    """Adaptive instance normalisation by a style, as in StyleGAN."""

    def build(self, shapes):
        self.dense = layers.Dense(2 * shapes[0][-1])
        self.dense.build(shapes[1])

    def call(self, pair):
        x, style = pair
        mean, variance = ops.moments(x, (1, 2), keepdims=True)
        scale, shift = ops.split(self.dense(style)[:, None, None], 2, -1)
        return (x - mean) / ops.sqrt(variance + 1e-5) * (1 + scale) + shift


@kind("style_generator", "adaptive instance norms, drawn noise", draws=True)
def style():
    inputs = keras.Input((4,))
    w = layers.Dense(4, layers.LeakyReLU(0.2))(inputs)
    x = layers.Reshape((4, 4, 3))(layers.Dense(48)(w))
    for _ in range(2):
        x = layers.GaussianNoise(0.1, seed=4)(x)
        x = _Adaptive()([layers.Conv2D(3, 3, padding="same")(x), w])
        x = layers.LeakyReLU(0.2)(x)
    model = perturbed(keras.Model(inputs, layers.Conv2D(1, 1)(x)))
    model.compile("sgd", "mse")
    return model, normal(4), normal(4, 4, 1)
