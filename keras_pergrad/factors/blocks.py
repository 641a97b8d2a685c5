"""The factor of kernels made of blocks, each for a part of the input."""

import tensorflow as tf

from keras_pergrad.factors.chunks import squares_by_chunks
from keras_pergrad.factors.full import Permuted
from keras_pergrad.factors.outer import Outer
from keras_pergrad.factors.written_out import expand, in_type, sizes_of


class Blocks(Permuted):
    """Contributions Σ_t x_bt ⊗ dz_bt of each block b.

    n samples, B blocks, T positions, i inputs, o outputs.

    Args:
        x: (n, B, T, i).
        dz: (n, B, T, o).
        shape: the variable's shape, of B·i·o elements; default: (B, i, o).
        perm: how the axes must be transposed to give `shape`; applied to
            the gradient reshaped to `unpermuted`.
        unpermuted: the shape before `perm`.

    Example:

    >>> import tensorflow as tf
    >>> from keras_pergrad import factors
    >>> heads = factors.Blocks(tf.ones((2, 4, 5, 3)), tf.ones((2, 4, 5, 6)))
    >>> heads.materialize().shape.as_list()  # n, blocks, inputs, outputs
    [2, 4, 3, 6]
    """

    sampled = ("x", "dz")

    def __init__(self, x, dz, shape=None, *, perm=None, unpermuted=None):
        self.x, self.dz = x, dz
        self._blocks = [x.shape[1], x.shape[-1], dz.shape[-1]]
        self.shape = shape or self._blocks
        self.perm, self.unpermuted = perm, unpermuted

    def _blocks_as_samples(self):
        """Return the factor with each block as a sample of its own."""
        x, dz = (
            tf.reshape(t, [-1, *sizes_of(t)[2:]]) for t in (self.x, self.dz)
        )
        return Outer(x, dz)

    def chosen_method(self):
        """How the norms are computed, as in `Outer`."""
        return self._blocks_as_samples().chosen_method()

    def sum_method(self):
        return "matmul"

    def norm_bytes(self, n):
        block_bytes = self._blocks_as_samples().norm_bytes(n)
        return None if block_bytes is None else block_bytes * self.x.shape[1]

    def squared_norms(self):
        norms = self._blocks_as_samples().squared_norms()
        return tf.reduce_sum(tf.reshape(norms, [-1, self.x.shape[1]]), 1)

    def weighted_sum(self, weights):
        x = self.x if weights is None else self.x * expand(weights, self.x)
        x, dz = (
            tf.reshape(
                tf.transpose(t, [1, 0, 2, 3]),
                [t.shape[1], -1, t.shape[3]],
            )
            for t in (x, self.dz)
        )
        return self._restore_shape(_products(x, dz))

    def materialize(self):
        blocks = _products(self.x, self.dz)
        return self._restore_shape(blocks, [tf.shape(blocks)[0]])

    def dot(self, direction):
        direction = in_type(direction, self.x.dtype)
        blocks = self._as_matrix(direction, self._blocks)
        products = tf.einsum("nbti,bio->nbto", self.x, blocks)
        return tf.reduce_sum(products * self.dz, [1, 2, 3])

    def sum_of_squares(self):
        if self.x.shape[2] == 1:
            x, dz = (tf.square(t[:, :, 0]) for t in (self.x, self.dz))
            total = tf.einsum("nbi,nbo->bio", x, dz)
        else:
            sides = self.x, self.dz
            total = squares_by_chunks(_products, sides, self._blocks)
        return self._restore_shape(total)


def _products(x, dz):
    return tf.matmul(x, dz, transpose_a=True)
