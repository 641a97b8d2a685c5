"""UPGrad: each gradient projected until it conflicts with none."""

from typing import Any

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.arguments import number_from, positive_number
from keras_pergrad.multitask.gramian import (
    GramianAggregation,
    checked_preference,
    normalized,
    row_weights,
)
from keras_pergrad.multitask.programs import (
    require_solved,
    solve_complementarity,
)


class UPGrad(GramianAggregation):
    """The mean of all gradients, each projected until it conflicts with none.

    ```
    d_i = the direction nearest to g_i with ⟨g_j, d_i⟩ ≥ 0 for all j
    g   = Σ p_i d_i                        p_i = 1/m
    ```

    No loss gets worse by a small enough step along -g, and a gradient counts
    by its length, as in the mean. Quinton and Rey, "Jacobian descent for
    multi-objective optimization", arXiv 2406.16232. With G the Gramian divided
    by its trace, plus `reg_eps` on the diagonal, w = Σ p_i v_i, where v_i
    solves the quadratic program min vᵀ G v, v ≥ e_i. It is solved exactly, in
    the graph (`programs.py`), for all i at once, in about m⁴ / 10
    operations.

    By name `"upgrad"`.

    Args:
        preference: m numbers p, the weights of the rows in the mean; None:
            1/m each. For tasks, whose number is known.
        norm_eps: if the trace of the Gramian (the sum of the squared norms of
            all rows) is smaller, nothing is projected.
        reg_eps: added to the diagonal of the Gramian with the trace 1, so that
            the program has one solution even if gradients depend on each
            other. Small conflicts of about this share are let pass, among them
            those with a gradient 100 times shorter than the longest. If such a
            loss must not get worse, pass 1e-12, or scale the losses by
            `loss_weights`.

    `reg_eps` is that of TorchJD, whose `norm_eps` of 1e-4 makes the plain mean
    of small gradients, such as those of a loss in other units.

    Raises:
        ValueError: an argument is out of range.
        InvalidArgumentError: the program was not solved (it never happened),
            before any weight changes; under XLA, which cannot say it, the
            gradient is then zero.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, -0.5], [-0.5, 1.0]], tf.float64)
    >>> kpg.aggregations.UPGrad().gramian_weights(gramian).numpy().round(3)
    array([0.75, 0.75])
    >>> mode = kpg.Vectorized(aggregation=kpg.aggregations.UPGrad())
    """

    def __init__(
        self,
        *,
        preference: list[float] | None = None,
        norm_eps: float = 0.0,
        reg_eps: float = 1e-4,
    ):
        self.preference: list[float] | None = checked_preference(preference)
        self.norm_eps: float = number_from("norm_eps", norm_eps, 0)
        self.reg_eps: float = positive_number("reg_eps", reg_eps)

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        preference = row_weights(self.preference, gramian, present)
        normed = normalized(tf.cast(gramian, tf.float64), self.norm_eps)
        diagonal = tf.linalg.diag_part(normed)
        regularized = tf.linalg.set_diag(normed, diagonal + self.reg_eps)
        off_diagonal = tf.linalg.set_diag(
            tf.ones_like(regularized, tf.bool), tf.zeros_like(diagonal, tf.bool)
        )
        corrections, solved = solve_complementarity(
            regularized, regularized, off_diagonal
        )
        weights = preference + tf.linalg.matvec(
            corrections, preference, transpose_a=True
        )
        return require_solved(self, solved, weights)

    def get_config(self) -> dict[str, Any]:
        return {
            "preference": self.preference,
            "norm_eps": self.norm_eps,
            "reg_eps": self.reg_eps,
        }


aggregations.register("upgrad", UPGrad)
