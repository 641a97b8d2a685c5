"""The projections of all training samples, in memory or on disk."""

import concurrent.futures

import numpy as np
import tensorflow as tf

from keras_pergrad.influence.gradient_store import GradientStore

_THREADS = 2


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
        columns = tf.constant(others.T, tf.float32)
        found = np.empty((len(others), self.samples), "float32")

        def multiply(number):
            for first, rows, scales in self.blocks_as_stored(number, _THREADS):
                products = _times(tf.convert_to_tensor(rows), columns).numpy()
                stop = first + len(products)
                found[:, first:stop] = (products * scales[:, None]).T

        # While one waits for the disk, another one multiplies.
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(multiply, range(_THREADS)))
        return found

    def gram(self):
        """Return the sum of the rows' outer products, kept in the store."""
        return self.kept("gram.npy", lambda: _gram(r for _, r in self.blocks()))


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None], tf.float16),
        tf.TensorSpec([None, None], tf.float32),
    ],
    autograph=False,
)
def _times(rows, columns):
    return tf.matmul(tf.cast(rows, tf.float32), columns)


def _gram(blocks):
    total = 0.0
    for rows in blocks:
        rows = tf.convert_to_tensor(rows)
        product = tf.matmul(rows, rows, transpose_a=True)
        total = total + product.numpy().astype("float64")
    return np.asarray(total)
