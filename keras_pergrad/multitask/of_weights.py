"""Aggregations whose weights solve a program: MGDA, CAGrad, AlignedMTL."""

import math
from typing import Any, Literal

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.names import require_one_of
from keras_pergrad.common.numbers import (
    number_at_least_zero,
    positive_integer,
    positive_number,
)
from keras_pergrad.multitask.gramian import (
    CANCELLATION,
    GramianAggregation,
    Spectrum,
    checked_preference,
    lengths_and_cosines,
    regularized,
    row_weights,
)
from keras_pergrad.multitask.programs import (
    require_solved,
    solve,
    solve_complementarity,
)


class MGDA(GramianAggregation):
    """The shortest of all weighted means of the gradients.

    ```
    w = argmin ‖Σ w_i g_i‖²,   w ≥ 0,   Σ w_i = 1
    ```

    No loss gets worse by a small enough step, and short gradients count most:
    with one of zero the mean is zero.
    Désidéri, "Multiple-gradient descent algorithm (MGDA)", C. R. Math. 350,
    2012. By default the program is approached as by Sener and Koltun (arXiv
    1810.04650, algorithm 2), and by TorchJD: steps of Frank and Wolfe towards
    the gradient most against, each as long as is best. Of two gradients the
    first step is exact; of many, 100 steps are far from the solution.

    By name `"mgda"`.

    Args:
        exact: whether to solve the program itself, in the graph. Eigenvalues
            of the cosines below 1e-9 of their sum (1.2e-7 in float32) count
            as that, so that one solution is chosen where gradients depend on
            each other.
        epsilon: the steps end with one shorter than it, as a share of the way.
        max_iterations: how many steps are taken at most.

    The last two have no meaning with `exact=True`.

    Raises:
        ValueError: an argument is out of range.
        InvalidArgumentError: the exact program was not solved, as in `UPGrad`.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, 0.0], [0.0, 4.0]], tf.float64)
    >>> kpg.aggregations.MGDA().gramian_weights(gramian).numpy()
    array([0.8, 0.2])
    """

    def __init__(
        self,
        *,
        exact: bool = False,
        epsilon: float = 1e-3,
        max_iterations: int = 100,
    ):
        self.exact: bool = bool(exact)
        self.epsilon: float = positive_number("epsilon", epsilon)
        self.max_iterations: int = positive_integer(
            "max_iterations", max_iterations
        )

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        if self.exact:
            return self._exact_weights(gramian, present)
        gramian = tf.cast(gramian, tf.float64)
        zero = tf.zeros([], gramian.dtype)
        penalties = tf.zeros_like(gramian[0])
        if present is not None:
            infinite = tf.constant(math.inf, gramian.dtype)
            penalties = tf.where(present, zero, infinite)
        row_indices = tf.range(tf.shape(gramian)[0])
        lengths = tf.linalg.diag_part(gramian)

        def should_continue(k, weights, frank_wolfe_step):
            return (k < self.max_iterations) & (
                frank_wolfe_step >= self.epsilon
            )

        def frank_wolfe_step(k, weights, _):
            products = tf.linalg.matvec(gramian, weights)
            target_row = tf.argmin(products + penalties, output_type=tf.int32)
            target_product = tf.gather(products, target_row)
            target_length = tf.gather(lengths, target_row)
            current_length = tf.tensordot(weights, products, 1)
            step_size = tf.math.divide_no_nan(
                current_length - target_product,
                current_length + target_length - 2 * target_product,
            )
            step_size = tf.where(
                current_length <= target_product, zero, step_size
            )
            step_size = tf.where(
                target_length <= target_product,
                tf.ones_like(target_product),
                step_size,
            )
            vertex = tf.cast(row_indices == target_row, gramian.dtype)
            weights = (1 - step_size) * weights + step_size * vertex
            return k + 1, weights, step_size

        start = row_weights(None, gramian, present)
        # An infinite first step, so that the loop begins.
        state = 0, start, tf.ones([], gramian.dtype) * math.inf
        return tf.while_loop(
            should_continue, frank_wolfe_step, state, parallel_iterations=1
        )[1]

    def _exact_weights(self, gramian, present):
        # With v = w / ‖Σ w_i g_i‖² the conditions are G v ≥ 1, v ≥ 0, and
        # equality where v is positive.
        matrix = regularized(gramian)
        ones = tf.ones_like(matrix[:1])
        allowed = None if present is None else present[None]
        solution, solved = solve_complementarity(matrix, -ones, allowed)
        total = tf.reduce_sum(solution)
        weights = tf.math.divide_no_nan(solution[0], total)
        return require_solved(self, solved, weights)

    def get_config(self) -> dict[str, Any]:
        return {
            "exact": self.exact,
            "epsilon": self.epsilon,
            "max_iterations": self.max_iterations,
        }


aggregations.register("mgda", MGDA)

# Near the mean, what improves the worst loss most: CAGrad.


#: How many times the multiplier of Σ w = 1 is found anew, at most.
MAX_ITERATIONS = 60
#: When the length that it gives counts as the one that it should give, and
#: when it does at the end, of gradients that are opposite but for rounding.
TOLERANCE, FINAL_TOLERANCE = 1e-12, 1e-6


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
    >>> kpg.aggregations.CAGrad(c=1.0).gramian_weights(gramian).numpy().round(3)
    array([1.429, 0.571])
    """

    def __init__(self, c: float = 0.5, *, norm_eps: float = 1e-4):
        self.c: float = number_at_least_zero("c", c)
        self.norm_eps: float = number_at_least_zero("norm_eps", norm_eps)

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        mean = row_weights(None, gramian, present)
        if not self.c:
            return mean
        lengths, cosines = lengths_and_cosines(gramian)
        matrix = regularized(gramian)
        solution, solved = _dual_solution(matrix, mean, lengths > 0, self.c)
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


def _dual_solution(matrix, mean, is_nonzero, c):
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

    lower_bounds = tf.where(is_nonzero, b * roots, _infinite(b))
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


def _infinite(tensor):
    """Return infinities of the shape and type of a tensor."""
    return tf.fill(tf.shape(tensor), tf.constant(float("inf"), tensor.dtype))


aggregations.register("cagrad", CAGrad)

# Gradients made orthogonal and equally long: Aligned-MTL.


SCALES = ("min", "median", "rmse")


class AlignedMTL(GramianAggregation):
    """The mean of gradients whose principal components are equally large.

    ```
    w = √λ G^(−½) p      λ: by `scale_mode`; p = 1/m for each row
    ```

    J is replaced by the nearest matrix whose singular values are all √λ, so
    that the linear system of the gradients has the condition number 1.
    Senushkin et al., "Independent component alignment for multi-task
    learning", arXiv 2305.19000. Weights may be negative.

    By name `"aligned_mtl"`.

    Args:
        preference: m numbers p, the weights of the rows in the mean; None:
            1/m each. For tasks, whose number is known.
        scale_mode: λ is the least ("min"), the median (the lower one of two)
            or the mean ("rmse") of the eigenvalues of G that are not zero.

    If the aggregated gradient is zero, w = p.

    Raises:
        ValueError: an argument is out of range.
        InvalidArgumentError: gradients that nearly depend on each other have
            lengths too different for float64, before any weight changes;
            under XLA, which cannot say it, the gradient is then zero.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, 0.0], [0.0, 4.0]], tf.float64)
    >>> kpg.aggregations.AlignedMTL().gramian_weights(gramian).numpy()
    array([0.5 , 0.25])
    """

    def __init__(
        self,
        *,
        preference: list[float] | None = None,
        scale_mode: Literal["min", "median", "rmse"] = "min",
    ):
        self.preference: list[float] | None = checked_preference(preference)
        require_one_of("scale_mode", scale_mode, SCALES)
        self.scale_mode: Literal["min", "median", "rmse"] = scale_mode

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        preference = row_weights(self.preference, gramian, present)
        spectrum = Spectrum(gramian)
        aligned = spectrum.times(preference, -0.5) * tf.sqrt(
            self._scale(spectrum)
        )
        # Where their mean is zero, so is the one of those made orthogonal.
        threshold = CANCELLATION * tf.reduce_max(preference)
        vanishes = tf.reduce_max(tf.abs(aligned)) <= threshold
        weights = tf.where(vanishes, preference, aligned)
        return require_solved(self, spectrum.resolved, weights)

    def _scale(self, spectrum):
        # Ascending: those that are not zero come last.
        values = spectrum.values
        count = tf.reduce_sum(tf.cast(spectrum.nonzero, tf.int32))
        first = tf.size(values) - tf.maximum(count, 1)
        if self.scale_mode == "min":
            return tf.gather(values, first)
        if self.scale_mode == "median":
            return tf.gather(values, first + (tf.maximum(count, 1) - 1) // 2)
        nonzero = tf.where(spectrum.nonzero, values, tf.zeros_like(values))
        return tf.reduce_sum(nonzero) / tf.cast(
            tf.maximum(count, 1), values.dtype
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "preference": self.preference,
            "scale_mode": self.scale_mode,
        }


aggregations.register("aligned_mtl", AlignedMTL)
