"""PCGrad: each gradient without its part against the others."""

import copy
from typing import Any

import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations
from keras_pergrad.common.arguments import integer_seed
from keras_pergrad.keras_internals.state.saved import AggregationState
from keras_pergrad.multitask.gramian import GramianAggregation

STEP_COUNT = "steps"


class PCGrad(GramianAggregation):
    """Each gradient is projected onto the normal planes of the others.

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
    therefore the terms of the ordinary gradient (`adds_up`), and the result is
    the mean of the projected gradients of the samples.

    The order is drawn anew for each i and each update, from the seed and the
    number of the update alone, so a run can be repeated, and continues after a
    restart as it would have. `gramian_weights` by itself takes the first
    update's; `order(m)` returns it.

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
        self.seed: int = integer_seed(seed)
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
