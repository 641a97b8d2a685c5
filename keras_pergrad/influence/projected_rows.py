"""The projections of all training samples, in memory or on disk."""

import concurrent.futures
import functools

import numpy as np
import tensorflow as tf

from keras_pergrad.common.machine import write_atomically
from keras_pergrad.influence.gradient_store import GradientStore

#: So many numbers are cast to float32 and multiplied at once: they fit in the
#: cache of a core, and TensorFlow does not spread them over threads.
_PIECE_SIZE = 2**17
_THREADS = 2


class RowsInMemory:
    """Rows in memory, (n, size)."""

    def __init__(self, rows):
        self._rows, self.samples = rows, len(rows)

    def blocks(self, count=4096):
        """Yield the rows, so many at a time."""
        for first in range(0, self.samples, count):
            yield self._rows[first : first + count]

    def times(self, others):
        """Return the products with other rows, (m, n)."""
        return others @ self._rows.T.astype("float64")

    def gram(self):
        """Return the sum of the rows' outer products, in float64."""
        return _gram(self.blocks())


class RowsOnDisk(GradientStore):
    """Rows of a store, which are never held together."""

    def blocks(self):
        """Yield the rows in float32, some at a time."""
        for _, rows, scales in self.stored_blocks():
            yield rows.astype("float32") * scales[:, None]

    def times(self, others):
        """Return the products with other rows, (m, n), in float32."""
        others = tf.constant(others, tf.float32)
        product = _product_function(self.size, self.rows_per_block)

        def multiply(block):
            _, rows, scales = block
            # A tensor of the same memory: convert_to_tensor would copy.
            tensor = tf.experimental.dlpack.from_dlpack(rows.__dlpack__())
            return product(others, tensor).numpy() * scales

        # While one thread waits for the disk, another one multiplies.
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            return np.concatenate(
                list(pool.map(multiply, self.stored_blocks())), 1
            )

    def gram(self):
        """Return the sum of the rows' outer products, kept in the store."""
        path = self.path / "gram.npy"
        if not path.exists():
            gram = _gram(self.blocks())
            write_atomically(path, lambda file: np.save(file, gram))
        return np.load(path)


@functools.cache
def _product_function(size, max_rows):
    """Return a function that multiplies (others, rows) to (m, n).

    Others are (m, size), rows (n, size) in half precision, at most `max_rows`.
    """
    step = max(1, _PIECE_SIZE // size)

    def multiply(others, rows):
        products = []
        for first in range(0, max_rows, step):
            # In turn: else TensorFlow casts all pieces before the first
            # product, and they leave the cache.
            with tf.control_dependencies(products[-1:]):
                piece = tf.cast(rows[first : first + step], tf.float32)
            products.append(tf.matmul(others, piece, transpose_b=True))
        return tf.concat(products, 1)

    signature = [
        tf.TensorSpec([None, size], tf.float32),
        tf.TensorSpec([None, size], tf.float16),
    ]
    return tf.function(multiply, signature, autograph=False)


def _gram(blocks):
    total = 0.0
    for rows in blocks:
        rows = tf.convert_to_tensor(rows)
        product = tf.matmul(rows, rows, transpose_a=True)
        total = total + product.numpy().astype("float64")
    return np.asarray(total)
