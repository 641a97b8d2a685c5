"""Linear systems of the same matrix, each in some of its variables."""

import tensorflow as tf

from keras_pergrad.keras_internals.tensorflow.settings import in_xla

#: Parts of the matrix are held where they have no more numbers, of 8 bytes.
MAX_PART_NUMBERS = 2**22
#: Where the squared residual of conjugate gradients is no rounding any more.
RESIDUAL = 1e-26


def solve(matrix, right_side, free):
    """Return x of M x = b in the free variables of each row, else zero.

    Args:
        matrix: (m, m), positive definite, with ones on the diagonal.
        right_side: (r, m), a right-hand side b in each row, with numbers of
            about 1.
        free: (r, m) booleans.
    """
    right_side = tf.where(free, right_side, tf.zeros_like(right_side))
    if in_xla():  # Its Cholesky decomposition is slow.
        return _solve_by_conjugate_gradients(matrix, right_side, free)
    counts = tf.math.count_nonzero(free, 1, dtype=tf.int32)
    most_free = tf.maximum(tf.reduce_max(counts), 1)
    part_numbers = (
        tf.cast(tf.size(counts), tf.int64) * tf.cast(most_free, tf.int64) ** 2
    )
    return tf.cond(
        part_numbers <= MAX_PART_NUMBERS,
        lambda: _solve_by_cholesky(
            matrix, right_side, free, counts=counts, most_free=most_free
        ),
        lambda: _solve_by_conjugate_gradients(matrix, right_side, free),
    )


def _solve_by_cholesky(matrix, right_side, free, *, counts, most_free):
    """Return the solutions from Cholesky's roots of the parts in use."""
    rows, m = tf.unstack(tf.shape(right_side))
    # The free ones come first; behind them a part is the identity.
    _, free_indices = tf.math.top_k(tf.cast(free, tf.int32), most_free)
    is_used = tf.range(most_free) < counts[:, None]
    # Rows with fewer free variables point at the zeros of a border.
    bordered_indices = tf.where(is_used, free_indices, m)
    bordered = tf.reshape(tf.pad(matrix, [[0, 1], [0, 1]]), [-1])
    pairs = (
        bordered_indices[:, :, None] * (m + 1) + bordered_indices[:, None, :]
    )
    parts = tf.gather(bordered, pairs)
    # Of the matrix the diagonal is 1 already; of the border it becomes so.
    parts = tf.linalg.set_diag(parts, tf.ones_like(parts[:, 0]))
    root = tf.linalg.cholesky(parts)
    right_side = tf.gather(right_side, free_indices, batch_dims=1)
    solutions = tf.linalg.cholesky_solve(root, right_side[:, :, None])
    flat = tf.reshape(tf.range(rows)[:, None] * m + free_indices, [-1, 1])
    x = tf.scatter_nd(flat, tf.reshape(solutions, [-1]), [rows * m])
    return tf.reshape(x, [rows, m])


def _solve_by_conjugate_gradients(matrix, right_side, free):
    """Return the solutions by conjugate gradients, of all rows at a time."""
    limit = 100 + 10 * tf.shape(right_side)[1]

    def squares(residual):
        return tf.reduce_sum(tf.square(residual), 1, keepdims=True)

    def should_continue(k, x, residual, direction, squared_residual):
        return (k < limit) & (tf.reduce_max(squared_residual) > RESIDUAL)

    def step(k, x, residual, direction, squared_residual):
        product = tf.matmul(direction, matrix)
        # So directions and residuals stay zero where x is not free.
        product = tf.where(free, product, tf.zeros_like(product))
        curvature = tf.reduce_sum(direction * product, 1, keepdims=True)
        step_size = tf.math.divide_no_nan(squared_residual, curvature)
        x += step_size * direction
        residual -= step_size * product
        new_squared = squares(residual)
        direction = (
            residual
            + tf.math.divide_no_nan(new_squared, squared_residual) * direction
        )
        return k + 1, x, residual, direction, new_squared

    state = (
        0,
        tf.zeros_like(right_side),
        right_side,
        right_side,
        squares(right_side),
    )
    return tf.while_loop(should_continue, step, state, parallel_iterations=1)[1]
