"""The benchmark models as functions of weights in Keras's layouts."""

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.harness.models import SPECS


def make_loss(name):
    """loss(weights, x, y): the mean over the batch."""
    body = _BODIES[name]
    binary = SPECS[name].outputs == 1

    def loss(weights, x, y):
        logits = body(iter(weights), x)
        if binary:
            logits = jnp.concatenate([jnp.zeros_like(logits), logits], -1)
        chosen = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    return loss


def _dense(weights, x):
    return x @ next(weights) + next(weights)


def _ffnn(weights, x):
    return _dense(weights, jax.nn.relu(_dense(weights, x)))


def _conv(weights, x, stride=1, padding="SAME"):
    kernel = next(weights)
    found = lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return found + next(weights)


def _max_pool(x):
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, (1,) * 4, "VALID")


def _mean_pool(x):
    n, height, width, channels = x.shape
    split = (n, height // 2, 2, width // 2, 2, channels)
    return x.reshape(split).mean((2, 4))


def _mnist(weights, x):
    x = _max_pool(jax.nn.relu(_conv(weights, x, 2)))
    x = _max_pool(jax.nn.relu(_conv(weights, x, 2, "VALID")))
    x = x.reshape(len(x), -1)
    return _dense(weights, jax.nn.relu(_dense(weights, x)))


def _cifar10(weights, x):
    for _ in range(3):
        for _ in range(2):
            x = jax.nn.relu(_conv(weights, x))
        x = _mean_pool(x)
    x = jax.nn.relu(_conv(weights, x))
    return _conv(weights, x).mean((1, 2))


def _embed(weights, x):
    return _dense(weights, next(weights)[x].mean(1))


def _lstm(weights, x):
    table, kernel, recurrent, bias = (next(weights) for _ in range(4))
    projected = table[x] @ kernel + bias
    start = jnp.zeros((len(x), recurrent.shape[0]))

    def advance(state, z):
        h, c = state
        i, f, g, o = jnp.split(z + h @ recurrent, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    steps = projected.swapaxes(0, 1)
    _, outputs = lax.scan(advance, (start, start), steps)
    return _dense(weights, outputs.mean(0))


def _norm(weights, x):
    gamma, beta = next(weights), next(weights)
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-3) * gamma + beta


def _attention(weights, x):
    q, k, v = (
        jnp.einsum("nti,iho->ntho", x, next(weights)) + next(weights)
        for _ in range(3)
    )
    scores = jnp.einsum("ntho,nsho->nhts", q, k) / q.shape[-1] ** 0.5
    mixed = jnp.einsum("nhts,nsho->ntho", jax.nn.softmax(scores), v)
    output, bias = next(weights), next(weights)
    return jnp.einsum("ntho,hoi->nti", mixed, output) + bias


def _transformer(weights, x):
    x = next(weights)[x]
    for _ in range(2):
        x = _norm(weights, x + _attention(weights, x))
        x = _norm(weights, x + _ffnn(weights, x))
    return _dense(weights, x.mean(1))


_BODIES = {
    "logreg": _dense,
    "ffnn": _ffnn,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "embed": _embed,
    "lstm": _lstm,
    "transformer": _transformer,
}
