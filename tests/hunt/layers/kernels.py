"""Kernels that are computed from weights before they meet the data."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Kernel(Own):
    """x @ f(weights); `form` says which f."""

    FORMS = (
        "weight_norm",
        "low_rank",
        "standardised",
        "sliced",
        "split",
        "concat",
        "transposed",
        "tied",
        "cast",
        "symmetric",
        "cayley",
        "band",
        "gathered",
        "kronecker",
        "softmax",
        "masked",
        "padded",
        "reversed",
        "cumulative",
        "stacked",
        "expm",
        "stopped",
        "scaled",
        "shared_rows",
        "inverse",
        "squared_norm",
        "scattered",
        "complex",
        "conditional",
    )

    def build(self, shape):
        d = shape[-1]
        self.d = d
        self.k, self.g = self.weight(d, d), self.weight(d)
        self.a, self.c = self.weight(d, 2), self.weight(2, d)

    def call(self, x):
        return x @ tf.cast(self.kernel(x), x.dtype)

    def kernel(self, x):
        k, g, a, c = map(tf.convert_to_tensor, (self.k, self.g, self.a, self.c))
        d, eye = self.d, tf.eye(self.d, dtype=k.dtype)
        wide = tf.float32 if k.dtype == tf.bfloat16 else k.dtype
        skew = tf.cast(k - tf.transpose(k), wide)
        one = tf.cast(eye, wide)
        last = list(range(d - 1, -1, -1))
        return {
            "weight_norm": lambda: g * k / tf.norm(k, axis=0),
            "low_rank": lambda: k + a @ c,
            "standardised": lambda: (
                (k - tf.reduce_mean(k, 0)) / (tf.math.reduce_std(k, 0) + 0.1)
            ),
            "sliced": lambda: k[:, :1] * c[0] + k[:, 1:] @ k[1:],
            "split": lambda: tf.matmul(
                *tf.split(tf.concat([a, a], 1), 2, 1), transpose_b=True
            ),
            "concat": lambda: tf.concat([a, k[:, 2:]], 1),
            "transposed": lambda: tf.transpose(k),
            "tied": lambda: k @ tf.transpose(k),
            "cast": lambda: tf.cast(tf.cast(k, tf.float32), k.dtype),
            "symmetric": lambda: k + tf.transpose(k),
            "cayley": lambda: tf.linalg.solve(one + skew, one - skew),
            "band": lambda: tf.linalg.band_part(k, -1, 0),
            "gathered": lambda: tf.gather(k, [0, *last[1:]]),
            "kronecker": lambda: tf.reshape(tf.einsum("a,b->ab", g, g), [d, d]),
            "softmax": lambda: tf.nn.softmax(k, 0),
            "masked": lambda: k * tf.cast(1 - eye, k.dtype),
            "padded": lambda: tf.pad(k[1:], [[1, 0], [0, 0]]),
            "reversed": lambda: tf.reverse(k, [1]),
            "cumulative": lambda: tf.cumsum(k, 1),
            "stacked": lambda: tf.stack(tf.unstack(k, axis=1), 0),
            "expm": lambda: tf.linalg.expm(0.3 * tf.cast(k, wide)),
            "stopped": lambda: k - tf.stop_gradient(a @ c),
            "scaled": lambda: k / tf.sqrt(tf.reduce_sum(k * k)),
            "shared_rows": lambda: tf.gather(k, [0] * d),
            "inverse": lambda: tf.cast(
                tf.linalg.inv(2 * one + 0.3 * tf.cast(k, wide)), k.dtype
            ),
            "squared_norm": lambda: tf.linalg.diag(g) + k * tf.norm(g) ** 2,
            "scattered": lambda: tf.tensor_scatter_nd_add(k, [[0]], [g]),
            "complex": lambda: tf.math.real(
                tf.complex(tf.cast(k, wide), skew) * tf.complex(one, skew)
            ),
            "conditional": lambda: tf.where(k > 0, k, 0.2 * k),
        }[self.form]()


class Vector(Own):
    """A vector of weights, rearranged, times the data."""

    FORMS = (
        "reversed",
        "gathered",
        "split",
        "broadcast",
        "norm",
        "chain",
        "circulant",
    )

    def build(self, shape):
        self.d = shape[-1]
        self.k = self.weight(2 * self.d)

    def call(self, x):
        k, d = tf.convert_to_tensor(self.k), self.d
        turns = [[(i - j) % d for j in range(d)] for i in range(d)]
        return {
            "reversed": lambda: x * k[::-1][:d],
            "gathered": lambda: x * tf.gather(k, [2 * i for i in range(d)]),
            "split": lambda: x * k[:d] + k[d:],
            "broadcast": lambda: x * tf.broadcast_to(k[:1], [d]),
            "norm": lambda: x * k[:d] / tf.norm(k),
            "chain": lambda: x * tf.tanh(tf.square(k[:d] + 1) - k[d:]),
            "circulant": lambda: x @ tf.gather(k[:d], turns),
        }[self.form]()
