"""Near the mean, what improves the worst loss most: CAGrad."""

import tensorflow as tf

from keras_pergrad.aggregation import aggregations
from keras_pergrad.common.arguments import number_at_least_zero
from keras_pergrad.gramian.gramian_aggregation import GramianAggregation
from keras_pergrad.gramian.normalized import definite
from keras_pergrad.gramian.pivoting import complementary
from keras_pergrad.gramian.preference import weights_of
from keras_pergrad.gramian.solved import require_solved
from keras_pergrad.gramian.spectrum import CANCELS, units_of
from keras_pergrad.gramian.systems import solve

#: How many times the multiplier of Σ w = 1 is found anew, at most.
MOST = 60
#: When the length that it gives counts as the one that it should give, and
#: when it does at the end, of gradients that are opposite but for rounding.
CLOSE, AT_LAST = 1e-12, 1e-6


class CAGrad(GramianAggregation):
    """Within a ball around the mean, the best for the loss that gains least.

    ```
    g = argmax_d min_i ⟨g_i, d⟩,   ‖d - ḡ‖ ≤ c ‖ḡ‖
    ```

    ḡ is the mean of the rows. Liu et al., "Conflict-averse gradient descent",
    arXiv 2110.14048, algorithm 1, without its division by 1 + c², as TorchJD.
    c = 0 is the mean; for c ≥ 1 no loss gets worse by a small enough step.

    By name `"cagrad"`, with c = 0.5.

    Args:
        c: the radius of the ball, in lengths of the mean.
        norm_eps: for c ≥ 1, where nothing improves every loss all weights are
            0. That is so where the convex combination that the dual of the
            program finds is shorter than this share of its parts' lengths.

    The dual, min_w ⟨ḡ, g_w⟩ + c ‖ḡ‖ ‖g_w‖ over convex combinations g_w, is
    solved to rounding, in the graph: for each value of the multiplier of Σ w =
    1 it is a linear complementarity problem, and the value is found by its
    root on the part where it is smooth, else by bisection. Eigenvalues of the
    cosines below 1e-9 of their sum (1.2e-7 in float32) count as that. Rows of
    zeros, which no step improves, do not hinder the others.

    Raises:
        ValueError: an argument is out of range.
        InvalidArgumentError: the program was not solved, as in `UPGrad`.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, -1.0], [-1.0, 4.0]], tf.float64)
    >>> kpg.CAGrad(c=1.0).gramian_weights(gramian).numpy().round(3)
    array([1.429, 0.571])
    """

    def __init__(self, c: float = 0.5, *, norm_eps: float = 1e-4):
        self.c = number_at_least_zero("c", c)
        self.norm_eps = number_at_least_zero("norm_eps", norm_eps)

    def gramian_weights(self, gramian, present=None):
        mean = weights_of(None, gramian, present)
        if not self.c:
            return mean
        lengths, cosines = units_of(gramian)
        matrix = definite(gramian)
        found, solved = _found(matrix, mean, lengths > 0, self.c)
        parts = found * lengths
        squared = tf.tensordot(parts, tf.linalg.matvec(cosines, parts), 1)
        length = tf.sqrt(tf.maximum(squared, 0))
        if self.c < 1:  # The ball is without 0.
            improves = tf.constant(True)
        else:
            improves = length >= self.norm_eps * tf.reduce_sum(parts)
        own = mean * lengths
        squared = tf.tensordot(own, tf.linalg.matvec(cosines, own), 1)
        # Around a mean of zero the ball is a point.
        nothing = squared <= (CANCELS * tf.reduce_sum(own)) ** 2
        weights = tf.where(improves, mean + found, tf.zeros_like(mean))
        weights = tf.where(nothing, mean, weights)
        return require_solved(self, solved | nothing, weights)

    def get_config(self):
        return {"c": self.c, "norm_eps": self.norm_eps}


def _found(matrix, mean, there, c):
    """Return v ≥ 0 with ‖Σ v_i g_i‖ = c ‖ḡ‖, along the dual's solution.

    `there`: where false, v is 0.
    """
    # The conditions are, with b_i = ⟨g_i, ḡ⟩ and a multiplier μ,
    #     G v + b - μ ≥ 0,  v ≥ 0,  equality where v is positive.
    # The length of v grows with μ; on a set of positive v it is the root of a
    # square, A μ² - 2 B μ + C.
    roots = tf.sqrt(tf.linalg.diag_part(matrix))
    matrix = matrix / roots / roots[:, None]
    ones = tf.where(there, 1 / roots, tf.zeros_like(roots))
    mean = mean * roots
    b = tf.linalg.matvec(matrix, mean)
    size = tf.tensordot(mean, b, 1)
    wanted = c * tf.sqrt(size)
    allowed = there[None]
    unit = tf.reduce_max(ones)

    def length_of(v):
        return tf.sqrt(tf.tensordot(v, tf.linalg.matvec(matrix, v), 1))

    def go_on(k, low, high, mu, v, near):
        return (k < MOST) & tf.logical_not(near)

    def step(k, low, high, mu, v, near):
        z, solved = complementary(matrix, (b - mu * ones)[None], allowed)
        v = z[0]
        length = length_of(v)
        near = solved & (tf.abs(length - wanted) <= CLOSE * wanted)
        low = tf.where(length < wanted, mu, low)
        high = tf.where(length < wanted, high, mu)
        slope = solve(matrix, (ones / unit)[None], z > 0)[0] * unit
        at_zero = mu * slope - v
        a = tf.tensordot(ones, slope, 1)
        half = tf.tensordot(ones, at_zero, 1)
        rest = tf.tensordot(b, at_zero, 1)
        root = tf.sqrt(tf.maximum(half**2 - a * (rest - wanted**2), 0))
        guess = tf.math.divide_no_nan(half + root, a)
        inside = (guess > low) & (guess < high)
        mu = tf.where(inside, guess, (low + high) / 2)
        return k + 1, low, high, mu, v, near

    places = tf.where(there, b * roots, _infinite(b))
    low, high = tf.reduce_min(places), size * (1 + c)
    state = 0, low, high, high, tf.zeros_like(b), wanted <= 0
    *_, v, _ = tf.while_loop(go_on, step, state, parallel_iterations=1)
    return v / roots, tf.abs(length_of(v) - wanted) <= AT_LAST * wanted


def _infinite(like):
    """Return infinities of the shape and type of a tensor."""
    return tf.fill(tf.shape(like), tf.constant(float("inf"), like.dtype))


aggregations.register("cagrad", CAGrad)
