"""Products of a matrix with the data, the samples on any axis."""

import tensorflow as tf

from tests.hunt.layers.base import Own


class Matrix(Own):
    """x @ k for (n, d), written in many ways."""

    FORMS = (
        "matmul",
        "einsum",
        "weight_first",
        "samples_last",
        "matvec",
        "bilinear",
        "tensordot",
        "batched",
        "transpose_b",
        "distances",
        "outer",
        "doubled",
        "ellipsis",
    )

    def build(self, shape):
        d = shape[-1]
        self.k = self.weight(d, d, d) if "bil" in self.form else None
        self.k = self.weight(d, d) if self.k is None else self.k

    def call(self, x):
        k, e = tf.convert_to_tensor(self.k), tf.einsum
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
        }[self.form]()


class Positions(Own):
    """A matrix for (n, t, d): time-major, merged axes, over positions."""

    FORMS = (
        "dense",
        "time_major",
        "features_major",
        "samples_positions",
        "positions_samples",
        "over_positions",
        "each_position",
        "time_major_einsum",
        "weight_first",
        "unstacked",
        "flat",
    )

    def build(self, shape):
        _, t, d = shape
        own = {
            "over_positions": (t, t),
            "each_position": (t, d, d),
            "flat": (t * d, t * d),
        }
        self.sizes = t, d
        self.k = self.weight(*own.get(self.form, (d, d)))
        self.b = self.weight(d)

    def call(self, x):
        (t, d), b = self.sizes, tf.convert_to_tensor(self.b)
        k, e, turned = tf.convert_to_tensor(self.k), tf.einsum, (1, 0, 2)

        def merged(x, first):
            return tf.reshape(tf.reshape(x, [-1, d]) @ k + b, first)

        return {
            "dense": lambda: x @ k + b,
            "time_major": lambda: tf.transpose(
                tf.tanh(tf.transpose(x, turned) @ k + b), turned
            ),
            "features_major": lambda: tf.transpose(
                e("dnt,de->ent", tf.transpose(x, (2, 0, 1)), k), (1, 2, 0)
            ),
            "samples_positions": lambda: merged(x, [-1, t, d]),
            "positions_samples": lambda: tf.transpose(
                merged(tf.transpose(x, turned), [t, -1, d]), turned
            ),
            "over_positions": lambda: e("ntd,ts->nsd", x, k) + b,
            "each_position": lambda: e("ntd,tde->nte", x, k) + b,
            "time_major_einsum": lambda: tf.transpose(
                e("ntd,de->tne", x, k) + b, turned
            ),
            "weight_first": lambda: tf.transpose(
                e("de,ntd->ent", k, x), (1, 2, 0)
            ),
            "unstacked": lambda: tf.stack(
                [part @ k + b for part in tf.unstack(x, axis=1)], 1
            ),
            "flat": lambda: tf.reshape(
                tf.reshape(x, [-1, t * d]) @ k, [-1, t, d]
            ),
        }[self.form]()


class Filters(Own):
    """A convolution over (n, t, d) by ops of TensorFlow."""

    FORMS = (
        "conv1d",
        "dilated",
        "depthwise",
        "transposed",
        "standardised",
        "grouped",
        "as_image",
    )

    def build(self, shape):
        d = shape[-1]
        own = {"depthwise": (2, 1, d, 1), "as_image": (2, 1, d, d)}
        if self.form == "grouped":
            own["grouped"] = (2, 1, 2 * d)
        self.d = d
        self.k = self.weight(*own.get(self.form, (2, d, d)))

    def call(self, x):
        k = tf.convert_to_tensor(self.k)
        image = x[:, :, None]
        return {
            "conv1d": lambda: tf.nn.conv1d(x, k, 1, "SAME"),
            "dilated": lambda: tf.nn.convolution(
                x, k, padding="SAME", dilations=2
            ),
            "depthwise": lambda: tf.nn.depthwise_conv2d(
                image, k, [1, 1, 1, 1], "SAME"
            )[:, :, 0],
            "transposed": lambda: tf.nn.conv1d_transpose(
                x, k, tf.shape(x), 1, "SAME"
            ),
            "standardised": lambda: tf.nn.conv1d(
                x,
                (k - tf.reduce_mean(k)) / (tf.math.reduce_std(k) + 0.1),
                1,
                "SAME",
            ),
            "grouped": lambda: tf.nn.convolution(x, k, padding="SAME"),
            "as_image": lambda: tf.nn.conv2d(image, k, 1, "SAME")[:, :, 0],
        }[self.form]()
