"""The projections of all training samples, in memory or on disk."""

import concurrent.futures
import functools

import numpy as np
import tensorflow as tf

from keras_pergrad.influence.gradient_store import GradientStore

_THREADS = 2
#: So many numbers are widened and multiplied at once: they stay in the cache
#: of a core, and TensorFlow does not spread them over threads.
_PIECE = 2**17


class InMemory:
    """Rows in memory, (n, size)."""

    def __init__(self, rows):
        self._all, self.samples = rows, len(rows)

    def blocks(self, count=4096):
        """Yield (first row, rows)."""
        for first in range(0, self.samples, count):
            yield first, self._all[first : first + count]

    def times(self, others):
        """Return the products with other rows, (m, n)."""
        return others @ self._all.T.astype("float64")

    def gram(self):
        """Return the sum of the rows' outer products, in float64."""
        return _gram(rows for _, rows in self.blocks())


class OnDisk(GradientStore):
    """Rows of a store, which are never held together."""

    def blocks(self):
        """Yield (first row, rows in float32)."""
        for first, rows, scales in self.blocks_as_stored():
            yield first, rows.astype("float32") * scales[:, None]

    def times(self, others):
        """Return the products with other rows, (m, n), in float32."""
        others = tf.constant(others, tf.float32)
        found = np.empty((len(others), self.samples), "float32")
        times = _times(self.size, self.rows_at_once)

        def multiply(number):
            for first, rows, scales in self.blocks_as_stored(number, _THREADS):
                # A tensor of the same memory: convert_to_tensor would copy.
                tensor = tf.experimental.dlpack.from_dlpack(rows.__dlpack__())
                products = times(others, tensor).numpy()
                place = found[:, first : first + len(rows)]
                np.multiply(products, scales, out=place)

        # While one waits for the disk, another one multiplies.
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(multiply, range(_THREADS)))
        return found

    def gram(self):
        """Return the sum of the rows' outer products, kept in the store."""
        return self.kept("gram.npy", lambda: _gram(r for _, r in self.blocks()))


@functools.cache
def _times(size, most):
    """Return a function of (others, rows) to their products, (m, n).

    Others are (m, size), rows (n, size) in half precision, at most `most`.
    """
    step = max(1, _PIECE // size)

    def times(others, rows):
        products = []
        for first in range(0, most, step):
            # One after the other, or all are widened before the first product.
            with tf.control_dependencies(products[-1:]):
                piece = tf.cast(rows[first : first + step], tf.float32)
            products.append(tf.matmul(others, piece, transpose_b=True))
        return tf.concat(products, 1)

    signature = [
        tf.TensorSpec([None, size], tf.float32),
        tf.TensorSpec([None, size], tf.float16),
    ]
    return tf.function(times, signature, autograph=False)


def _gram(blocks):
    total = 0.0
    for rows in blocks:
        rows = tf.convert_to_tensor(rows)
        product = tf.matmul(rows, rows, transpose_a=True)
        total = total + product.numpy().astype("float64")
    return np.asarray(total)
