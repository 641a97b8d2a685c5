"""MGDA: the combination of gradients that is shortest."""

import math
from typing import Any

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.arguments import positive_integer, positive_number
from keras_pergrad.multitask.gramian import (
    GramianAggregation,
    regularized,
    row_weights,
)
from keras_pergrad.multitask.programs import (
    require_solved,
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
        epsilon: the steps end with the first that is shorter than this share
            of the way.
        max_iterations: the maximum number of steps.

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
        if present is None:
            present = tf.ones_like(matrix[0], tf.bool)
        solution, solved = solve_complementarity(matrix, -ones, present[None])
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
