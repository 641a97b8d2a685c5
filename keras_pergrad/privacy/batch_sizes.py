"""The comparison of batch sizes, before a private training."""

import dataclasses
from typing import Any

import numpy as np

from keras_pergrad.common.text import text_page
from keras_pergrad.privacy.accounting import compute_epsilon
from keras_pergrad.privacy.clipping_variants import AdaptiveClippedMean
from keras_pergrad.privacy.plan import Plan
from keras_pergrad.privacy.settings import Settings

_COLUMNS = (
    "batch size",
    "epochs",
    "steps",
    "noise multiplier",
    "noise in the mean",
    "epsilon",
)


@dataclasses.dataclass(frozen=True)
class BatchSizePlan:
    """What a private training plans with one batch size.

    Attributes:
        batch_size: the expected number of examples in a batch.
        epochs: how many epochs it takes.
        steps: how many steps these have.
        noise_multiplier: the noise's standard deviation over the clip norm;
            of a schedule the root mean square over the steps.
        mean_noise: the standard deviation of the noise in each entry of the
            mean gradient, over the clip norm: `noise_multiplier / batch_size`
            with independent noise.
        epsilon: what all steps spend, with what was spent before.
    """

    batch_size: int
    epochs: float
    steps: int
    noise_multiplier: float
    mean_noise: float
    epsilon: float


@dataclasses.dataclass(frozen=True)
class BatchSizeComparison:
    """A private training with several batch sizes; print it for a table.

    Attributes:
        rows: a `BatchSizePlan` for each batch size, in the order given.
        delta: the probability with which epsilon need not hold.
    """

    rows: tuple[BatchSizePlan, ...]
    delta: float

    def __str__(self) -> str:
        rows = [
            [
                f"{row.batch_size}",
                f"{row.epochs:.4g}",
                f"{row.steps}",
                f"{row.noise_multiplier:.4g}",
                f"{row.mean_noise:.4g}",
                f"{row.epsilon:.4g}",
            ]
            for row in self.rows
        ]
        note = (
            "noise in the mean: the standard deviation in each entry of the "
            "mean gradient of a step, in units of the clip norm"
        )
        title = f"Private training with other batch sizes, delta {self.delta:g}"
        return text_page(title, _COLUMNS, rows, notes=[note])


def compare_batch_sizes(
    settings: Settings, batch_sizes: Any
) -> BatchSizeComparison:
    """Return what is planned for `settings` with each of some batch sizes."""
    if np.ndim(batch_sizes) != 1 or not len(batch_sizes):
        raise ValueError(
            "`batch_sizes` must be a list of one batch size or more. "
            f"Received: batch_sizes={batch_sizes!r}"
        )
    if settings.planned_steps is None:
        raise ValueError(
            "Batch sizes are compared over a planned training. Expected "
            "PrivateTraining with `epochs` or `steps`. Received: neither"
        )
    changed = [settings.with_batch_size(size) for size in batch_sizes]
    return BatchSizeComparison(tuple(map(_row, changed)), settings.delta)


def _row(settings):
    plan, steps = Plan.of(settings), settings.planned_steps
    m = plan.mechanism
    multiplier = noise = _root_mean_square(m.noise(0, steps))
    if isinstance(plan.clipping, AdaptiveClippedMean):
        noise = plan.clipping.gradient_noise
    if m.strategy is not None:
        noise *= float(np.sqrt(np.mean(m.strategy.variances(steps))))
    return BatchSizePlan(
        batch_size=m.batch_size,
        epochs=steps / m.steps_per_epoch,
        steps=steps,
        noise_multiplier=multiplier,
        mean_noise=noise / m.batch_size,
        epsilon=compute_epsilon((*settings.spent, (m, steps)), settings.delta),
    )


def _root_mean_square(values):
    if np.ptp(values) == 0:  # without rounding
        return float(values[0])
    return float(np.sqrt(np.mean(values**2)))
