"""Quadratic programs over the Gramians of many batches.

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

from keras_pergrad.common.batches import only_if
from keras_pergrad.keras_internals.tensorflow.settings import in_xla
from keras_pergrad.multitask.linear_systems import solve

#: Steps of the accelerated gradient, each of one product of matrices.
GUESS_STEPS = 20
#: A guess for fewer problems takes longer than the exchanges that it saves.
MIN_PROBLEMS = 9


def first_guess(matrix, q, allowed):
    """Return where z of `solve_complementarity` seems to be positive, (r, m).

    Nothing relies on it: the exchanges go on from it.

    Args:
        matrix: (m, m), positive definite, with ones on the diagonal.
        q: (r, m).
        allowed: (r, m) booleans; where false z is zero.
    """
    negative = (q < 0) & allowed
    if q.shape[0] is not None and q.shape[0] < MIN_PROBLEMS:
        return negative
    # (Σ λ¹⁶)^(1/16) is no less than the largest eigenvalue λ, and at most
    # m^(1/16) times it.
    matrix_power = matrix
    for _ in range(3):
        matrix_power = tf.matmul(matrix_power, matrix_power)
    bound = tf.norm(matrix_power) ** 0.125
    rows, m = tf.unstack(tf.shape(q))
    # Where one direction has most of the matrix, the steps are too short, and
    # the signs of q tell more.
    helps = (rows >= MIN_PROBLEMS) & (bound < tf.cast(m, bound.dtype) / 2)
    return tf.cond(
        helps,
        lambda: _guess_by_fista(matrix, q, allowed, bound=bound),
        lambda: negative,
    )


def _guess_by_fista(matrix, q, allowed, *, bound):
    """Return where z is positive after steps of ½ zᵀ M z + qᵀ z."""
    # FISTA (Beck and Teboulle, SIAM J. Imaging Sci. 2, 2009). Single precision
    # is enough for a guess.
    identity = tf.eye(tf.shape(matrix)[0], dtype=matrix.dtype)
    step_matrix = tf.cast(identity - matrix / bound, tf.float32)
    constant = tf.cast(q / bound, tf.float32)
    mask = tf.cast(allowed, tf.float32)
    previous = point = tf.zeros_like(constant)
    momentum = 1.0
    for _ in range(GUESS_STEPS):
        next_point = tf.nn.relu(tf.matmul(point, step_matrix) - constant) * mask
        next_momentum = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        point = next_point + (momentum - 1) / next_momentum * (
            next_point - previous
        )
        previous, momentum = next_point, next_momentum
    return previous > 0


#: Signs are wrong beyond this, of a problem whose numbers are about 1.
TOLERANCE = 1e-11
#: How often all wrong signs are exchanged without getting fewer.
PATIENCE = 3


def solve_complementarity(matrix, q, allowed):
    """Return z, in the shape of `q`, and whether all problems are solved.

    They are not if 100 + 10 m exchanges did not do.

    Args:
        matrix: (m, m) of float64, positive definite.
        q: (r, m), a problem in each row.
        allowed: (r, m) booleans; where false z is zero, whatever y.
    """
    # Other units, in which the diagonal is 1 and so is the largest of each q.
    roots = tf.sqrt(tf.linalg.diag_part(matrix))
    scaled = q / roots
    sizes = tf.reduce_max(tf.abs(scaled), 1, keepdims=True)
    scaled = tf.math.divide_no_nan(scaled, sizes)
    matrix = matrix / roots / roots[:, None]
    z, solved = _solve_scaled(matrix, scaled, allowed)
    return z * sizes / roots, solved


def _solve_scaled(matrix, q, allowed):
    free = first_guess(matrix, q, allowed)
    count, m = tf.unstack(tf.shape(q))
    limit = 100 + 10 * m

    def should_continue(k, unsolved, *_):
        return (k < limit) & (unsolved > 0)

    def exchange(k, unsolved, rows, free, z, fewest, patience):
        row_free, row_q = tf.gather(free, rows), tf.gather(q, rows)
        solved = solve(matrix, -row_q, row_free)
        slack = tf.matmul(solved, matrix) + row_q
        wrong = tf.where(row_free, solved, slack) < -TOLERANCE
        wrong &= tf.gather(allowed, rows)
        wrong_counts = tf.math.count_nonzero(wrong, 1, dtype=tf.int32)
        previous_fewest = tf.gather(fewest, rows)
        remaining = tf.gather(patience, rows)
        remaining = tf.where(
            wrong_counts < previous_fewest, PATIENCE, remaining - 1
        )
        # The last wrong one: `argmax` finds the first in reversed order.
        last_wrong = m - 1 - tf.argmax(wrong[:, ::-1], 1, tf.int32)
        single = wrong & (tf.range(m) == last_wrong[:, None])
        wrong = tf.where(remaining[:, None] >= 0, wrong, single)
        updates = (
            (free, row_free ^ wrong),
            (z, solved),
            (fewest, tf.minimum(wrong_counts, previous_fewest)),
            (patience, remaining),
        )
        state = [
            tf.tensor_scatter_nd_update(tensor, rows[:, None], value)
            for tensor, value in updates
        ]
        unsolved = tf.math.count_nonzero(wrong_counts, dtype=tf.int32)
        if not in_xla():  # where all shapes are known beforehand
            rows = tf.boolean_mask(rows, wrong_counts > 0)
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
        should_continue, exchange, state, tuple(shapes), parallel_iterations=1
    )
    # Within the tolerance z may be just below zero.
    return tf.maximum(z, tf.zeros([], z.dtype)), unsolved <= 0


def require_solved(aggregation, solved, weights):
    """Return weights; fail where they are none, which under XLA are zero."""
    with only_if(solved, [_NOT_SOLVED.format(aggregation)]):
        # XLA leaves assertions out.
        return tf.where(solved, weights, tf.zeros_like(weights))


_NOT_SOLVED = (
    "The weights of {} were not found: the Gramian of the gradients is too "
    "near to one without an inverse, or its weights cancel. No weight has "
    "changed. Expected gradients that are not equal or opposite but for "
    "rounding, nor millions of times as long as others; scale the losses by "
    "`loss_weights`, compute in float64, raise `reg_eps` if it has one, or "
    "use another aggregation."
)
