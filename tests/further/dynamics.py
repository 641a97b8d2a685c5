"""Nets with loops, conditions and slopes inside."""

import keras
import numpy as np
import tensorflow as tf

from tests.further.kinds import (
    classified,
    kind,
    layers,
    normal,
    ops,
    perturbed,
)


def _field(width=4):
    return keras.Sequential(
        [keras.Input((width,)), layers.Dense(6, "tanh"), layers.Dense(width)]
    )


class Heat(keras.Model):
    """Solves the heat equation: slopes of slopes by inner tapes."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential(
            [
                keras.Input((2,)),
                layers.Dense(6, "tanh"),
                layers.Dense(5, "tanh"),
                layers.Dense(1),
            ]
        )

    def call(self, x):
        return self.net(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                u = self.net(x)
            first = inner.gradient(u, x)
            along = first[:, :1]
        second = outer.gradient(along, x)[:, :1]
        residual = first[:, 1:] - 0.1 * second
        return ops.mean(residual**2) + ops.mean((y_pred - y) ** 2)


@kind("physics_informed", "second derivatives by inner tapes")
def physics():
    model = Heat()
    x = normal(2)
    model(x)
    perturbed(model).compile("sgd")
    return model, x, normal(1)


class Hamiltonian(keras.Model):
    """Moves by the slopes of a learned energy."""

    def __init__(self):
        super().__init__()
        self.energy = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, "softplus"), layers.Dense(1)]
        )

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = self.energy(x)
        place, impulse = ops.split(tape.gradient(energy, x), 2, -1)
        return ops.concatenate([impulse, -place], -1)


@kind("hamiltonian", "slopes of a learned energy")
def hamiltonian():
    model = Hamiltonian()
    x = normal(4)
    model(x)
    perturbed(model).compile("sgd", "mse")
    return model, x, normal(4, seed=1)


class Ode(layers.Layer):
    """Steps of Runge and Kutta in a loop."""

    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def build(self, shape):
        self.field = _field(shape[-1])

    def _step(self, x):
        h = 0.2
        a = self.field(x)
        b = self.field(x + 0.5 * h * a)
        c = self.field(x + 0.5 * h * b)
        d = self.field(x + h * c)
        return x + h / 6 * (a + 2 * b + 2 * c + d)

    def call(self, x):
        if self.loop == "python":
            for _ in range(3):
                x = self._step(x)
            return x
        if self.loop == "fori":
            return ops.fori_loop(0, 3, lambda _, v: self._step(v), x)
        return ops.while_loop(
            lambda k, _: k < 3, lambda k, v: (k + 1, self._step(v)), (0, x)
        )[1]

    def compute_output_shape(self, shape):
        return shape


@kind("neural_ode", "steps of an equation, written out")
def ode():
    inputs = keras.Input((4,))
    return classified(inputs, Ode("python")(inputs), normal(4))


@kind("neural_ode_loop", "steps of an equation in a while loop")
def ode_loop():
    inputs = keras.Input((4,))
    return classified(inputs, Ode("while")(inputs), normal(4))


@kind("neural_ode_counted", "steps of an equation in a counted loop")
def ode_counted():
    inputs = keras.Input((4,))
    return classified(inputs, Ode("fori")(inputs), normal(4))


class Diffuses(keras.Model):
    """A stochastic equation: a draw in each step."""

    def __init__(self):
        super().__init__()
        self.drift, self.spread = _field(3), _field(3)
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x):
        for _ in range(3):
            noise = keras.random.normal(ops.shape(x), seed=self.seeds)
            x += 0.2 * self.drift(x) + 0.3 * ops.sigmoid(self.spread(x)) * noise
        return x


@kind("neural_sde", "a stochastic equation", draws=True)
def sde():
    model = Diffuses()
    x = normal(3)
    model(x)
    perturbed(model).compile("sgd", "mse")
    return model, x, normal(3, seed=1)


class Equilibrium(layers.Layer):
    """A fixed point, found by steps without slopes, then one with them."""

    def build(self, shape):
        self.net = _field(shape[-1])

    def call(self, x):
        z = ops.zeros_like(x)
        for _ in range(4):
            z = ops.stop_gradient(ops.tanh(0.3 * self.net(z) + x))
        return ops.tanh(0.3 * self.net(z) + x)


@kind("equilibrium", "a fixed point without slopes")
def equilibrium():
    inputs = keras.Input((4,))
    return classified(inputs, Equilibrium()(inputs), normal(4))


class Adaptive(layers.Layer):
    """Each sample thinks until it is sure, at most a few times."""

    def build(self, shape):
        self.net, self.halt = _field(shape[-1]), layers.Dense(1, "sigmoid")
        self.halt.build(shape)

    def call(self, x):
        left = ops.ones_like(x[:, :1])
        found = ops.zeros_like(x)
        for _ in range(3):
            x = x + self.net(x)
            odds = ops.minimum(self.halt(x), left)
            found += odds * x
            left = ops.where(left - odds > 0.01, left - odds, 0.0)
        return found + left * x


@kind("adaptive_time", "each sample thinks as long as it needs")
def adaptive():
    inputs = keras.Input((4,))
    return classified(inputs, Adaptive()(inputs), normal(4))


class Inner(layers.Layer):
    """Fits a small linear map to each sample's examples, by slopes (MAML)."""

    def build(self, shapes):
        self.w = self.add_weight((shapes[0][-1], 1), name="w")

    def call(self, given):
        x, y, new = given
        w = self.w + ops.zeros_like(x[:, :1, :1])
        for _ in range(2):
            gap = ops.matmul(x, w) - y
            w = w - 0.1 * ops.matmul(ops.transpose(x, (0, 2, 1)), gap)
        return ops.matmul(new, w)


@kind("few_shot", "a fit to each sample's own examples")
def few_shot():
    x, y, new = keras.Input((5, 3)), keras.Input((5, 1)), keras.Input((2, 3))
    encode = layers.Dense(3, "tanh")
    found = Inner()([encode(x), y, encode(new)])
    model = perturbed(keras.Model([x, y, new], found))
    model.compile("sgd", "mse")
    return model, [normal(5, 3), normal(5, 1), normal(2, 3)], normal(2, 1)


class Prototypes(layers.Layer):
    """Classes by the means of each sample's own examples."""

    def call(self, given):
        support, query = given
        means = ops.mean(support, 2)
        return -ops.sum((query[:, None] - means) ** 2, -1)


@kind("prototypes", "classes by each sample's own examples")
def prototypes():
    support, query = keras.Input((3, 2, 4)), keras.Input((4,))
    encode = layers.Dense(3, "relu")
    logits = Prototypes()([encode(support), encode(query)])
    model = perturbed(keras.Model([support, query], logits))
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model, [normal(3, 2, 4), normal(4)], np.arange(3)


class Spectral(layers.Layer):
    """A Fourier operator: weights on a few frequencies."""

    def build(self, shape):
        width = shape[-1]
        self.real = self.add_weight((3, width, width), name="real")
        self.imaginary = self.add_weight((3, width, width), name="imaginary")

    def call(self, x):
        length = x.shape[1]
        a, b = ops.rfft(ops.transpose(x, (0, 2, 1)))
        a, b = (ops.transpose(t[..., :3], (0, 2, 1)) for t in (a, b))

        def times(t, w):
            return ops.einsum("nki,kij->nkj", t, w)

        parts = (
            times(a, self.real) - times(b, self.imaginary),
            times(a, self.imaginary) + times(b, self.real),
        )
        room = [[0, 0], [0, 0], [0, length // 2 - 2]]
        parts = tuple(ops.pad(ops.transpose(t, (0, 2, 1)), room) for t in parts)
        return ops.transpose(ops.irfft(parts), (0, 2, 1))


@kind("fourier_operator", "weights on frequencies")
def operator():
    inputs = keras.Input((8, 2))
    x = layers.Dense(3)(inputs)
    x = ops.gelu(Spectral()(x) + layers.Dense(3)(x))
    model = perturbed(keras.Model(inputs, layers.Dense(1)(x)))
    model.compile("sgd", "mse")
    return model, normal(8, 2), normal(8, 1)


@kind("deep_operator", "a branch and a trunk")
def deep_operator():
    curve, places = keras.Input((6,)), keras.Input((4, 1))
    branch = layers.Dense(5)(layers.Dense(6, "tanh")(curve))
    trunk = layers.Dense(5, "tanh")(places)
    found = ops.einsum("nk,npk->np", branch, trunk)
    model = perturbed(keras.Model([curve, places], found))
    model.compile("sgd", keras.losses.LogCosh())
    return model, [normal(6), normal(4, 1)], normal(4)


class Actor(keras.losses.Loss):
    """PPO: clipped odds, entropy and values; y is (action, odds, gain)."""

    def call(self, y_true, y_pred):
        logs = ops.log_softmax(y_pred[:, :3])
        action = ops.one_hot(
            ops.cast(y_true[:, 0], "int32"), 3, dtype=logs.dtype
        )
        ratio = ops.exp(ops.sum(action * logs, -1) - y_true[:, 1])
        gain = y_true[:, 2]
        clipped = ops.clip(ratio, 0.8, 1.2)
        odds = ops.minimum(ratio * gain, clipped * gain)
        entropy = -ops.sum(ops.exp(logs) * logs, -1)
        return -odds - 0.01 * entropy + 0.5 * (y_pred[:, 3] - gain) ** 2


@kind("actor_critic", "PPO's clipped loss")
def actor():
    inputs = keras.Input((4,))
    x = layers.Dense(6, "tanh")(inputs)
    both = layers.Concatenate()([layers.Dense(3)(x), layers.Dense(1)(x)])
    model = perturbed(keras.Model(inputs, both))
    model.compile("sgd", Actor())
    y = np.stack([np.arange(3), [-1.0, -1.2, -0.9], [0.5, -1.0, 2.0]], 1)
    return model, normal(4), y


@kind("duelling_q", "values and advantages of actions")
def duelling():
    inputs = keras.Input((4,))
    x = layers.Dense(6, "relu")(inputs)
    advantage = layers.Dense(3)(x)
    q = layers.Dense(1)(x) + advantage
    q -= ops.mean(advantage, -1, keepdims=True)
    model = perturbed(keras.Model(inputs, q))

    def chosen(y, q):
        action = ops.one_hot(ops.cast(y[:, 0], "int32"), 3, dtype=q.dtype)
        return ops.square(ops.sum(action * q, -1) - y[:, 1])

    model.compile("sgd", chosen)
    return model, normal(4), np.array([[0, 1.0], [2, 0.3], [1, -1.0]])
