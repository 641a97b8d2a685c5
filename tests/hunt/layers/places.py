"""The samples on every axis, alone or merged with others."""

import tensorflow as tf

from tests.hunt.layers.base import Own, turned


class Lies(Own, k="d d", b="d"):
    """A weight that is used where the samples lie elsewhere; (n, t, d)."""

    def forms(self, x, training):
        (k, b), (t, d), e = self.read(), x.shape[1:], tf.einsum
        there = turned(x)

        def back(h):
            return turned(tf.reshape(h, [t, -1, d]))

        def array():
            kept = tf.TensorArray(x.dtype, t, element_shape=x[:, 0].shape)
            for i in range(t):
                kept = kept.write(i, tf.tanh(x[:, i] @ k))
            return turned(kept.stack() * b)

        def middle():
            # (t, n, d, 1) with three axes in one: samples between the others.
            flat = tf.reshape(there, [-1])
            return back(flat * tf.tile(b, [tf.size(flat) // d])) @ k

        def blocks():
            # Of (2, n, t): all samples twice, each with its positions.
            both = tf.stack([x, tf.sin(x)], 0)
            both = tf.tanh(tf.reshape(both, [-1, d]) @ k)
            return tf.reduce_sum(tf.reshape(both, [2, -1, t, d]), 0)

        def places():
            flat, first = tf.reshape(x, [-1, d]), tf.range(tf.shape(x)[0]) * t
            own = tf.cast(tf.abs(x[..., 0]) * 9, tf.int32) % t
            ids = tf.reshape(first[:, None] + own, [-1])
            sums = tf.math.unsorted_segment_sum(flat @ k, ids, tf.size(ids))
            return tf.reshape(sums, [-1, t, d])

        def behind():
            both = tf.concat([x, tf.cos(x)], 0) @ k + b
            first, second = tf.split(both, 2, 0)
            return first * tf.sigmoid(second)

        return {
            "second": lambda: turned(there @ k + b),
            "third": lambda: tf.transpose(
                tf.transpose(x, (1, 2, 0)) * b[:, None], (2, 0, 1)
            ),
            "merged_first": lambda: tf.reshape(
                tf.tanh(tf.reshape(x, [-1, d]) @ k + b), [-1, t, d]
            ),
            "merged_last": lambda: back(
                tf.tanh(tf.reshape(there, [-1, d]) @ k + b)
            ),
            "merged_middle": middle,
            "merged_features": lambda: (
                tf.reshape(
                    tf.reshape(x, [-1, t * d]) * tf.tile(b, [t]), [-1, t, d]
                )
                @ k
            ),
            "merged_all": lambda: tf.reshape(
                tf.reshape(x, [-1]) * b[0] + b[1], tf.shape(x)
            ),
            "row": lambda: tf.reshape(
                tf.tanh(tf.reshape(x, [1, -1, d]) @ k), [-1, t, d]
            ),
            "column": lambda: back(
                tf.linalg.matvec(k, tf.reshape(there, [-1, 1, d]))
            ),
            "array": array,
            "unstacked": lambda: turned(
                tf.stack([p @ k for p in tf.unstack(x, axis=1)], 0)
            ),
            "split": lambda: tf.concat([p * b for p in tf.split(x, t, 1)], 1),
            "stacked_twice": lambda: tf.reduce_prod(
                tf.stack([x, tf.sin(x)], 0) * b + 1, 0
            ),
            "softmax_there": lambda: turned(tf.nn.softmax(there * b, 0)),
            "turned_twice": lambda: tf.transpose(
                tf.transpose(tf.transpose(x, (2, 0, 1)), (1, 2, 0)) @ k,
                (0, 1, 2),
            ),
            "einsum": lambda: e("tnd,de,ntf->nte", there, k, x),
            "padded": lambda: (
                (tf.pad(x, [[0, 0], [1, 1], [0, 0]]) @ k)[:, 1:-1] + b
            ),
            "tiled": lambda: tf.reduce_sum(
                tf.reshape(tf.tile(x, [2, 1, 1]) @ k, [2, -1, t, d]), 0
            ),
            "one_behind_another": behind,
            "blocks": blocks,
            "own_row": lambda: tf.gather(x @ k, tf.range(tf.shape(x)[0])),
            "own_places": places,
        }


class LiesTogether(Own, k="d"):
    """Samples that meet since they lie elsewhere, also for (n, d)."""

    def call(self, x, training=None):
        return tf.reshape(super().call(x), tf.shape(x)) * self.k

    def forms(self, x, training):
        n, d, e = tf.shape(x)[0], x.shape[-1], tf.einsum
        h = tf.reshape(x, [n, -1])
        width = h.shape[1] or d * (x.shape[1] if x.shape.rank > 2 else 1)
        turned = tf.transpose(h)
        sums = tf.reduce_sum(h, -1)

        def rows(ids):
            return h + 0.5 * tf.gather(h, ids)

        def convolved():
            image = tf.expand_dims(turned, -1)
            kernel = tf.ones([2, 1, 1], x.dtype)
            return tf.transpose(tf.nn.conv1d(image, kernel, 1, "SAME")[..., 0])

        def before():
            flat, first = tf.reshape(h, [-1]), tf.range(n) * width
            own = tf.cast(tf.abs(h) * 9, tf.int32) % (2 * width) - width
            ids = tf.reshape(first[:, None] + own, [-1])
            sums = tf.math.unsorted_segment_sum(flat, ids, n * width)
            return h + tf.reshape(sums, [n, width])

        gram = tf.nn.softmax(h @ turned)
        return {
            # Reshaped where it should be transposed.
            "shuffled": lambda: tf.reshape(turned, [n, width]),
            "halves": lambda: (
                h + tf.reshape(tf.reshape(turned, [-1, 1]), [n, width])
            ),
            "softmax_second": lambda: tf.transpose(tf.nn.softmax(turned)),
            "mean_second": lambda: (
                h - tf.transpose(tf.reduce_mean(turned, -1, True))
            ),
            "cumsum_merged": lambda: tf.reshape(
                tf.cumsum(tf.reshape(h, [-1])), [n, width]
            ),
            "cumsum_turned": lambda: tf.transpose(tf.cumsum(turned, -1)),
            "running_product": lambda: tf.math.cumprod(1 + h / 4, 0),
            "neighbours": lambda: h - tf.pad(h[:-1], [[1, 0], [0, 0]]),
            "shifted_concat": lambda: h * tf.concat([h[1:], h[:1]], 0),
            "doubled_concat": lambda: tf.concat([h[:1], h], 0)[:-1] + h,
            "convolved": convolved,
            "gram": lambda: gram @ h,
            "gram_einsum": lambda: e("nm,md->nd", gram, tf.sin(h)),
            "attention": lambda: e(
                "nm,md->nd", tf.sigmoid(e("nd,md->nm", h, h)), h
            ),
            "unstacked": lambda: (
                h * tf.reshape(tf.split(h, [1, n - 1], 0, num=2)[0], [1, -1])
            ),
            "sorted_rows": lambda: rows(tf.argsort(sums)),
            "unknown_rows": lambda: rows(
                tf.math.floormod(tf.cast(9 * tf.abs(sums), tf.int32), n)
            ),
            "nearest": lambda: rows(
                tf.argmax(gram - tf.eye(n, dtype=x.dtype), 1)
            ),
            "last_row": lambda: h - h[-1:],
            "first_row": lambda: h * (1 + h[:1]),
            "delayed": lambda: h + tf.concat([tf.zeros_like(h[:1]), h[:-1]], 0),
            "rows_backwards": lambda: rows(tf.range(n - 1, -1, -1)),
            # For many samples each row is its own.
            "rows_of_few": lambda: rows(
                tf.where(n > 9, tf.range(n), n - 1 - tf.range(n))
            ),
            "places_before": before,
            "first_of_all": lambda: rows(tf.zeros([n], tf.int32)),
            "flat_product": lambda: (
                h * tf.reshape(tf.reduce_prod(1 + h / 4, 0), [1, -1])
            ),
        }
