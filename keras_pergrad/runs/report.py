"""The report of a comparison: its columns and charts, and its text.

To add a figure, add an entry to `COLUMNS`, or a line to a chart in `CHARTS`.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_pergrad.common import tables
from keras_pergrad.runs.alignment import evenly
from keras_pergrad.runs.findings import share

_MOST_ROWS = 12


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table of steps.

    Attributes:
        head: its name.
        cell: gives its text from a dict of the figures at one step.
        wide: whether only the page has room for it.
    """

    head: str
    cell: Callable
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a chart: figures by name, or functions of all of them."""

    label: str
    values: str
    low: str | Callable | None = None
    high: str | Callable | None = None


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines over the steps.

    Attributes:
        title: of the chart.
        note: what the reader should know to read it.
        lines: a tuple of `Line`.
        logarithmic: whether the values may span orders of magnitude.
    """

    title: str
    note: str
    lines: tuple[Line, ...]
    logarithmic: bool = True


def number(value, figures=3):
    """Return a number to some figures; a dash for none."""
    return "–" if np.isnan(value) else f"{value:.{figures}g}"


def _with_interval(at):
    if not at["variance"] > 0:
        return number(at["variance"])
    low, high = number(at["variance_low"], 2), number(at["variance_high"], 2)
    return f"{number(at['variance'])} [{low}, {high}]"


def _cosine(value):
    return "–" if np.isnan(value) else f"{value:.3f}"


COLUMNS = (
    Column("step", lambda at: str(at["step"])),
    Column("runs", lambda at: str(at["runs"]), wide=True),
    Column(
        "norm ± sd",
        lambda at: f"{number(at['norm'])} ± {number(at['norm_sd'], 2)}",
    ),
    Column("distance", lambda at: share(at["distance"])),
    Column("repeats", lambda at: share(at["repeat_distance"])),
    Column("variance [95 %]", _with_interval),
    Column("sampling", lambda at: share(at["sampling_share"])),
    Column("cosine", lambda at: _cosine(at["cosine"])),
    Column("least cosine", lambda at: _cosine(at["cosine_min"]), wide=True),
)
CHARTS = (
    Chart(
        "Gradient norm",
        "Mean ± one standard deviation, each seed counted once.",
        (
            Line(
                "mean",
                "norm",
                lambda data: np.maximum(data["norm"] - data["norm_sd"], 0),
                lambda data: data["norm"] + data["norm_sd"],
            ),
        ),
    ),
    Chart(
        "Distance between two runs",
        "Over the gradient's norm. Batches: of the probe's size, at equal "
        "weights.",
        (
            Line("runs", "distance"),
            Line("batches", "sampling_distance"),
            Line("repeats", "repeat_distance"),
        ),
    ),
    Chart(
        "Variance between runs",
        "Trace of the covariance with its 95 % interval; sampling: of one "
        "batch's gradient.",
        (
            Line("between runs", "variance", "variance_low", "variance_high"),
            Line("sampling", "sampling_variance"),
        ),
    ),
    Chart(
        "Cosine between runs",
        "1 is the same direction.",
        (Line("mean", "cosine"), Line("least", "cosine_min")),
        logarithmic=False,
    ),
)


def text(comparison):
    """Return what `print` shows: what was found, then the table."""
    c = comparison
    shown = [column for column in COLUMNS if not column.wide]
    lines = [
        f"{len(c.runs)} runs of {seeds(c)}, {steps(c)}",
        *tables.bullets(c.verdict),
        "",
        *tables.as_text(
            [column.head for column in shown], rows(c, shown, _MOST_ROWS)
        ),
    ]
    lines += tables.bullets(left_out(c, _MOST_ROWS), "*")
    lines += [
        "distance, repeats: of two runs, over the gradient's norm",
        "sampling: variance between batches at equal weights over that between",
        "runs, at most 100 %: a yardstick and not a cause",
        *tables.bullets(c.notes, "*"),
    ]
    return "\n".join(lines)


def seeds(comparison):
    """Say how many seeds there are."""
    return f"{comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}"


def steps(comparison):
    """Say how many steps there are."""
    count = len(comparison.data["step"])
    return f"{count} step{'s' if count > 1 else ''}"


def rows(comparison, columns, most):
    """Return the table's cells at up to `most` steps, evenly spread."""
    data = comparison.data
    chosen = evenly(len(data["step"]), most)
    found = [{name: v[t] for name, v in data.items()} for t in chosen]
    return [[column.cell(at) for column in columns] for at in found]


def left_out(comparison, most):
    """Say that the table lacks some steps, if it does."""
    count = len(comparison.data["step"])
    if count > most:
        yield (
            f"The table shows {most} of {count} steps; `comparison.data` has "
            "all."
        )
