"""The report of a comparison: its tables and charts, and its text.

To add a figure, add a column to `COLUMNS`, or a line to a chart in `CHARTS`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_pergrad.common import tables
from keras_pergrad.runs.alignment import evenly
from keras_pergrad.runs.findings import share
from keras_pergrad.runs.step_statistics import MEANINGS

_MOST_ROWS = 12


class Column(NamedTuple):
    """A column of a table: its head, and a cell's text from what a row shows.

    The glossary has its `meaning`, by default that of the figure of its name.
    """

    head: str
    cell: Callable
    meaning: str | None = None
    wide: bool = False  # only the page has room for it


class Line(NamedTuple):
    """One line of a chart: figures by name, or functions of all of them."""

    label: str
    values: str
    low: str | Callable | None = None
    high: str | Callable | None = None


class Chart(NamedTuple):
    """Lines over the steps, and what the reader should know to read them."""

    title: str
    note: str
    lines: tuple[Line, ...]
    logarithmic: bool = True


def number(value, figures=3):
    """Return a number to some figures; a dash for none."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    return f"{float(f'{value:.{figures}g}'):g}"  # 160, not 1.6e+02


def _with_interval(at):
    if not at["variance"] > 0:
        return number(at["variance"])
    low, high = number(at["variance_low"], 2), number(at["variance_high"], 2)
    return f"{number(at['variance'])} [{low}, {high}]"


def _cosine(value):
    return "–" if np.isnan(value) else f"{value:.3f}"


def _step(d, step):
    if d.first_step is None:
        return "–"
    return "never" if step is None else str(step)


def _sized(variables):
    return ", ".join(f"{path} ({share(v)})" for path, v in variables) or "–"


def _plain(value):
    if isinstance(value, dict):
        value = ", ".join(f"{k}={v}" for k, v in value.items()) or None
    return "–" if value is None else str(value)


def _norm(at):
    return f"{number(at['norm'])} ± {number(at['norm_sd'], 2)}"


_INTERVAL = " In brackets: its 95 % interval, as if normally distributed."
_SAMPLING = (
    "Variance of one batch's gradient at equal weights, over that between "
    "runs: a yardstick and not a cause. Near 100 %, runs differ no more than "
    "batches do; near 0, their weights have gone to other places."
)
# fmt: off
COLUMNS = (
    Column("step", lambda at: str(at["step"])),
    Column("runs", lambda at: str(at["runs"]), wide=True),
    Column("norm ± sd", _norm, f"{MEANINGS['norm']} {MEANINGS['norm_sd']}"),
    Column("distance", lambda at: share(at["distance"])),
    Column("repeats", lambda at: share(at["repeat_distance"]),
           MEANINGS["repeat_distance"]),
    Column("variance [95 %]", _with_interval, MEANINGS["variance"] + _INTERVAL),
    Column("sampling", lambda at: share(at["sampling_share"]), _SAMPLING),
    Column("cosine", lambda at: _cosine(at["cosine"])),
    Column("least cosine", lambda at: _cosine(at["cosine_min"]),
           MEANINGS["cosine_min"], wide=True),
)
#: The other tables of the page: of two groups, of a set of runs, of a run.
GROUPS = (
    Column("groups", lambda e: f"{e.first} – {e.second}"),
    Column("runs of each", lambda e: f"{e.counts[0]}, {e.counts[1]}"),
    Column("apart", lambda e: share(e.distance),
           "Distance between runs of the two groups, over the norm."),
    Column("inside", lambda e: f"{share(e.floor)} ({e.yardstick or 'none'})",
           "The yardstick: the distance of repeats or, without any, of seeds."),
    Column("ratio", lambda e: number(e.ratio),
           "The distance apart over that inside; 1 is no effect."),
    Column("p", lambda e: number(np.nan if e.probability is None
                                 else e.probability),
           "How likely chance makes such a ratio; below 0.05 groups differ."),
    Column("equal seeds", lambda e: "yes" if e.paired else "no",
           "Whether only runs of equal seeds were compared."),
)
SETS = (
    Column("set", lambda d: d.common or "all runs"),
    Column("count", lambda d: str(len(d.runs)), "How many runs it has."),
    Column("first bit", lambda d: _step(d, d.differ_step),
           "The first step at which gradients of the set differ in any bit."),
    Column("parted", lambda d: _step(d, d.step),
           "The first step at which a variable differs beyond the tolerance."),
    Column("variables, largest first", lambda d: _sized(d.variables),
           "Those that differ at that step, and by how much of their norm."),
    Column("odd run", lambda d: d.odd or "–",
           "A run far from the others then, which are near each other."),
)
RUNS = (
    Column("run", lambda run: run["label"]),
    *[Column(head, lambda run, key=head: _plain(run[key.replace(" ", "_")]))
      for head in ("name", "seed", "device", "mode", "records", "last step",
                   "tags")],
)
# fmt: on
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
        "Trace of the covariance, with its 95 % interval where that ends "
        "below four times the value: it takes four seeds or more. Sampling: "
        "of one batch's gradient.",
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
    """Return what `print` shows: the answer, what it rests on, the table."""
    c = comparison
    shown = [column for column in COLUMNS if not column.wide]
    heads, lines = table(shown, at_steps(c, _MOST_ROWS))
    return "\n".join(
        [
            f"{len(c.runs)} runs of {', '.join(size(c))}",
            *tables.bullets([c.answer], "="),
            *tables.bullets(c.verdict),
            "",
            *tables.as_text(heads, lines),
            *tables.bullets(left_out(c, _MOST_ROWS), "*"),
            "distance, repeats: of two runs, over the gradient's norm",
            "sampling: variance between batches at equal weights over that "
            "between",
            "runs, at most 100 %: a yardstick and not a cause",
            *tables.bullets(c.notes, "*"),
        ]
    )


def size(comparison):
    """Say how many seeds and steps there are."""
    counts = {"seed": comparison.seeds, "step": len(comparison.data["step"])}
    return [f"{n} {what}{'s' if n > 1 else ''}" for what, n in counts.items()]


def table(columns, items):
    """Return the heads and the rows of a table, one row an item."""
    heads = [column.head for column in columns]
    return heads, [[column.cell(item) for column in columns] for item in items]


def meanings(columns):
    """Return what each heading means that is not plain."""
    words = {c.head: c.meaning or MEANINGS.get(c.head) for c in columns}
    return {head: text for head, text in words.items() if text}


def at_steps(comparison, most):
    """Return the figures at up to `most` steps, evenly spread."""
    data = comparison.data
    chosen = evenly(len(data["step"]), most)
    return [{name: values[t] for name, values in data.items()} for t in chosen]


def left_out(comparison, most):
    """Say that the table lacks some steps, if it does."""
    count = len(comparison.data["step"])
    if count > most:
        yield (
            f"The table shows {most} of {count} steps; `comparison.data` has "
            "all."
        )
