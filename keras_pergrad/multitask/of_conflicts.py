"""Aggregations that keep gradients from conflicting: UPGrad, PCGrad, IMTLG."""

import copy
from typing import Any

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.numbers import (
    number_at_least_zero,
    positive_number,
    seed_or_none,
)
from keras_pergrad.keras_internals.state.saved import AggregationState
from keras_pergrad.multitask.gramian import (
    CANCELLATION,
    GramianAggregation,
    Spectrum,
    checked_preference,
    lengths_and_cosines,
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
        norm_eps: where the trace of the Gramian (the sum of the squared norms
            of all rows) is below, nothing is projected.
        reg_eps: added to the diagonal of the Gramian with the trace 1; it
            makes the program have one solution where gradients depend on each
            other, and lets small conflicts of about this share pass: among
            them those with a gradient 100 times shorter than the longest. Give
            1e-12, or scale the losses by `loss_weights`, where such a one
            must not get worse.

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
        self.norm_eps: float = number_at_least_zero("norm_eps", norm_eps)
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

# Each gradient without its part against the others: PCGrad.


STEP_COUNT = "steps"


class PCGrad(GramianAggregation):
    """Each gradient is projected on the normal planes of the others.

    ```
    for each i:   d = g_i
                  for j ≠ i in random order:
                      if ⟨d, g_j⟩ < 0:   d = d - g_j ⟨d, g_j⟩ / ‖g_j‖²
                  d_i = d
    g = Σ d_i     of rows that add up to the ordinary gradient
    ```

    Yu et al., "Gradient surgery for multi-task learning", arXiv 2001.06782,
    algorithm 1. A later projection may bring back a conflict with an earlier
    gradient. The weights are those of TorchJD: they add up the projections, so
    that they are 1 each without conflicts. In a gradient mode the rows are
    therefore the parts of the ordinary gradient (`adds_up`), and the result is
    the mean of the projected gradients of the samples.

    The order is drawn anew for each i and each update, from the seed and the
    number of the update alone, so a run can be repeated, and goes on after a
    restart as it would have. `gramian_weights` by itself takes the first
    update's; `order(m)` tells it.

    By name `"pcgrad"`.

    Args:
        seed: an integer.

    Raises:
        ValueError: the seed is no integer.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, -0.5], [-0.5, 1.0]], tf.float64)
    >>> kpg.aggregations.PCGrad().gramian_weights(gramian).numpy()
    array([1.5, 1.5])
    """

    adds_up = True

    def __init__(self, seed: int = 0):
        self.seed: int | None = seed_or_none(seed)
        if self.seed is None:
            raise ValueError(
                "`seed` must be an integer, from which the orders are drawn. "
                "Received: seed=None"
            )
        self._step = 0

    def make_state(self, before: Any = None) -> Any:
        state = AggregationState(self.seed, **{STEP_COUNT: 0})
        if isinstance(before, AggregationState):
            state.resume_from(before)
        return state

    def at(self, state: Any) -> "PCGrad":
        if state is None:
            return self
        current = copy.copy(self)
        current._step = tf.convert_to_tensor(getattr(state, STEP_COUNT))
        return current

    def finish(
        self, gradients: list[Any], n: Any, state: Any = None
    ) -> list[Any]:
        if state is not None:
            state.advance(STEP_COUNT)
        return gradients

    def order(self, m: Any) -> tf.Tensor:
        """Return for each row the order of all rows, (m, m) of int32."""
        # XLA draws other numbers than TensorFlow does; these are the same.
        bits = tf.cast(tf.range(m * m), tf.uint64)
        keys: Any = self._step, self.seed
        for key in keys:
            bits = _hashed(bits + _hashed(tf.cast(key, tf.uint64)))
        # Without the highest bits the cast to int64 keeps the order.
        bits = tf.cast(tf.bitwise.right_shift(bits, _uint64(11)), tf.int64)
        return tf.argsort(tf.reshape(bits, [m, m]), stable=True)

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        gramian = tf.cast(gramian, tf.float64)
        m = tf.shape(gramian)[0]
        rows = tf.range(m)
        # In step k each row i meets row orders[k, i], unless it is itself.
        orders = tf.transpose(self.order(m))
        flat_indices = orders + rows * m
        lengths = tf.gather(tf.linalg.diag_part(gramian), orders)
        # A row that meets itself is divided by infinity: nothing changes.
        infinite = tf.constant(float("inf"), gramian.dtype)
        lengths = tf.where(orders == rows, infinite, lengths)

        def step(k, products, total):
            partners = orders[k]
            conflicts = tf.gather(tf.reshape(products, [-1]), flat_indices[k])
            conflicts = tf.minimum(conflicts, 0)
            factors = -tf.math.divide_no_nan(conflicts, lengths[k])
            products += factors[:, None] * tf.gather(gramian, partners)
            total += tf.math.unsorted_segment_sum(factors, partners, m)
            products.set_shape(gramian.shape)
            total.set_shape(gramian.shape[:1])
            return k + 1, products, total

        state = 0, gramian, tf.ones_like(gramian[0])
        _, _, total = tf.while_loop(
            lambda k, *_: k < m, step, state, parallel_iterations=1
        )
        if present is None:
            return total
        return tf.where(present, total, tf.zeros_like(total))

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed}


def _hashed(numbers):
    """Return other numbers of 64 bits, each from its own."""
    # SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    mixed = numbers + _uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = tf.bitwise.bitwise_xor(
            mixed, tf.bitwise.right_shift(mixed, _uint64(shift))
        )
        mixed *= _uint64(factor)
    return tf.bitwise.bitwise_xor(
        mixed, tf.bitwise.right_shift(mixed, _uint64(31))
    )


def _uint64(value):
    return tf.constant(value, tf.uint64)


aggregations.register("pcgrad", PCGrad)

# Equal projections of the aggregated gradient on all gradients: IMTL-G.


class IMTLG(GramianAggregation):
    """The combination that all gradients have the same part in.

    ```
    v = G⁺ (‖g_1‖, …, ‖g_m‖)      G⁺ the pseudoinverse of the Gramian
    w = v / Σ v_i
    ```

    so that Σ w_i g_i has the same inner product with every g_i / ‖g_i‖. Liu et
    al., "Towards impartial multi-task learning", ICLR 2021, in the form for
    gradients that depend on each other (Quinton and Rey, arXiv 2406.16232).
    Weights may be negative. Units do not matter: a loss times a number gets
    the same part, also at lengths that differ 10,000 times in float32. Where
    v = 0, such as for two opposite gradients of one length, w follows the
    lengths, and the combination is 0; where all gradients are 0, w_i = 1/m.

    By name `"imtlg"`. It takes no arguments.

    Raises:
        InvalidArgumentError: the parts of v cancel, so that no weights add up
            to 1, before any weight of the model changes; under XLA, which
            cannot say it, the gradient is then zero.

    Example:

    >>> import tensorflow as tf
    >>> import keras_pergrad as kpg
    >>> gramian = tf.constant([[1.0, 0.0], [0.0, 4.0]], tf.float64)
    >>> kpg.aggregations.IMTLG().gramian_weights(gramian).numpy().round(3)
    array([0.667, 0.333])
    """

    def gramian_weights(
        self, gramian: tf.Tensor, present: tf.Tensor | None = None
    ) -> tf.Tensor:
        lengths, _ = lengths_and_cosines(gramian)
        solution, is_known = Spectrum(gramian).solve(lengths)
        # In units of 1 / length: without any, no direction has equal parts.
        vanishes = tf.reduce_max(tf.abs(solution) * lengths) <= CANCELLATION
        all_zero = tf.reduce_all(lengths <= 0)
        mean = row_weights(None, gramian, present)
        fallback = tf.where(all_zero, mean, lengths)
        solution = tf.where(vanishes, fallback, solution)
        total = tf.reduce_sum(solution)
        is_known &= tf.abs(total) > CANCELLATION * tf.reduce_sum(
            tf.abs(solution)
        )
        weights = tf.math.divide_no_nan(solution, total)
        return require_solved(self, is_known | all_zero, weights)


aggregations.register("imtlg", IMTLG)
