"""Clipping whose norm need not be tuned."""

import copy
import math
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_pergrad.aggregations.aggregation import aggregations, is_finite
from keras_pergrad.aggregations.clipping import (
    ClippedMean,
    Schedule,
    is_schedule,
)
from keras_pergrad.common.arguments import (
    number_from,
    positive_number,
    probability,
)
from keras_pergrad.keras_internals.replicas import replicas


class AutomaticClippedMean(ClippedMean):
    """The mean of per-sample gradients, each brought to about the same norm.

    ```
    g_i ← g_i · clip_norm / (‖g_i‖ + gamma)      for each sample i
    ```

    Bu et al., "Automatic clipping", arXiv 2206.07136. A change of `clip_norm`
    acts like one of the learning rate, so `clip_norm` need not be tuned. All
    else is as in `ClippedMean`; `clipped_fraction` counts norms above
    `clip_norm`.

    Args:
        clip_norm: the norm that large gradients get; no sample keeps more.
        noise_multiplier, seed, per, expected_batch_size: as for
            `ClippedMean`.
        gamma: a positive number; gradients whose norms are much smaller stay
            smaller.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Vectorized(kpg.privacy.AutomaticClippedMean(1.0))
    """

    def __init__(
        self,
        clip_norm: float | Schedule = 1.0,
        *,
        noise_multiplier: float | Schedule = 0.0,
        seed: int | None = None,
        per: Literal["model", "layer", "variable"] = "model",
        expected_batch_size: float | None = None,
        gamma: float = 0.01,
    ):
        super().__init__(
            clip_norm,
            noise_multiplier=noise_multiplier,
            seed=seed,
            per=per,
            expected_batch_size=expected_batch_size,
        )
        if self.clip_norm == math.inf:
            raise ValueError(
                "`clip_norm` must be finite: gradients are scaled to it. "
                f"Received: clip_norm={clip_norm!r}"
            )
        self.gamma: float = positive_number("gamma", gamma)

    def _scales(self, norms, limit):
        return limit / (norms + self.gamma)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gamma": self.gamma}


class AdaptiveClippedMean(ClippedMean):
    """The mean of per-sample gradients, clipped at a quantile of their norms.

    ```
    b   ← ½ + (Σ_i (1[‖g_i‖ ≤ C] − ½) + N(0, count_noise²)) / n
    C   ← C · exp(−clip_rate · (b − quantile))
    ```

    Andrew et al., "Differentially private learning with adaptive clipping",
    arXiv 1905.03871. C belongs to the compiled model, as
    `aggregation_state.clip`, and is saved with its weights; it is `clip_norm`
    in the logs. The count of each step is one more query of the data.
    `noise_multiplier` covers both queries together; the gradients have the
    somewhat larger multiplier

    ```
    z = (noise_multiplier⁻² − (2 · count_noise)⁻²)^(−½)
    ```

    Args:
        clip_norm: what C is at first, a positive finite number.
        noise_multiplier, seed: as for `ClippedMean`; a number.
        expected_batch_size: as for `ClippedMean`; it replaces n.
        quantile: the fraction of samples that C should leave unclipped.
        clip_rate: how fast C adapts, about 0.2.
        count_noise: the standard deviation of the noise of the count, more
            than noise_multiplier / 2. None: a twentieth of
            `expected_batch_size`, at least noise_multiplier, as in the paper;
            0 without noise.

    Raises:
        ValueError: an argument is out of range.

    Example:

    >>> import keras_pergrad as kpg
    >>> mode = kpg.Vectorized(kpg.privacy.AdaptiveClippedMean(quantile=0.5))
    """

    def __init__(
        self,
        clip_norm: float = 0.1,
        *,
        noise_multiplier: float = 0.0,
        seed: int | None = None,
        expected_batch_size: float | None = None,
        quantile: float = 0.5,
        clip_rate: float = 0.2,
        count_noise: float | None = None,
    ):
        super().__init__(
            clip_norm,
            noise_multiplier=noise_multiplier,
            seed=seed,
            expected_batch_size=expected_batch_size,
        )
        self.changes = True
        for name in ("clip_norm", "noise_multiplier"):
            value = getattr(self, name)
            if is_schedule(value) or math.isinf(value):
                raise ValueError(
                    f"`{name}` must be a finite number: the clip is not "
                    f"known beforehand. Received: {name}={value!r}"
                )
        self.quantile: float = probability("quantile", quantile)
        self.clip_rate: float = number_from("clip_rate", clip_rate, 0)
        self.count_noise = count_noise
        if (
            self.adds_noise
            and not 2 * self._count_deviation > self.noise_multiplier
        ):
            raise ValueError(
                "`count_noise` must be more than noise_multiplier / 2, since "
                "the noise of both together must equal `noise_multiplier`. "
                f"Received: count_noise={count_noise!r}, "
                f"noise_multiplier={noise_multiplier!r}"
            )
        if self._count_deviation and not self.adds_noise:
            raise ValueError(
                "`count_noise` needs a `noise_multiplier` above 0. "
                f"Received: count_noise={count_noise!r}, noise_multiplier=0"
            )

    @property
    def _count_deviation(self):
        """The standard deviation of the noise of the count."""
        if self.count_noise is not None or not self.adds_noise:
            return float(self.count_noise or 0.0)
        size = self.expected_batch_size or 0
        return max(size / 20, self.noise_multiplier)

    @property
    def gradient_noise(self) -> float:
        """The noise multiplier of the gradients alone."""
        if not self.adds_noise:
            return 0.0
        count_precision = (2 * self._count_deviation) ** -2
        return (self.noise_multiplier**-2 - count_precision) ** -0.5

    def kept(self) -> dict[str, float]:
        return {"clip": self.clip_norm, "below": 0.0, "seen": 0.0}

    def at(self, state: Any) -> "AdaptiveClippedMean":
        current = copy.copy(self)
        current.clip_norm = tf.convert_to_tensor(self._own(state).clip)
        return current

    def observe(self, norms: tf.Tensor, state: Any) -> None:
        """Count the samples whose norms C leaves as they are."""
        state = self._own(state)
        below = is_finite(norms) & (norms <= tf.cast(state.clip, norms.dtype))
        state.advance("below", tf.reduce_sum(tf.cast(below, "float32")))
        state.advance("seen", tf.cast(tf.size(norms), "float32"))

    def finish(
        self, gradients: list[Any], n: Any, state: Any = None
    ) -> list[Any]:
        state = self._own(state)
        current = self.at(state)
        current.noise_multiplier = self.gradient_noise
        # This state counts no steps: it has no schedule to go on with.
        current.changes = False
        gradients = ClippedMean.finish(current, gradients, n, state=state)
        self._adapt_clip(state, len(gradients))
        return gradients

    def noise_variance(self, n: Any, state: Any = None) -> Any:
        current = copy.copy(self)
        current.noise_multiplier = self.gradient_noise
        return ClippedMean.noise_variance(current, n, state)

    def _adapt_clip(self, state, index):
        """Move the clip towards the quantile, and forget the counts.

        `index`: of the noise of the count, after those of the gradients.
        """
        below, seen = state.below, state.seen
        # ±½ for each sample: one sample changes the count by ½, not by 1, so
        # the noise hides twice as well.
        centered_count = tf.convert_to_tensor(below) - seen / 2
        if self._count_deviation:
            scalar = tf.zeros([], "float32")
            noise = state.gradient_noise(index, scalar, self._count_deviation)
            centered_count += replicas.from_first_replica([noise])[0]
        # The expected size, where it is given: the true one tells of the data.
        size = self.expected_batch_size
        if not size:
            size = tf.maximum(tf.convert_to_tensor(seen), 1)
        fraction = 0.5 + centered_count / size
        factor = tf.exp(-self.clip_rate * (fraction - self.quantile))
        state.clip.assign(state.clip * factor)
        below.assign(tf.zeros([], "float32"))
        seen.assign(tf.zeros([], "float32"))

    @property
    def log_metrics(self) -> dict[str, type[keras.metrics.Metric]]:
        return {**super().log_metrics, "clip_norm": keras.metrics.Mean}

    def statistics(self, norms: tf.Tensor) -> dict[str, tf.Tensor]:
        statistics = super().statistics(norms)
        return {**statistics, "clip_norm": tf.identity(self.clip_norm)}

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["per"]
        return {
            **config,
            "quantile": self.quantile,
            "clip_rate": self.clip_rate,
            "count_noise": self.count_noise,
        }


aggregations.register("automatic_clipped_mean", AutomaticClippedMean)
aggregations.register("adaptive_clipped_mean", AdaptiveClippedMean)
