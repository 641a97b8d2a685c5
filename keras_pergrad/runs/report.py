"""The report of a comparison: its tables and charts, its text and its page.

To add a figure, add a column to `COLUMNS`, or a line to one of the `charts`.
"""

from collections.abc import Callable
from html import escape
from typing import NamedTuple

import numpy as np

from keras_pergrad.common import text as tables
from keras_pergrad.common.page import bullet_list, figure, main, whole
from keras_pergrad.common.pictures import gallery
from keras_pergrad.runs import drawing
from keras_pergrad.runs.alignment import even_indices
from keras_pergrad.runs.drawing import Line
from keras_pergrad.runs.findings import format_share
from keras_pergrad.runs.step_statistics import MEANINGS

_MAX_ROWS, _MAX_PAGE_ROWS, _MAX_SQUARES = 12, 40, 40


class Column(NamedTuple):
    """A column of a table: its head, and a cell's text from what a row shows.

    The glossary has its `meaning`, by default that of the figure of its name.
    """

    head: str
    cell: Callable
    meaning: str | None = None
    wide: bool = False  # only the page has room for it


def format_number(value, figures=3):
    """Return a number to some figures; a dash for none."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else "∞"
    return f"{float(f'{value:.{figures}g}'):g}"  # 160, not 1.6e+02


def _format_interval(value, low, high):
    low, high = format_number(low, 2), format_number(high, 2)
    return f"{format_number(value)} [{low}, {high}]"


def _format_variance(row):
    if not row["variance"] > 0:
        return format_number(row["variance"])
    names = ("variance", "variance_low", "variance_high")
    return _format_interval(*[row[name] for name in names])


def _format_cosine(value):
    return "–" if np.isnan(value) else f"{value:.3f}"


def _format_step(d, step):
    if d.first_step is None:
        return "–"
    return "never" if step is None else str(step)


def _format_variables(variables):
    return (
        ", ".join(f"{path} ({format_share(v)})" for path, v in variables) or "–"
    )


def _format_field(value):
    if isinstance(value, dict):
        value = ", ".join(f"{k}={v}" for k, v in value.items()) or None
    return "–" if value is None else str(value)


def _format_norm(row):
    return f"{format_number(row['norm'])} ± {format_number(row['norm_sd'], 2)}"


_INTERVAL = " In brackets: its 95 % interval, as if normally distributed."
_SAMPLING = (
    "Variance of one batch's gradient at equal weights, over that between "
    "runs: a reference and not a cause. Near 100 %, runs differ no more than "
    "batches do; near 0, their weights have gone to other places."
)
# fmt: off
COLUMNS = (
    Column("step", lambda row: str(row["step"])),
    Column("runs", lambda row: str(row["runs"]), wide=True),
    Column("norm ± sd", _format_norm,
           f"{MEANINGS['norm']} {MEANINGS['norm_sd']}"),
    Column("distance", lambda row: format_share(row["distance"])),
    Column("repeats", lambda row: format_share(row["repeat_distance"]),
           MEANINGS["repeat_distance"]),
    Column("variance [95 %]", _format_variance,
           MEANINGS["variance"] + _INTERVAL),
    Column("sampling", lambda row: format_share(row["sampling_share"]),
           _SAMPLING),
    Column("cosine", lambda row: _format_cosine(row["cosine"])),
    Column("least cosine", lambda row: _format_cosine(row["cosine_min"]),
           MEANINGS["cosine_min"], wide=True),
)
#: The other tables of the page: of two groups, of a set of runs, of a run.
GROUPS = (
    Column("groups", lambda e: f"{e.first} – {e.second}"),
    Column("runs of each", lambda e: f"{e.counts[0]}, {e.counts[1]}"),
    Column("between", lambda e: format_share(e.distance),
           "Distance between runs of the two groups, over the norm."),
    Column("within",
           lambda e: f"{format_share(e.floor)} ({e.reference or 'none'})",
           "The reference: the distance of repeats or, without any, of seeds."),
    Column("ratio", lambda e: format_number(e.ratio),
           "The distance between over that within; 1 is no effect."),
    Column("p", lambda e: format_number(np.nan if e.probability is None
                                        else e.probability),
           "How likely chance makes such a ratio; below 0.05 groups differ."),
    Column("equal seeds", lambda e: "yes" if e.paired else "no",
           "Whether only runs of equal seeds were compared."),
)
SETS = (
    Column("set", lambda d: d.common or "all runs"),
    Column("count", lambda d: str(len(d.runs)), "How many runs it has."),
    Column("first bit", lambda d: _format_step(d, d.differ_step),
           "The first step at which gradients of the set differ in any bit."),
    Column("diverged", lambda d: _format_step(d, d.step),
           "The first step at which a variable differs beyond the tolerance."),
    Column("variables, largest first", lambda d: _format_variables(d.variables),
           "Those that differ at that step, and by how much of their norm."),
    Column("outlier", lambda d: d.outlier or "–",
           "A run far from the others then, which are near each other."),
)
NOISE = (
    Column("group", lambda s: s.group or "all runs",
           "The runs that have one value of what `by` names."),
    Column("seeds", lambda s: str(s.seeds), "How many seeds the group has."),
    Column("readings", lambda s: str(s.readings),
           "How many readings are averaged: of all its runs and all steps "
           "that were compared."),
    Column("noise scale [95 %]",
           lambda s: _format_interval(s.value, s.low, s.high),
           "Mean of tr Σ over the mean of ‖ḡ‖² − tr Σ / n: about the batch "
           "size above which more samples hardly help. In brackets: its 95 % "
           "interval, a jackknife over seeds or, of one seed, over blocks of "
           "consecutive readings. It is for this probe."),
    Column("first half", lambda s: format_number(s.first_half),
           "The noise scale in the first half of the steps."),
    Column("second half", lambda s: format_number(s.second_half),
           "The same in the second half."),
    Column("jackknife over", lambda s: s.left_out,
           "What is left out in turn to find the interval.", wide=True),
)
RUNS = (
    Column("run", lambda run: run["label"]),
    *[Column(head, lambda run, key=head:
             _format_field(run[key.replace(" ", "_")]))
      for head in ("name", "seed", "device", "mode", "records", "last step",
                   "tags")],
)
# fmt: on
# An interval that is wider, as that of two seeds, would only fill the chart.
_MAX_INTERVAL_RATIO = 4


def charts(data):
    """Return each chart: its title, a note, and its lines over the steps."""
    norm, deviation = data["norm"], data["norm_sd"]
    low, high = np.maximum(norm - deviation, 0), norm + deviation
    return [
        (
            "Gradient norm",
            "Mean ± one standard deviation, each seed counted once.",
            [_with_band("mean", norm, low, high=high)],
        ),
        (
            "Distance between two runs",
            "Over the gradient's norm. Batches: of the probe's size, at equal "
            "weights.",
            [
                Line(data["distance"], "runs"),
                Line(data["sampling_distance"], "batches"),
                Line(data["repeat_distance"], "repeats"),
            ],
        ),
        (
            "Variance between runs",
            "Trace of the covariance, with its 95 % interval where that ends "
            "below four times the value: it takes four seeds or more. "
            "Sampling: of one batch's gradient.",
            [
                _with_band(
                    "between runs",
                    data["variance"],
                    data["variance_low"],
                    high=data["variance_high"],
                ),
                Line(data["sampling_variance"], "sampling"),
            ],
        ),
        (
            "Cosine between runs",
            "1 is the same direction.",
            [Line(data["cosine"], "mean"), Line(data["cosine_min"], "least")],
        ),
    ]


def _with_band(label, values, low, *, high):
    """Return a line with an interval around it where that is narrow."""
    is_narrow = high < _MAX_INTERVAL_RATIO * values
    low, high = (np.where(is_narrow, edge, np.nan) for edge in (low, high))
    return Line(values, label, low, high=high)


def text(comparison):
    """Return what `print` shows: the answer, what it rests on, the table."""
    c = comparison
    return "\n".join(
        [
            f"{len(c.runs)} runs of {', '.join(describe_size(c))}",
            *tables.bullets([c.answer], "="),
            *tables.bullets(c.verdict),
            "",
            *_text_table(COLUMNS, step_rows(c, _MAX_ROWS)),
            *tables.bullets(omission_note(c, _MAX_ROWS), "*"),
            "distance, repeats: of two runs, over the gradient's norm",
            "sampling: variance between batches at equal weights over that "
            "between",
            "runs, at most 100 %: a reference and not a cause",
            *_noise_text(c),
            *tables.bullets(c.notes, "*"),
        ]
    )


def _noise_text(comparison):
    if not comparison.noise_scales:
        return []
    return [
        "",
        "Gradient noise scale, in samples",
        *_text_table(NOISE, comparison.noise_scales, left=["group"]),
        *tables.bullets(noise_notes(comparison), "*"),
        "",
    ]


def _text_table(columns, items, left=()):
    columns = [column for column in columns if not column.wide]
    return tables.as_text(*table(columns, items), left)


def noise_notes(comparison):
    """Say of each noise scale that is not known, or has no limit, why."""
    for scale in comparison.noise_scales:
        who = "All runs" if scale.group is None else scale.group
        if np.isnan(scale.value):
            least = (
                f", but {format_number(scale.low, 2)} samples or more"
                if np.isfinite(scale.low)
                else ""
            )
            yield (
                f"{who}: the mean gradient of {comparison.samples} samples is "
                "not distinguishable from noise, so the noise scale is not "
                f"known{least}. Record more samples (a larger `probe`), more "
                "readings (a smaller `every`) or more seeds."
            )
        elif np.isinf(scale.high):
            yield (
                f"{who}: the interval has no upper end, since a mean gradient "
                "of zero is not ruled out. A larger `probe`, more readings or "
                "more seeds make it narrower."
            )


def describe_size(comparison):
    """Say how many seeds and steps there are."""
    counts = {"seed": comparison.seeds, "step": len(comparison.data["step"])}
    return [f"{n} {noun}{'s' if n > 1 else ''}" for noun, n in counts.items()]


def table(columns, items):
    """Return the heads and the rows of a table, one row an item."""
    heads = [column.head for column in columns]
    return heads, [[column.cell(item) for column in columns] for item in items]


def meanings(columns):
    """Return what each heading means that is not plain."""
    words = {c.head: c.meaning or MEANINGS.get(c.head) for c in columns}
    return {head: text for head, text in words.items() if text}


def step_rows(comparison, most):
    """Return the figures at up to `most` steps, evenly spread."""
    data = comparison.data
    indices = even_indices(len(data["step"]), most)
    return [{name: values[t] for name, values in data.items()} for t in indices]


def omission_note(comparison, most):
    """Say that the table lacks some steps, if it does."""
    count = len(comparison.data["step"])
    if count > most:
        yield (
            f"The table shows {most} of {count} steps; `comparison.data` has "
            "all."
        )


def plot(comparison, axes):
    """Draw the charts on matplotlib's axes; return the figure."""
    steps = comparison.data["step"]
    drawn = [(name, steps, lines) for name, _, lines in charts(comparison.data)]
    return drawing.plot(drawn, axes)


def document(comparison):
    """Return the whole page."""
    title = f"Gradients of {len(comparison.runs)} runs"
    return whole(title, content(comparison))


def content(comparison):
    """Return the content of the page, as a notebook shows it."""
    c = comparison
    steps = c.data["step"]
    group_columns = GROUPS if c.groups else ()
    noise_columns = NOISE if c.noise_scales else ()
    words = meanings([*COLUMNS, *noise_columns, *group_columns, *SETS])
    parts = [
        f"<h1>Gradients of {len(c.runs)} runs</h1>",
        f'<p class="muted">{" · ".join(describe_size(c))}, {steps[0]} to '
        f"{steps[-1]} · probe batch of {c.samples} samples</p>",
        f'<p class="first">{escape(c.answer)}</p>',
        bullet_list(c.verdict),
        gallery(_charts(c)),
        "<h2>Gradient noise scale, in samples</h2>" if noise_columns else "",
        _table(noise_columns, c.noise_scales) if noise_columns else "",
        bullet_list(noise_notes(c)),
        f"<h2>Groups by {escape(c.by)}</h2>" if group_columns else "",
        _table(group_columns, c.groups) if group_columns else "",
        f"<h2>Where runs diverge by more than {c.tolerance:g}</h2>",
        _table(SETS, c.divergences),
        "<h2>Step by step</h2>",
        _table(COLUMNS, step_rows(c, _MAX_PAGE_ROWS)),
        bullet_list(omission_note(c, _MAX_PAGE_ROWS)),
        "<h2>Runs</h2>",
        _table(RUNS, c.runs),
        f"<h2>Notes</h2>{bullet_list(c.notes)}" if c.notes else "",
        "<h2>What the headings mean</h2><dl>",
        *[f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in words.items()],
        "</dl>",
    ]
    return main(parts)


def _table(columns, items):
    return tables.as_html(*table(columns, items))


def _charts(c):
    """Yield the charts of a comparison, and a map of the runs."""
    for title, note, lines in charts(c.data):
        yield figure(title, drawing.chart(title, c.data["step"], lines), note)
    if len(c.runs) <= _MAX_SQUARES:
        yield _distance_map(c)


def _distance_map(c):
    """Return a map of the distances of runs, sorted by group and seed."""
    order = sorted(
        range(len(c.runs)),
        key=lambda r: (str(c.runs[r]["group"]), str(c.runs[r]["seed"]), r),
    )
    distances = np.sqrt(np.maximum(c.squared_distances, 0))
    np.fill_diagonal(distances, 0)
    title = "Run against run"
    return figure(
        title,
        drawing.distance_map(
            title,
            [c.runs[r]["label"] for r in order],
            distances[np.ix_(order, order)],
        ),
        "Distance over the gradient's norm, mean over the steps. Columns are "
        "in the order of the rows; = is equal, ? is unknown.",
    )
