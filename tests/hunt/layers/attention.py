"""Attention by hand, tokens and norms; layers with several outputs."""

import keras
import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Attends(
    Own,
    q="d d",
    k="d d",
    v="d d",
    packed="d 3d",
    bias="t t",
    seeds="2 d",
    far="2t",
):
    """Scaled products of positions; `form` says of which."""

    def forms(self, x, training):
        t, d = x.shape[1:]
        q, k, v = x @ self.q, x @ self.k, x @ self.v
        positions = ops.arange(t)
        near = [[i - j + t - 1 for j in range(t)] for i in range(t)]

        def attend(q=q, k=k, v=v, added=0.0):
            scores = ops.einsum("ntd,nsd->nts", q, k) / d**0.5 + added
            return ops.softmax(scores) @ v

        def learned():
            seeds = ops.expand_dims(self.seeds, 0)
            return ops.broadcast_to(seeds, (ops.shape(x)[0], 2, d))

        def linear():
            state = ops.einsum("ntd,nte->nde", ops.softmax(k), v)
            return ops.einsum("ntd,nde->nte", ops.sigmoid(q), state)

        def causal():
            scores = ops.einsum("ntd,nsd->nts", q, k) / d**0.5
            later = positions[:, None] >= positions
            return ops.softmax(ops.where(later, scores, -1e4)) @ v

        def per_head():
            heads = [q[..., :1] * k[..., :1], q[..., 1:] * k[..., 1:]]
            return ops.concatenate(heads, -1) * ops.sigmoid(v)

        return {
            "plain": attend,
            "packed": lambda: attend(*ops.split(x @ self.packed, 3, -1)),
            "bias": lambda: attend(added=self.bias),
            "learned_queries": lambda: attend(learned()),
            "linear": linear,
            "relative": lambda: attend(added=ops.take(self.far, near)),
            "causal": causal,
            "per_head": per_head,
        }


class Token(Own, k="1 1 d"):
    """A learned token put beside the positions of every sample."""

    def forms(self, x, training):
        (k,), n = self.read(), tf.shape(x)[0]
        token = tf.broadcast_to(self.k, [n, 1, x.shape[-1]])
        return {
            "first": lambda: tf.concat([token, x], 1),
            "last": lambda: tf.concat([x, token], 1),
            "tile": lambda: tf.concat([tf.tile(k, [n, 1, 1]), x], 1),
            "sum": lambda: tf.concat([token + x[:, :1], x], 1),
        }


class Norm(Own, k="d", b="d"):
    """Normalises over features, with a scale of its own."""

    def forms(self, x, training):
        def normed(h):
            h = h * ops.rsqrt(ops.mean(h**2, -1, keepdims=True) + 0.1)
            return ops.cast(h, x.dtype)

        return {
            "rms": lambda: normed(x) * self.k,
            "layer": lambda: (
                normed(x - ops.mean(x, -1, keepdims=True)) * self.k + self.b
            ),
            "single": lambda: normed(ops.cast(x, "float32")) * self.k,
            "one_plus": lambda: normed(x) * (1 + self.k),
        }


class Tied(Own):
    """Embeds ids and compares the result with the same table."""

    def __init__(self, rows, width):
        super().__init__()
        self.sizes = rows, width

    def build(self, shape):
        self.table = self.weight(*self.sizes)
        self.k = self.weight(self.sizes[1], self.sizes[1])

    def call(self, ids):
        h = ops.tanh(ops.matmul(ops.take(self.table, ids, 0), self.k))
        return ops.matmul(h, ops.transpose(self.table))


class Two(Own, k="d d", b=""):
    """(h, f(h)), (h, h) and kin: outputs that depend on each other."""

    def forms(self, x, training):
        h = ops.matmul(x, self.k) + self.b
        return {
            "squared": lambda: (h, ops.sum(h**2, -1, keepdims=True)),
            "same": lambda: (h, h),
            "sigmoid": lambda: (h, ops.sigmoid(h)),
            "sum": lambda: (ops.tanh(h), ops.tanh(h) * self.b),
            "variational": lambda: (h, ops.exp(0.5 * h), h * self.b),
            "dictionary": lambda: {"a": h, "b": ops.softmax(h)},
            "split": lambda: tuple(ops.split(h, [1], -1)),
        }


class Join(keras.layers.Layer):
    """Side by side whatever a layer gave."""

    def call(self, parts):
        parts = list(parts.values()) if isinstance(parts, dict) else parts
        return ops.concatenate(list(parts), -1)
