"""A first guess of which variables of many programs are positive."""

import tensorflow as tf

#: Steps of the accelerated gradient, each of one product of matrices.
STEPS = 20
#: A guess for fewer problems takes longer than the exchanges that it saves.
MANY = 9


def first_guess(matrix, q, allowed):
    """Return where z of `complementary` seems to be positive, (r, m).

    Nothing relies on it: the exchanges go on from it.

    Args:
        matrix: (m, m), positive definite, with ones on the diagonal.
        q: (r, m).
        allowed: (r, m) booleans; where false z is zero.
    """
    negative = (q < 0) & allowed
    if q.shape[0] is not None and q.shape[0] < MANY:
        return negative
    # (Σ λ¹⁶)^(1/16) is no less than the largest eigenvalue λ, and at most
    # m^(1/16) times it.
    power = matrix
    for _ in range(3):
        power = tf.matmul(power, power)
    bound = tf.norm(power) ** 0.125
    rows, m = tf.unstack(tf.shape(q))
    # Where one direction has most of the matrix, the steps are too short, and
    # the signs of q tell more.
    helps = (rows >= MANY) & (bound < tf.cast(m, bound.dtype) / 2)
    return tf.cond(
        helps, lambda: _by_steps(matrix, q, allowed, bound), lambda: negative
    )


def _by_steps(matrix, q, allowed, bound):
    """Return where z is positive after steps of ½ zᵀ M z + qᵀ z."""
    # FISTA (Beck and Teboulle, SIAM J. Imaging Sci. 2, 2009). Single precision
    # is enough for a guess.
    one = tf.eye(tf.shape(matrix)[0], dtype=matrix.dtype)
    ahead = tf.cast(one - matrix / bound, tf.float32)
    constant = tf.cast(q / bound, tf.float32)
    mask = tf.cast(allowed, tf.float32)
    before = here = tf.zeros_like(constant)
    speed = 1.0
    for _ in range(STEPS):
        new = tf.nn.relu(tf.matmul(here, ahead) - constant) * mask
        faster = (1 + (1 + 4 * speed**2) ** 0.5) / 2
        here = new + (speed - 1) / faster * (new - before)
        before, speed = new, faster
    return before > 0
