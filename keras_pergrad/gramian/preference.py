"""The weights of rows before an aggregation changes anything."""

import math

import tensorflow as tf

from keras_pergrad.common.arguments import is_number


def preferences(value) -> list[float] | None:
    """Return the weights of rows as a list of floats, or None; else refuse."""
    if value is None:
        return None
    numbers = list(value) if hasattr(value, "__iter__") else []
    good = all(is_number(n) and 0 <= n < math.inf for n in numbers)
    if not good or not sum(numbers):
        raise ValueError(
            "`preference` must be None or a list of numbers of at least 0, one "
            f"for each row, not all 0. Received: preference={value!r}"
        )
    return [float(number) for number in numbers]


def weights_of(preference, gramian, present=None):
    """Return the weight of each row, (m,) of float64: as asked for, or 1/m."""
    rows = gramian.shape[0]
    if preference is not None:
        if rows is not None and rows != len(preference):
            raise ValueError(
                f"`preference` has {len(preference)} numbers, and there are "
                f"{rows} gradients. Give one for each, or leave it out."
            )
        weights = tf.constant(preference, tf.float64)
        if present is not None:
            weights = tf.where(present, weights, tf.zeros_like(weights))
        return weights
    if present is None:
        count = tf.shape(gramian)[0]
        return tf.fill([count], 1 / tf.cast(count, tf.float64))
    there = tf.cast(present, tf.float64)
    return tf.math.divide_no_nan(there, tf.reduce_sum(there))
