"""The shortest convex combination of the gradients: MGDA."""

import math

import tensorflow as tf

from keras_pergrad.aggregation import aggregations
from keras_pergrad.common.arguments import positive_integer, positive_number
from keras_pergrad.gramian.gramian_aggregation import GramianAggregation
from keras_pergrad.gramian.normalized import definite
from keras_pergrad.gramian.pivoting import complementary
from keras_pergrad.gramian.preference import weights_of
from keras_pergrad.gramian.solved import require_solved


class MGDA(GramianAggregation):
    """The shortest of all weighted means of the gradients.

    ```
    w = argmin ‖Σ w_i g_i‖²,   w ≥ 0,   Σ w_i = 1
    ```

    No loss gets worse by a small enough step, and short gradients count most.
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
    >>> kpg.MGDA().gramian_weights(gramian).numpy()
    array([0.8, 0.2])
    """

    def __init__(
        self,
        *,
        exact: bool = False,
        epsilon: float = 1e-3,
        max_iterations: int = 100,
    ):
        self.exact = bool(exact)
        self.epsilon = positive_number("epsilon", epsilon)
        self.max_iterations = positive_integer("max_iterations", max_iterations)

    def gramian_weights(self, gramian, present=None):
        if self.exact:
            return self._solution(gramian, present)
        gramian = tf.cast(gramian, tf.float64)
        nothing = tf.zeros([], gramian.dtype)
        against = tf.zeros_like(gramian[0])
        if present is not None:
            infinite = tf.constant(math.inf, gramian.dtype)
            against = tf.where(present, nothing, infinite)
        places = tf.range(tf.shape(gramian)[0])
        lengths = tf.linalg.diag_part(gramian)

        def go_on(k, weights, step):
            return (k < self.max_iterations) & (step >= self.epsilon)

        def step(k, weights, _):
            products = tf.linalg.matvec(gramian, weights)
            towards = tf.argmin(products + against, output_type=tf.int32)
            a, c = tf.gather(products, towards), tf.gather(lengths, towards)
            b = tf.tensordot(weights, products, 1)
            length = tf.math.divide_no_nan(b - a, b + c - 2 * a)
            length = tf.where(b <= a, nothing, length)
            length = tf.where(c <= a, tf.ones_like(a), length)
            target = tf.cast(places == towards, gramian.dtype)
            weights = (1 - length) * weights + length * target
            return k + 1, weights, length

        start = weights_of(None, gramian, present)
        state = 0, start, tf.ones([], gramian.dtype) * math.inf
        return tf.while_loop(go_on, step, state, parallel_iterations=1)[1]

    def _solution(self, gramian, present):
        # With v = w / ‖Σ w_i g_i‖² the conditions are G v ≥ 1, v ≥ 0, and
        # equality where v is positive.
        matrix = definite(gramian)
        ones = tf.ones_like(matrix[:1])
        allowed = None if present is None else present[None]
        solution, solved = complementary(matrix, -ones, allowed)
        total = tf.reduce_sum(solution)
        weights = tf.math.divide_no_nan(solution[0], total)
        return require_solved(self, solved, weights)

    def get_config(self):
        return {
            "exact": self.exact,
            "epsilon": self.epsilon,
            "max_iterations": self.max_iterations,
        }


aggregations.register("mgda", MGDA)
