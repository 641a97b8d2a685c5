"""JAX: the plain gradient, vmap of grad, and a scan over the samples."""

import jax
import jax.numpy as jnp

from benchmarks.harness.job import CLIP_NORM, LEARNING_RATE, Job
from benchmarks.harness.models import make_batch, make_weights
from benchmarks.harness.rivals import CLIPPED
from benchmarks.peers.jax_models import make_loss


def build(rival, model, task, *, batch):
    data = [jnp.asarray(part) for part in make_batch(model, batch)]
    state = [jnp.asarray(w) for w in make_weights(model)]
    loss = make_loss(model)

    def one(weights, x, y):
        return jax.grad(loss)(weights, x[None], y[None])

    per_sample = jax.vmap(one, (None, 0, 0))
    if task != CLIPPED and rival != "jax_plain":
        gradients = jax.jit(per_sample)
        return Job(
            lambda: jax.block_until_ready(gradients(state, *data)),
            lambda: state,
        )
    mean = {
        "jax_plain": jax.grad(loss),
        "jax_vmap": lambda w, x, y: _clipped(per_sample(w, x, y)),
        "jax_scan": lambda w, x, y: _scan(one, w, x, y),
    }[rival]

    @jax.jit
    def update(weights, x, y):
        gradients = mean(weights, x, y)
        return [w - LEARNING_RATE * g for w, g in zip(weights, gradients)]

    def step():
        state[:] = jax.block_until_ready(update(state, *data))

    return Job(step, lambda: state)


def card():
    """Return the GPU's bytes in use, and their peak so far."""
    memory = jax.devices()[0].memory_stats()
    return memory["bytes_in_use"], memory["peak_bytes_in_use"]


if jax.default_backend() == "cpu":
    card = None


def _factor(norm):
    return CLIP_NORM / jnp.maximum(norm, CLIP_NORM)


def _clipped(gradients):
    """The mean of clipped gradients, from materialised ones."""
    n = len(gradients[0])
    squares = sum((g.reshape(n, -1) ** 2).sum(1) for g in gradients)
    factors = _factor(jnp.sqrt(squares)) / n
    return [jnp.tensordot(factors, g, 1) for g in gradients]


def _scan(one, weights, x, y):
    """The mean of clipped gradients, one sample at a time."""

    def add(total, sample):
        gradients = one(weights, *sample)
        factor = _factor(jnp.sqrt(sum((g**2).sum() for g in gradients)))
        return [t + factor * g for t, g in zip(total, gradients)], None

    zeros = [jnp.zeros_like(w) for w in weights]
    total, _ = jax.lax.scan(add, zeros, (x, y))
    return [t / len(x) for t in total]
