"""Means of clipped per-sample gradients, with noise."""

import copy
import math
from collections.abc import Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import (
    Aggregation,
    DefinedMean,
    aggregations,
    is_finite,
    of_samples,
)
from keras_pergrad.common.arguments import (
    number_from,
    positive_number,
    require_one_of,
    seed_or_none,
)
from keras_pergrad.common.registry import serialize
from keras_pergrad.keras_internals.state.saved import AggregationState

PER = ("model", "layer", "variable")
#: A part of the clip norm, 16 units in the last place of float32, left for the
#: rounding of norms and of weighted sums.
ROOM = 2.0**-20
Schedule = keras.optimizers.schedules.LearningRateSchedule
_OR_A_SCHEDULE = " or a keras.optimizers.schedules.LearningRateSchedule"


class ClippedMean(Aggregation):
    """The mean of per-sample gradients, each clipped to a norm, plus noise.

    ```
    g_i ← g_i · min(1, clip_norm / ‖g_i‖)      for each sample i
    g   ← mean_i(g_i) + N(0, (noise_multiplier · clip_norm / n)²)
    ```

    Abadi et al., "Deep learning with differential privacy", arXiv 1607.00133.
    A sample whose gradient holds NaN or infinity contributes zero and is
    counted in the logs as `nonfinite_samples`. If the loss scale is above 1,
    the optimizer also skips the step and lowers the scale, as in Keras.

    Args:
        clip_norm: the largest norm of a sample's gradient, over all trainable
            variables, after clipping; positive, may be infinite. Or a
            `keras.optimizers.schedules.LearningRateSchedule`, a function of
            the number of updates so far.
        noise_multiplier: the noise's standard deviation in units of
            clip_norm / n; 0 for none; or a schedule.
        seed: an integer makes the noise repeatable: each model starts at its
            beginning. The position in the noise belongs to the compiled model
            and is saved with its weights. After a restart, or another
            compile(), training continues with noise not used before.
        per: what each norm covers: "model", all trainable variables; "layer",
            those of one layer; "variable", one variable. Each of G groups is
            clipped to clip_norm / √G, so the whole has at most the norm
            clip_norm (McMahan et al., arXiv 1710.06963).
        expected_batch_size: the sum is divided by it instead of n, the number
            of samples that happen to be in the batch. The noise is then in
            units of clip_norm / expected_batch_size.

    | case | what happens |
    |---|---|
    | `clip_norm <= 0` or NaN | ValueError |
    | `clip_norm = inf` | nothing is clipped; noise must be 0 |
    | a gradient of norm 0 | stays 0 |
    | a gradient with NaN or infinity | contributes 0, is counted |
    | no sample, `expected_batch_size` given | the noise alone |

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> aggregation = kpg.ClippedMean(clip_norm=1.0, noise_multiplier=1.1)
    >>> mode = kpg.Vectorized(aggregation=aggregation)
    """

    limits_norms = True

    def __init__(
        self,
        clip_norm: float | Schedule,
        *,
        noise_multiplier: float | Schedule = 0.0,
        seed: int | None = None,
        per: Literal["model", "layer", "variable"] = "model",
        expected_batch_size: float | None = None,
    ):
        self.clip_norm: Any = _schedule(clip_norm) or positive_number(
            "clip_norm", clip_norm, _OR_A_SCHEDULE, infinite=True
        )
        self.noise_multiplier: Any = _schedule(noise_multiplier) or number_from(
            "noise_multiplier",
            noise_multiplier,
            0,
            alternative=_OR_A_SCHEDULE,
        )
        if self.noise_multiplier and self.clip_norm == math.inf:
            raise ValueError(
                "Noise is measured in units of `clip_norm`, which must be "
                f"finite then. Received: clip_norm={clip_norm!r}, "
                f"noise_multiplier={noise_multiplier!r}"
            )
        self.seed: int | None = seed_or_none(seed)
        require_one_of("per", per, PER)
        self.per: Literal["model", "layer", "variable"] = per
        if expected_batch_size is not None:
            size = positive_number(
                "expected_batch_size", expected_batch_size, " or None"
            )
            expected_batch_size = int(size) if size.is_integer() else size
        self.expected_batch_size: float | None = expected_batch_size
        # A schedule counts as true, even where its value is 0 at times.
        #: Whether noise is added at some step.
        self.adds_noise: bool = bool(self.noise_multiplier)
        #: Whether the numbers of a step depend on the steps before.
        self.changes: bool = is_schedule(self.clip_norm) or is_schedule(
            self.noise_multiplier
        )

    def groups(self, variables: Sequence[keras.Variable]) -> list[int] | None:
        if self.per == "model":
            return None
        if self.per == "variable":
            return list(range(len(variables)))
        names = [variable.path.rpartition("/")[0] for variable in variables]
        unique_names = list(dict.fromkeys(names))
        return [unique_names.index(name) for name in names]

    def at(self, state: Any) -> "ClippedMean":
        if not self.changes:
            return self
        current = copy.copy(self)
        steps = self._own(state).steps
        current.clip_norm = _at_step(self.clip_norm, steps)
        current.noise_multiplier = _at_step(self.noise_multiplier, steps)
        return current

    def weights(self, norms: tf.Tensor) -> tf.Tensor:
        limit = self._limit(norms)
        if norms.dtype == tf.float32:
            limit *= 1 - ROOM
        weights = self._scales(norms, limit)
        return tf.where(_is_finite(norms), weights, tf.zeros_like(norms))

    def _scales(self, norms, limit):
        """Return the weights of samples with finite norms."""
        if isinstance(limit, float):  # infinite
            return tf.ones_like(norms)
        return limit / tf.maximum(norms, limit)

    def _limit(self, norms):
        """Return the bound of each norm, as a tensor, or infinity."""
        if not tf.is_tensor(self.clip_norm) and math.isinf(self.clip_norm):
            return math.inf
        limit = _of_dtype(self.clip_norm, norms.dtype)
        if norms.shape.rank > 1:
            limit *= tf.math.rsqrt(tf.cast(tf.shape(norms)[1], norms.dtype))
        return limit

    def make_state(self, before: Any = None) -> Any:
        if not self.adds_noise and not self.changes:
            return None
        state = AggregationState(self.seed, **self.kept())
        if isinstance(before, AggregationState):
            state.resume_from(before)
        return state

    def kept(self) -> dict[str, float]:
        """Return a model's state other than the noise, values by name."""
        return {"steps": 0} if self.changes else {}

    def _own(self, state):
        if isinstance(state, AggregationState):
            return state
        raise ValueError(
            f"{type(self).__name__} draws its noise from the state of one "
            "model. Expected finish(gradients, n, state) with what "
            f"make_state() returned. Received: state={state!r}"
        )

    def finish(
        self, gradients: list[Any], n: Any, state: Any = None
    ) -> list[Any]:
        if self.changes:
            self._own(state).advance_schedules()
        size = self.expected_batch_size
        if not self.adds_noise and size is None:
            return gradients
        deviation = self.noise_multiplier * self.clip_norm
        noisy = []
        for k, gradient in enumerate(gradients):
            if gradient is None:
                noisy.append(None)
                continue
            gradient = tf.convert_to_tensor(gradient)
            divisor = _of_dtype(n if size is None else size, gradient.dtype)
            if size is not None:
                # From a mean over n samples to the sum over the expected size.
                # The mean over no sample is NaN where some op divides by n.
                share = tf.cast(n, gradient.dtype) / divisor
                gradient = tf.math.multiply_no_nan(gradient, share)
            if self.adds_noise:
                noise = self._own(state).gradient_noise(k, gradient, deviation)
                gradient += noise / divisor
            noisy.append(gradient)
        return noisy

    def noise_variance(self, n: Any, state: Any = None) -> Any:
        if not self.adds_noise:
            return 0.0
        current, dtype = self.at(state), keras.config.floatx()
        deviation = _of_dtype(current.noise_multiplier, dtype)
        deviation *= _of_dtype(current.clip_norm, dtype)
        size = self.expected_batch_size
        size = _of_dtype(n if size is None else size, dtype)
        factor = self._own(state).noise_variance()
        return tf.square(deviation / size) * _of_dtype(factor, dtype)

    @property
    def log_metrics(self) -> dict[str, type[keras.metrics.Metric]]:
        return {
            "clipped_fraction": DefinedMean,
            "nonfinite_samples": keras.metrics.Sum,
        }

    def statistics(self, norms: tf.Tensor) -> dict[str, tf.Tensor]:
        finite = _is_finite(norms)
        clipped = tf.logical_and(finite, norms > self._limit(norms))
        return {
            "clipped_fraction": tf.reduce_mean(tf.cast(clipped, norms.dtype)),
            "nonfinite_samples": tf.reduce_sum(
                1 - tf.cast(finite, norms.dtype)
            ),
        }

    def get_config(self) -> dict[str, Any]:
        return {
            "clip_norm": _schedule_config(self.clip_norm),
            "noise_multiplier": _schedule_config(self.noise_multiplier),
            "seed": self.seed,
            "per": self.per,
            "expected_batch_size": self.expected_batch_size,
        }


def _is_finite(norms):
    """Which samples have finite norms, to meet `norms`, (n,) or (n, groups)."""
    finite = is_finite(of_samples(norms))
    return finite if norms.shape.rank == 1 else finite[:, None]


def is_schedule(value: Any) -> bool:
    """Whether it is a function of the number of updates so far."""
    return isinstance(value, keras.optimizers.schedules.LearningRateSchedule)


def _schedule(value) -> Any:
    """Return a schedule, or the schedule of a config dict; else None."""
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    return value if is_schedule(value) else None


def _of_dtype(value, dtype):
    # A cast would take a Python number through single precision.
    if tf.is_tensor(value):
        return tf.cast(value, dtype)
    return tf.constant(value, dtype)


def _schedule_config(value):
    return serialize(value) if is_schedule(value) else value


def _at_step(value, steps):
    if not is_schedule(value):
        return value
    return tf.convert_to_tensor(value(tf.convert_to_tensor(steps)))


aggregations.register("clipped_mean", ClippedMean)
