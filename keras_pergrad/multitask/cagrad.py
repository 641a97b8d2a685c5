"""CAGrad: what improves the worst loss most, near the mean."""

from typing import Any

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.arguments import number_from
from keras_pergrad.multitask.gramian import (
    GramianAggregation,
    infinite_like,
    regularized,
    row_weights,
)
from keras_pergrad.multitask.linear_systems import solve
from keras_pergrad.multitask.programs import (
    require_solved,
    solve_complementarity,
)
from keras_pergrad.multitask.spectrum import CANCELLATION, lengths_and_cosines

#: How many times the multiplier of Σ w = 1 is found anew, at most.
MAX_ITERATIONS = 60
#: When the length that it gives counts as the one that it should give, and
#: when it does at the end, of gradients that are opposite but for rounding.
TOLERANCE, FINAL_TOLERANCE = 1e-12, 1e-6


class CAGrad(GramianAggregation):
    """The gradient near the mean that most helps the loss that gains least.

    ```
    g = argmax_d min_i ⟨g_i, d⟩,   ‖d - ḡ‖ ≤ c ‖ḡ‖
    ```

    ḡ is the mean of the rows. Liu et al., "Conflict-averse gradient descent",
    arXiv 2110.14048, algorithm 1, without its division by 1 + c², as TorchJD.
    c = 0 is the mean; for c ≥ 1 no loss gets worse by a small enough step.

    By name `"cagrad"`, with c = 0.5.

    Args:
        c: the radius of the ball, in lengths of the mean.
        norm_eps: for c ≥ 1, if nothing improves every loss, all weights are
            0. That is so if the convex combination that solves the dual of the
            program is shorter than this share of its terms' lengths.

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
    >>> kpg.aggregations.CAGrad(c=1.0).gramian_weights(gramian).numpy().round(3)
    array([1.429, 0.571])
    """

    def __init__(self, c: float = 0.5, *, norm_eps: float = 1e-4):
        self.c: float = number_from("c", c, 0)
        self.norm_eps: float = number_from("norm_eps", norm_eps, 0)

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        mean = row_weights(None, gramian, present)
        if not self.c:
            return mean
        lengths, cosines = lengths_and_cosines(gramian)
        matrix = regularized(gramian)
        solution, solved = _dual_solution(matrix, mean, lengths > 0, c=self.c)
        parts = solution * lengths
        squared = tf.tensordot(parts, tf.linalg.matvec(cosines, parts), 1)
        length = tf.sqrt(tf.maximum(squared, 0))
        if self.c < 1:  # The ball is without 0.
            improves = tf.constant(True)
        else:
            improves = length >= self.norm_eps * tf.reduce_sum(parts)
        mean_parts = mean * lengths
        squared = tf.tensordot(
            mean_parts, tf.linalg.matvec(cosines, mean_parts), 1
        )
        # Around a mean of zero the ball is a point.
        mean_is_zero = (
            squared <= (CANCELLATION * tf.reduce_sum(mean_parts)) ** 2
        )
        weights = tf.where(improves, mean + solution, tf.zeros_like(mean))
        weights = tf.where(mean_is_zero, mean, weights)
        return require_solved(self, solved | mean_is_zero, weights)

    def get_config(self) -> dict[str, Any]:
        return {"c": self.c, "norm_eps": self.norm_eps}


def _dual_solution(matrix, mean, is_nonzero, *, c):
    """Return v ≥ 0 with ‖Σ v_i g_i‖ = c ‖ḡ‖, along the dual's solution.

    `is_nonzero`: where false, v is 0.
    """
    # The conditions are, with b_i = ⟨g_i, ḡ⟩ and a multiplier μ,
    #     G v + b - μ ≥ 0,  v ≥ 0,  equality where v is positive.
    # The length of v grows with μ; on a set of positive v it is the root of a
    # square, A μ² - 2 B μ + C.
    # In units of the rows' lengths: `solve` needs ones on the diagonal.
    roots = tf.sqrt(tf.linalg.diag_part(matrix))
    matrix = matrix / roots / roots[:, None]
    ones = tf.where(is_nonzero, 1 / roots, tf.zeros_like(roots))
    row_shares, mean = mean, mean * roots
    b = tf.linalg.matvec(matrix, mean)
    mean_square = tf.tensordot(mean, b, 1)
    target_length = c * tf.sqrt(mean_square)
    allowed = is_nonzero[None]
    unit_scale = tf.reduce_max(ones)

    def length_of(v):
        return tf.sqrt(tf.tensordot(v, tf.linalg.matvec(matrix, v), 1))

    def should_continue(k, low, high, mu, v, is_close):
        return (k < MAX_ITERATIONS) & tf.logical_not(is_close)

    def step(k, low, high, mu, v, is_close):
        z, solved = solve_complementarity(
            matrix, (b - mu * ones)[None], allowed
        )
        v = z[0]
        length = length_of(v)
        is_close = solved & (
            tf.abs(length - target_length) <= TOLERANCE * target_length
        )
        low = tf.where(length < target_length, mu, low)
        high = tf.where(length < target_length, high, mu)
        slope = solve(matrix, (ones / unit_scale)[None], z > 0)[0] * unit_scale
        intercept = mu * slope - v
        a = tf.tensordot(ones, slope, 1)
        half_sum = tf.tensordot(ones, intercept, 1)
        constant = tf.tensordot(b, intercept, 1)
        root = tf.sqrt(
            tf.maximum(half_sum**2 - a * (constant - target_length**2), 0)
        )
        root_guess = tf.math.divide_no_nan(half_sum + root, a)
        is_inside = (root_guess > low) & (root_guess < high)
        mu = tf.where(is_inside, root_guess, (low + high) / 2)
        return k + 1, low, high, mu, v, is_close

    lower_bounds = tf.where(is_nonzero, b * roots, infinite_like(b))
    # The least of ⟨g_i, d⟩ is at most their mean over the rows that count, and
    # rows of zeros count in ḡ alone.
    counted = tf.reduce_sum(tf.where(is_nonzero, row_shares, 0))
    low = tf.reduce_min(lower_bounds)
    high = tf.math.divide_no_nan(mean_square * (1 + c), counted)
    state = 0, low, high, high, tf.zeros_like(b), target_length <= 0
    *_, v, _ = tf.while_loop(
        should_continue, step, state, parallel_iterations=1
    )
    return v / roots, tf.abs(
        length_of(v) - target_length
    ) <= FINAL_TOLERANCE * target_length


aggregations.register("cagrad", CAGrad)
