"""Kernels: computed from weights, or used in many ways."""

import tensorflow as tf

from tests.hunt.layers.base import Own, turned


class Kernel(Own, k="d d", g="d", a="d 2", c="2 d"):
    """x @ f(weights); `form` says which f."""

    def call(self, x, training=None):
        return x @ tf.cast(super().call(x), x.dtype)

    def forms(self, x, training):
        (k, g, a, c), d = self.read(), x.shape[-1]
        eye = tf.eye(d, dtype=k.dtype)
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
        }


class Vector(Own, k="2d"):
    """A vector of weights, rearranged, times the data."""

    def forms(self, x, training):
        (k,), d = self.read(), x.shape[-1]
        turns = [[(i - j) % d for j in range(d)] for i in range(d)]
        return {
            "reversed": lambda: x * k[::-1][:d],
            "gathered": lambda: x * tf.gather(k, [2 * i for i in range(d)]),
            "split": lambda: x * k[:d] + k[d:],
            "broadcast": lambda: x * tf.broadcast_to(k[:1], [d]),
            "norm": lambda: x * k[:d] / tf.norm(k),
            "chain": lambda: x * tf.tanh(tf.square(k[:d] + 1) - k[d:]),
            "circulant": lambda: x @ tf.gather(k[:d], turns),
        }


class Matrix(Own, k={"bilinear": "d d d", "others": "d d"}):
    """x @ k for (n, d), written in many ways."""

    def forms(self, x, training):
        (k,), e = self.read(), tf.einsum
        return {
            "matmul": lambda: x @ k,
            "einsum": lambda: e("nd,de->ne", x, k),
            "weight_first": lambda: e("de,nd->ne", k, x),
            "samples_last": lambda: tf.transpose(
                e("de,dn->en", k, tf.transpose(x))
            ),
            "matvec": lambda: tf.linalg.matvec(k, x),
            "bilinear": lambda: e("nd,def,nf->ne", x, k, tf.tanh(x)),
            "tensordot": lambda: tf.tensordot(x, k, [[1], [1]]),
            "batched": lambda: tf.matmul(x[:, None], k[None])[:, 0],
            "transpose_b": lambda: tf.matmul(x, k, transpose_b=True),
            "distances": lambda: tf.exp(
                -tf.reduce_sum((x[:, None] - k[None]) ** 2, -1)
            ),
            "outer": lambda: tf.reduce_mean(
                e("nd,ne->nde", x, tf.tanh(x)) * k, 2
            ),
            "doubled": lambda: tf.tanh(x @ k) @ k,
            "ellipsis": lambda: e("...d,de->...e", x, k),
        }


class Positions(
    Own,
    k={
        "over_positions": "t t",
        "each_position": "t d d",
        "flat": "td td",
        "others": "d d",
    },
    b="d",
):
    """A matrix for (n, t, d): time-major, merged axes, over positions."""

    def forms(self, x, training):
        (k, b), (t, d), e = self.read(), x.shape[1:], tf.einsum

        def merged(x, first):
            return tf.reshape(tf.reshape(x, [-1, d]) @ k + b, first)

        return {
            "dense": lambda: x @ k + b,
            "time_major": lambda: turned(tf.tanh(turned(x) @ k + b)),
            "features_major": lambda: tf.transpose(
                e("dnt,de->ent", tf.transpose(x, (2, 0, 1)), k), (1, 2, 0)
            ),
            "samples_positions": lambda: merged(x, [-1, t, d]),
            "positions_samples": lambda: turned(merged(turned(x), [t, -1, d])),
            "over_positions": lambda: e("ntd,ts->nsd", x, k) + b,
            "each_position": lambda: e("ntd,tde->nte", x, k) + b,
            "time_major_einsum": lambda: turned(e("ntd,de->tne", x, k) + b),
            "weight_first": lambda: tf.transpose(
                e("de,ntd->ent", k, x), (1, 2, 0)
            ),
            "unstacked": lambda: tf.stack(
                [part @ k + b for part in tf.unstack(x, axis=1)], 1
            ),
            "flat": lambda: tf.reshape(
                tf.reshape(x, [-1, t * d]) @ k, [-1, t, d]
            ),
        }


class Filters(
    Own,
    k={
        "depthwise": "2 1 d 1",
        "as_image": "2 1 d d",
        "grouped": "2 1 2d",
        "others": "2 d d",
    },
):
    """A convolution over (n, t, d) by ops of TensorFlow."""

    def forms(self, x, training):
        (k,), image = self.read(), x[:, :, None]

        def conv1d(k):
            return tf.nn.conv1d(x, k, 1, "SAME")

        return {
            "conv1d": lambda: conv1d(k),
            "dilated": lambda: tf.nn.convolution(
                x, k, padding="SAME", dilations=2
            ),
            "depthwise": lambda: tf.nn.depthwise_conv2d(
                image, k, [1, 1, 1, 1], "SAME"
            )[:, :, 0],
            "transposed": lambda: tf.nn.conv1d_transpose(
                x, k, tf.shape(x), 1, "SAME"
            ),
            "standardised": lambda: conv1d(
                (k - tf.reduce_mean(k)) / (tf.math.reduce_std(k) + 0.1)
            ),
            "grouped": lambda: tf.nn.convolution(x, k, padding="SAME"),
            "as_image": lambda: tf.nn.conv2d(image, k, 1, "SAME")[:, :, 0],
        }
