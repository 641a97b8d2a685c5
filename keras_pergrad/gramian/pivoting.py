"""Linear complementarity problems of one matrix, solved exactly.

For a positive definite M and each row q of Q find

    z ≥ 0,   y = M z + q ≥ 0,   z_j y_j = 0 for all j.

Block principal pivoting (Kim and Park, SIAM J. Sci. Comput. 33, 2011) guesses
which z_j are free, solves for them, exchanges all whose sign is wrong, and is
done when none is: then the solution is exact, not the limit of steps. Where
wrong signs do not get fewer, the last of them alone is exchanged, which ends
for every positive definite M (Murty, Math. Programming 7, 1974). Gramians of
64 gradients took up to 5 exchanges. With many problems the first set is guessed
(`first_guess`).
"""

import tensorflow as tf

from keras_pergrad.gramian.first_guess import first_guess
from keras_pergrad.gramian.systems import solve
from keras_pergrad.keras_internals.xla import in_xla

#: Signs are wrong beyond this, of a problem whose numbers are about 1.
TOLERANCE = 1e-11
#: How often all wrong signs are exchanged without getting fewer.
PATIENCE = 3


def complementary(matrix, q, allowed=None):
    """Return z, in the shape of `q`, and whether all problems are solved.

    They are not if 100 + 10 m exchanges did not do.

    Args:
        matrix: (m, m) of float64, positive definite.
        q: (r, m), a problem in each row.
        allowed: (r, m) booleans; where false z is zero, whatever y. None: all
            may be positive.
    """
    # Other units, in which the diagonal is 1 and so is the largest of each q.
    roots = tf.sqrt(tf.linalg.diag_part(matrix))
    scaled = q / roots
    sizes = tf.reduce_max(tf.abs(scaled), 1, keepdims=True)
    scaled = tf.math.divide_no_nan(scaled, sizes)
    matrix = matrix / roots / roots[:, None]
    z, solved = _scaled(matrix, scaled, allowed)
    return z * sizes / roots, solved


def _scaled(matrix, q, allowed):
    everywhere = tf.ones_like(q, tf.bool)
    free = first_guess(matrix, q, everywhere if allowed is None else allowed)
    count, m = tf.unstack(tf.shape(q))
    limit = 100 + 10 * m

    def go_on(k, unsolved, *_):
        return (k < limit) & (unsolved > 0)

    def exchange(k, unsolved, rows, free, z, fewest, patience):
        own, own_q = tf.gather(free, rows), tf.gather(q, rows)
        solved = solve(matrix, -own_q, own)
        slack = tf.matmul(solved, matrix) + own_q
        wrong = tf.where(own, solved, slack) < -TOLERANCE
        if allowed is not None:
            wrong &= tf.gather(allowed, rows)
        signs = tf.math.count_nonzero(wrong, 1, dtype=tf.int32)
        before, left = tf.gather(fewest, rows), tf.gather(patience, rows)
        left = tf.where(signs < before, PATIENCE, left - 1)
        last = m - 1 - tf.argmax(wrong[:, ::-1], 1, tf.int32)
        single = wrong & (tf.range(m) == last[:, None])
        wrong = tf.where(left[:, None] >= 0, wrong, single)
        changes = (
            (free, own ^ wrong),
            (z, solved),
            (fewest, tf.minimum(signs, before)),
            (patience, left),
        )
        state = [
            tf.tensor_scatter_nd_update(tensor, rows[:, None], value)
            for tensor, value in changes
        ]
        unsolved = tf.math.count_nonzero(signs, dtype=tf.int32)
        if not in_xla():  # where all shapes are known beforehand
            rows = tf.boolean_mask(rows, signs > 0)
        return k + 1, unsolved, rows, *state

    state = (
        tf.constant(0),
        count,
        tf.range(count),
        free,
        tf.zeros_like(q),
        tf.fill([count], m + 1),
        tf.fill([count], PATIENCE),
    )
    shapes = [t.shape for t in state]
    if not in_xla():
        shapes[2] = tf.TensorShape([None])
    _, unsolved, _, _, z, *_ = tf.while_loop(
        go_on, exchange, state, tuple(shapes), parallel_iterations=1
    )
    return tf.maximum(z, tf.zeros([], z.dtype)), unsolved <= 0
