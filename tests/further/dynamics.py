"""Nets with inner loops, conditions and derivatives."""

import keras
import tensorflow as tf

from tests.further import tasks
from tests.further.kinds import Own, kind, layers, mlp, ops


class OwnLoss(keras.Model):
    """A model of one net, whose loss a function gives."""

    def __init__(self, net, loss):
        super().__init__()
        self.net, self.own_loss = net, loss

    def call(self, x):
        return self.net(x)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return self.own_loss(self.net, x, y, y_pred)


def own_loss(net, loss, inputs):
    """What a builder returns for such a model."""
    model = OwnLoss(net, loss)
    model(inputs)
    return model, None


def _heat(net, x, y, y_pred):
    """Solves the heat equation: slopes of slopes by inner tapes."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            u = net(x)
        first = inner.gradient(u, x)
        along = first[:, :1]
    second = outer.gradient(along, x)[:, :1]
    residual = first[:, 1:] - 0.1 * second
    return ops.mean(residual**2) + ops.mean((y_pred - y) ** 2)


@kind((2,), y=(1,))
def physics_informed(inputs):
    """Second derivatives by inner tapes."""
    return own_loss(mlp(2, 6, 5, 1), _heat, inputs)


def _moved(x, energy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        height = energy(x)
    place, impulse = ops.split(tape.gradient(height, x), 2, -1)
    return ops.concatenate([impulse, -place], -1)


@kind((4,), y=(4,))
def hamiltonian(inputs):
    """Gradients of a learned energy."""
    return Own(_moved, mlp(4, 6, 1, activation="softplus"))(inputs), "mse"


def _runge_kutta(x, field, h=0.2):
    a = field(x)
    b = field(x + 0.5 * h * a)
    c = field(x + 0.5 * h * b)
    d = field(x + h * c)
    return x + h / 6 * (a + 2 * b + 2 * c + d)


def _written_out(x, field):
    for _ in range(3):
        x = _runge_kutta(x, field)
    return x


def _while(x, field):
    return ops.while_loop(
        lambda k, _: k < 3, lambda k, v: (k + 1, _runge_kutta(v, field)), (0, x)
    )[1]


def _counted(x, field):
    return ops.fori_loop(0, 3, lambda _, v: _runge_kutta(v, field), x)


for _name, _about, _steps in (
    ("neural_ode", ", written out", _written_out),
    ("neural_ode_loop", " in a while loop", _while),
    ("neural_ode_counted", " in a counted loop", _counted),
):

    @kind((4,), name=_name, about=f"steps of an equation{_about}")
    def ode(inputs, steps=_steps):
        return Own(steps, mlp(4, 6, 4))(inputs)


class Diffuses(keras.Model):
    """A stochastic equation: a draw in each step."""

    def __init__(self):
        super().__init__()
        self.drift, self.spread = mlp(3, 6, 3), mlp(3, 6, 3)
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x):
        for _ in range(3):
            noise = keras.random.normal(ops.shape(x), seed=self.seeds)
            x += 0.2 * self.drift(x) + 0.3 * ops.sigmoid(self.spread(x)) * noise
        return x


@kind((3,), y=(3,), draws=True)
def neural_sde(inputs):
    """A stochastic equation."""
    model = Diffuses()
    model(inputs)
    return model, "mse"


def _fixed_point(x, net):
    z = ops.zeros_like(x)
    for _ in range(4):
        z = ops.stop_gradient(ops.tanh(0.3 * net(z) + x))
    return ops.tanh(0.3 * net(z) + x)


@kind((4,))
def equilibrium(inputs):
    """A fixed point without slopes."""
    return Own(_fixed_point, mlp(4, 6, 4))(inputs)


@kind((4,))
def adaptive_time(x):
    """Each sample takes as many steps as it needs."""
    net, halt = mlp(4, 6, 4), layers.Dense(1, "sigmoid")
    left, found = ops.ones_like(x[:, :1]), ops.zeros_like(x)
    for _ in range(3):
        x = x + net(x)
        odds = ops.minimum(halt(x), left)
        found += odds * x
        left = ops.where(left - odds > 0.01, left - odds, 0.0)
    return found + left * x


def _fitted(x, y, new, w):
    """Fits a small linear map to each sample's examples, by slopes (MAML)."""
    w = w + ops.zeros_like(x[:, :1, :1])
    for _ in range(2):
        gap = ops.matmul(x, w) - y
        w = w - 0.1 * ops.matmul(ops.transpose(x, (0, 2, 1)), gap)
    return ops.matmul(new, w)


@kind((5, 3), (5, 1), (2, 3), y=(2, 1))
def few_shot(x, y, new):
    """A fit to each sample's own examples."""
    encode = layers.Dense(3, "tanh")
    return Own(_fitted, (3, 1))([encode(x), y, encode(new)]), "mse"


@kind((3, 2, 4), (4,))
def prototypes(support, query):
    """Classes given by each sample's own examples."""
    encode = layers.Dense(3, "relu")
    means = ops.mean(encode(support), 2)
    far = ops.sum((encode(query)[:, None] - means) ** 2, -1)
    return -far, tasks.CROSSENTROPY()


def _filtered(x, real, imaginary):
    """A Fourier operator: weights on a few frequencies."""
    length = x.shape[1]
    a, b = ops.rfft(ops.transpose(x, (0, 2, 1)))
    a, b = (ops.transpose(t[..., :3], (0, 2, 1)) for t in (a, b))

    def times(t, w):
        return ops.einsum("nki,kij->nkj", t, w)

    parts = (
        times(a, real) - times(b, imaginary),
        times(a, imaginary) + times(b, real),
    )
    room = [[0, 0], [0, 0], [0, length // 2 - 2]]
    parts = tuple(ops.pad(ops.transpose(t, (0, 2, 1)), room) for t in parts)
    return ops.transpose(ops.irfft(parts), (0, 2, 1))


@kind((8, 2), y=(8, 1))
def fourier_operator(inputs):
    """Weights on frequencies."""
    x = layers.Dense(3)(inputs)
    x = ops.gelu(Own(_filtered, (3, 3, 3), (3, 3, 3))(x) + layers.Dense(3)(x))
    return layers.Dense(1)(x), "mse"


@kind((6,), (4, 1), y=(4,))
def deep_operator(curve, places):
    """A branch and a trunk."""
    branch, trunk = mlp(6, 6, 5)(curve), layers.Dense(5, "tanh")(places)
    return ops.einsum("nk,npk->np", branch, trunk), keras.losses.LogCosh()


def _of_action(y, values):
    """The values of the actions that were taken."""
    action = ops.one_hot(ops.cast(y[:, 0], "int32"), 3, dtype=values.dtype)
    return ops.sum(action * values, -1)


class Actor(keras.losses.Loss):
    """PPO: clipped odds, entropy and values; y is (action, odds, gain)."""

    def call(self, y_true, y_pred):
        logs = ops.log_softmax(y_pred[:, :3])
        ratio = ops.exp(_of_action(y_true, logs) - y_true[:, 1])
        gain = y_true[:, 2]
        odds = ops.minimum(ratio * gain, ops.clip(ratio, 0.8, 1.2) * gain)
        entropy = -ops.sum(ops.exp(logs) * logs, -1)
        return -odds - 0.01 * entropy + 0.5 * (y_pred[:, 3] - gain) ** 2


@kind((4,), y=tasks.given([[0, -1.0, 0.5], [1, -1.2, -1.0], [2, -0.9, 2.0]]))
def actor_critic(inputs):
    """PPO's clipped loss."""
    x = layers.Dense(6, "tanh")(inputs)
    both = layers.Concatenate()([layers.Dense(3)(x), layers.Dense(1)(x)])
    return both, Actor()


def _taken(y, q):
    return ops.square(_of_action(y, q) - y[:, 1])


@kind((4,), y=tasks.given([[0, 1.0], [2, 0.3], [1, -1.0]]))
def duelling_q(inputs):
    """Values and advantages of actions."""
    x = layers.Dense(6, "relu")(inputs)
    advantage = layers.Dense(3)(x)
    q = layers.Dense(1)(x) + advantage
    return q - ops.mean(advantage, -1, keepdims=True), _taken
