"""From per-sample gradients to one gradient, by their norms alone.

All norms are of per-sample gradients in the scaling whose *mean* over the
samples is the ordinary gradient.
"""

import math
import operator

import keras
import tensorflow as tf

from keras_pergrad.keras_internals.noise import Noise
from keras_pergrad.keras_internals.registry import Configured, Registry


class Aggregation(Configured):
    """How per-sample gradients become one gradient: a weighted mean.

    Subclass it, define `weights`, and register the class with
    `register_aggregation` to use it by name.
    """

    #: False: all weights are 1, so that no norm need be computed.
    needs_norms = True

    def weights(self, norms):
        """The factor of each sample in the mean, (n,).

        Each weight may depend on its own sample's norm only.

        Args:
            norms: the norm of each per-sample gradient over all trainable
                variables, (n,).
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define weights(norms)."
        )

    def finish(self, gradients, n, state=None):
        """Return the aggregated gradients as they shall be applied.

        Args:
            gradients: the weighted means, one per variable, None for a
                variable without a gradient.
            n: the number of samples.
            state: what `make_state` gave for the model that is trained.
        """
        del n, state
        return gradients

    def statistics(self, norms):
        """Scalars to log, by name."""
        del norms
        return {}

    def make_state(self, before=None):
        """Make what one model keeps from step to step, or None.

        It becomes the `aggregation_state` of a model at compile() and is
        handed to `finish`. The aggregation itself, which several models may
        be given, never changes. A `KerasSaveable` is saved with the model's
        weights.

        Args:
            before: the state that the model had before it was compiled
                again, or None.
        """
        del before
        return None

    @property
    def log_metrics(self):
        """How each of the `statistics` is logged: name to metric class."""
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Mean(Aggregation):
    """The ordinary gradient: every sample counts the same."""

    needs_norms = False

    def weights(self, norms):
        return tf.ones_like(norms)


class ClippedMean(Aggregation):
    """The mean of per-sample gradients, each clipped to a norm, plus noise.

    ```
    g_i ← g_i · min(1, clip_norm / ‖g_i‖)      for each sample i
    g   ← mean_i(g_i) + N(0, (noise_multiplier · clip_norm / n)²)
    ```

    Abadi et al., "Deep learning with differential privacy", arXiv 1607.00133.
    A sample whose gradient holds NaN or infinity contributes zero and is
    counted in the logs as `nonfinite_samples`; with loss scaling above 1 it
    makes the optimizer skip the step and lower the scale, as in Keras.

    Args:
        clip_norm: the largest norm that a sample's gradient over all
            trainable variables keeps; positive, may be infinite.
        noise_multiplier: the noise's standard deviation in units of
            clip_norm / n; 0 for none.
        seed: an integer makes the noise repeatable, in each model from its
            beginning. Where it stands belongs to the compiled model and is
            saved with its weights, so that training goes on after a restart,
            or another compile(), with the noise that it had not yet had.

    | case | what happens |
    |---|---|
    | `clip_norm <= 0` or NaN | ValueError |
    | `clip_norm = inf` | nothing is clipped; noise must be 0 |
    | a gradient of norm 0 | stays 0 |
    | a gradient with NaN or infinity | contributes 0, is counted |

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> aggregation = kpg.ClippedMean(clip_norm=1.0, noise_multiplier=1.1)
    >>> mode = kpg.Vectorized(aggregation=aggregation)
    """

    def __init__(self, clip_norm, noise_multiplier=0.0, seed=None):
        if not _is_number(clip_norm) or not clip_norm > 0:
            raise ValueError(
                "`clip_norm` must be a positive number. "
                f"Received: clip_norm={clip_norm!r}"
            )
        if (
            not _is_number(noise_multiplier)
            or not noise_multiplier >= 0
            or math.isinf(noise_multiplier)
        ):
            raise ValueError(
                "`noise_multiplier` must be a finite number of at least 0. "
                f"Received: noise_multiplier={noise_multiplier!r}"
            )
        if noise_multiplier and math.isinf(clip_norm):
            raise ValueError(
                "Noise is measured in units of `clip_norm`, which must be "
                f"finite then. Received: clip_norm={clip_norm!r}, "
                f"noise_multiplier={noise_multiplier!r}"
            )
        self.clip_norm = float(clip_norm)
        self.noise_multiplier = float(noise_multiplier)
        self.seed = _integer(seed)

    def weights(self, norms):
        clip = tf.constant(self.clip_norm, norms.dtype)
        weights = clip / tf.maximum(norms, clip)
        if math.isinf(self.clip_norm):
            weights = tf.ones_like(norms)
        return tf.where(is_finite(norms), weights, tf.zeros_like(norms))

    def make_state(self, before=None):
        if not self.noise_multiplier:
            return None
        noise = Noise(self.seed)
        if isinstance(before, Noise):
            noise.go_on_from(before)
        return noise

    def finish(self, gradients, n, state=None):
        if not self.noise_multiplier:
            return gradients
        if not isinstance(state, Noise):
            raise ValueError(
                "ClippedMean draws its noise from the state of one model. "
                "Expected finish(gradients, n, state) with what make_state() "
                f"returned. Received: state={state!r}"
            )
        deviation = self.noise_multiplier * self.clip_norm
        noisy = []
        for gradient in gradients:
            if gradient is None:
                noisy.append(None)
                continue
            gradient = tf.convert_to_tensor(gradient)
            noise = state.normal(gradient, deviation)
            noisy.append(gradient + noise / tf.cast(n, gradient.dtype))
        return noisy

    @property
    def log_metrics(self):
        return {
            "clipped_fraction": keras.metrics.Mean,
            "nonfinite_samples": keras.metrics.Sum,
        }

    def statistics(self, norms):
        finite = is_finite(norms)
        clipped = tf.logical_and(finite, norms > self.clip_norm)
        return {
            "clipped_fraction": tf.reduce_mean(tf.cast(clipped, norms.dtype)),
            "nonfinite_samples": tf.reduce_sum(
                tf.cast(tf.logical_not(finite), norms.dtype)
            ),
        }

    def get_config(self):
        return {
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "seed": self.seed,
        }


def is_finite(norms):
    """Which norms are neither NaN nor infinite.

    They are never negative, so one comparison tells, and that is an op which
    Metal has; `tf.math.is_finite` would run on the CPU.
    """
    return norms < tf.constant(math.inf, norms.dtype)


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _integer(seed):
    try:
        return None if seed is None else operator.index(seed)
    except TypeError:
        raise ValueError(
            f"`seed` must be an integer or None. Received: seed={seed!r}"
        ) from None


aggregations = Registry("aggregation", Aggregation)
aggregations.register("mean", Mean)
aggregations.register("clipped_mean", ClippedMean)


def register_aggregation(name):
    """Class decorator: makes an `Aggregation` subclass known by `name`.

    Example:

    >>> import keras_pergrad as kpg
    >>> import tensorflow as tf
    >>> @kpg.register_aggregation("normalized_mean")
    ... class NormalizedMean(kpg.Aggregation):
    ...     def weights(self, norms):
    ...         return tf.math.divide_no_nan(1.0, norms)
    """
    return aggregations.register(name)
