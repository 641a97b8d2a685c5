"""Metrics for what a gradient mode logs: the value of an epoch."""

import keras
import tensorflow as tf


class DefinedMean(keras.metrics.Mean):
    """The mean of the finite values; NaN, not 0, before the first one."""

    # The variance of a batch of one is not defined, and a batch whose gradient
    # overflowed has no norm: such batches are left out.

    def update_state(self, values, sample_weight=None):
        values = tf.cast(values, self.dtype)
        defined = tf.cast(tf.math.is_finite(values), self.dtype)
        super().update_state(tf.math.multiply_no_nan(values, defined), defined)

    def result(self):
        return self.total / self.count


class RatioOfMeans(keras.metrics.Metric):
    """The mean of the numerators over that of the denominators, or NaN."""

    # The denominator of a noise scale is an estimate that may come near zero or
    # below, so a mean of ratios is biased without bound; each mean alone is
    # unbiased. Batches with a value that is not finite are left out.

    def __init__(self, name="ratio_of_means", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.numerators = self.add_variable((), "zeros", name="numerators")
        self.denominators = self.add_variable((), "zeros", name="denominators")

    def update_state(self, values, sample_weight=None):
        """Take in a pair (numerator, denominator), as a tensor (2,)."""
        values = tf.cast(values, self.dtype)
        defined = tf.cast(tf.reduce_all(tf.math.is_finite(values)), self.dtype)
        values = tf.math.multiply_no_nan(values, defined)
        self.numerators.assign_add(values[0])
        self.denominators.assign_add(values[1])

    def result(self):
        denominators = tf.convert_to_tensor(self.denominators)
        nan = tf.constant(float("nan"), denominators.dtype)
        return tf.where(denominators > 0, self.numerators / denominators, nan)


STATISTICS = {
    "gradient_norm": DefinedMean,
    "gradient_variance": DefinedMean,
    "gradient_noise_scale": RatioOfMeans,
}
