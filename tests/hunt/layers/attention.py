"""Attention by hand, tokens and norms, for (n, positions, features)."""

import tensorflow as tf
from keras import ops

from tests.hunt.layers.base import Own


class Attends(Own):
    """Scaled products of positions; `form` says of which."""

    FORMS = (
        "plain",
        "packed",
        "bias",
        "learned_queries",
        "linear",
        "relative",
        "causal",
        "per_head",
    )

    def build(self, shape):
        _, t, d = shape
        self.d = d
        self.q, self.k, self.v = (self.weight(d, d) for _ in range(3))
        self.packed = self.weight(d, 3 * d)
        self.bias, self.seeds = self.weight(t, t), self.weight(2, d)
        near = [[i - j + t - 1 for j in range(t)] for i in range(t)]
        self.near, self.far = near, self.weight(2 * t - 1)

    def call(self, x):
        q, k, v = x @ self.q, x @ self.k, x @ self.v
        if self.form == "packed":
            q, k, v = ops.split(x @ self.packed, 3, -1)
        if self.form == "learned_queries":
            q = ops.broadcast_to(
                ops.expand_dims(self.seeds, 0), (ops.shape(x)[0], 2, self.d)
            )
        if self.form == "linear":
            state = ops.einsum("ntd,nte->nde", ops.softmax(k), v)
            return ops.einsum("ntd,nde->nte", ops.sigmoid(q), state)
        if self.form == "per_head":
            heads = [q[..., :1] * k[..., :1], q[..., 1:] * k[..., 1:]]
            return ops.concatenate(heads, -1) * ops.sigmoid(v)
        scores = ops.einsum("ntd,nsd->nts", q, k) / self.d**0.5
        if self.form == "bias":
            scores += self.bias
        if self.form == "relative":
            scores += ops.take(self.far, self.near)
        if self.form == "causal":
            steps = ops.arange(ops.shape(x)[1])
            scores = ops.where(steps[:, None] >= steps, scores, -1e4)
        return ops.softmax(scores) @ v


class Token(Own):
    """A learned token put beside the positions of every sample."""

    FORMS = ("first", "last", "tile", "sum")

    def build(self, shape):
        self.k = self.weight(1, 1, shape[-1])

    def call(self, x):
        n = tf.shape(x)[0]
        token = tf.broadcast_to(self.k, [n, 1, x.shape[-1]])
        return {
            "first": lambda: tf.concat([token, x], 1),
            "last": lambda: tf.concat([x, token], 1),
            "tile": lambda: tf.concat(
                [tf.tile(tf.convert_to_tensor(self.k), [n, 1, 1]), x], 1
            ),
            "sum": lambda: tf.concat([token + x[:, :1], x], 1),
        }[self.form]()


class Norm(Own):
    """Normalises over features, with a scale of its own."""

    FORMS = ("rms", "layer", "single", "group_free", "one_plus")

    def build(self, shape):
        self.k, self.b = self.weight(shape[-1]), self.weight(shape[-1])

    def call(self, x):
        h = ops.cast(x, "float32") if self.form == "single" else x
        if self.form == "layer":
            h = h - ops.mean(h, -1, keepdims=True)
        h = h * ops.rsqrt(ops.mean(h**2, -1, keepdims=True) + 0.1)
        h = ops.cast(h, x.dtype)
        if self.form == "one_plus":
            return h * (1 + self.k)
        return h * self.k + (self.b if self.form == "layer" else 0)


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
