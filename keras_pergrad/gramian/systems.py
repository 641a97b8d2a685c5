"""Linear systems of the same matrix, each in some of its variables."""

import tensorflow as tf

from keras_pergrad.keras_internals.xla import in_xla

#: Parts of the matrix are held where they have no more numbers, of 8 bytes.
MOST_HELD = 2**22
#: Where the squared residual of conjugate gradients is no rounding any more.
RESIDUAL = 1e-26


def solve(matrix, right, free):
    """Return x of M x = b in the free variables of each row, else zero.

    Args:
        matrix: (m, m), positive definite, with ones on the diagonal.
        right: (r, m), a right-hand side b in each row, with numbers of about 1.
        free: (r, m) booleans.
    """
    right = tf.where(free, right, tf.zeros_like(right))
    if in_xla():  # It is slow at roots of matrices.
        return _by_steps(matrix, right, free)
    counts = tf.math.count_nonzero(free, 1, dtype=tf.int32)
    most = tf.maximum(tf.reduce_max(counts), 1)
    held = tf.cast(tf.size(counts), tf.int64) * tf.cast(most, tf.int64) ** 2
    return tf.cond(
        held <= MOST_HELD,
        lambda: _by_roots(matrix, right, free, counts, most),
        lambda: _by_steps(matrix, right, free),
    )


def _by_roots(matrix, right, free, counts, most):
    """Return the solutions from Cholesky's roots of the parts in use."""
    rows, m = tf.unstack(tf.shape(right))
    # The free ones come first; behind them a part is the identity.
    _, places = tf.math.top_k(tf.cast(free, tf.int32), most)
    there = tf.range(most) < counts[:, None]
    outside = tf.where(there, places, m)
    bordered = tf.reshape(tf.pad(matrix, [[0, 1], [0, 1]]), [-1])
    pairs = outside[:, :, None] * (m + 1) + outside[:, None, :]
    parts = tf.gather(bordered, pairs)
    parts = tf.linalg.set_diag(parts, tf.ones_like(parts[:, 0]))
    root = tf.linalg.cholesky(parts)
    right = tf.gather(right, places, batch_dims=1)
    solved = tf.linalg.cholesky_solve(root, right[:, :, None])
    flat = tf.reshape(tf.range(rows)[:, None] * m + places, [-1, 1])
    x = tf.scatter_nd(flat, tf.reshape(solved, [-1]), [rows * m])
    return tf.reshape(x, [rows, m])


def _by_steps(matrix, right, free):
    """Return the solutions by conjugate gradients, of all rows at a time."""
    limit = 100 + 10 * tf.shape(right)[1]

    def squares(residual):
        return tf.reduce_sum(tf.square(residual), 1, keepdims=True)

    def go_on(k, x, residual, direction, size):
        return (k < limit) & (tf.reduce_max(size) > RESIDUAL)

    def step(k, x, residual, direction, size):
        image = tf.matmul(direction, matrix)
        image = tf.where(free, image, tf.zeros_like(image))
        along = tf.reduce_sum(direction * image, 1, keepdims=True)
        length = tf.math.divide_no_nan(size, along)
        x += length * direction
        residual -= length * image
        new = squares(residual)
        direction = residual + tf.math.divide_no_nan(new, size) * direction
        return k + 1, x, residual, direction, new

    state = 0, tf.zeros_like(right), right, right, squares(right)
    return tf.while_loop(go_on, step, state, parallel_iterations=1)[1]
