"""What the charts show, for matplotlib and for the page alike."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a chart; `low` and `high` bound a band around it."""

    label: str
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines over the steps.

    Attributes:
        title: of the chart.
        note: what the reader should know to read it.
        lines: those with any finite value.
        logarithmic: whether the values span orders of magnitude.
    """

    title: str
    note: str
    lines: list[Line]
    logarithmic: bool


def charts(comparison):
    """The four charts: norm, distances, variance, cosine."""
    data = comparison.data
    norm, sd = data["norm"], data["norm_sd"]
    low = data["variance_low"], data["variance_high"]
    drawn = [
        (
            "Gradient norm",
            "Mean ± one standard deviation, each seed counted once.",
            [Line("mean", norm, np.maximum(norm - sd, 0), norm + sd)],
            True,
        ),
        (
            "How far apart two runs are",
            "Distance over the gradient's norm. Batches: of the probe's "
            "size, at equal weights.",
            [
                Line("runs", data["distance"]),
                Line("batches", data["sampling_distance"]),
                Line("repeats", data["repeat_distance"]),
            ],
            True,
        ),
        (
            "Variance between runs",
            "Trace of the covariance with its 95 % interval; sampling: of "
            "one batch's gradient.",
            [
                Line("between runs", data["variance"], *low),
                Line("sampling", data["sampling_variance"]),
            ],
            True,
        ),
        (
            "Cosine between runs",
            "1 is the same direction.",
            [
                Line("mean", data["cosine"]),
                Line("least", data["cosine_min"]),
            ],
            False,
        ),
    ]
    return [
        Chart(title, note, kept, wide and _wide(kept))
        for title, note, lines, wide in drawn
        if (kept := [li for li in lines if np.isfinite(li.values).any()])
    ]


def _wide(lines):
    """Whether the positive values need a logarithmic axis."""
    shown = [
        part
        for line in lines
        for part in (line.values, line.low, line.high)
        if part is not None
    ]
    values = np.concatenate(shown)
    values = values[np.isfinite(values) & (values > 0)]
    return bool(len(values)) and values.max() > 20 * values.min()
