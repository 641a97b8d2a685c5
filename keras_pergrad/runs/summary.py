"""A comparison as text for a terminal."""

import textwrap

import numpy as np

from keras_pergrad.runs.wording import number, relative

_WIDTH = 79
_MOST = 12
_ONE_STEP = (
    "There is one step to compare, which says nothing of how differences "
    "grow. Record more: GradientVariance(log_dir=..., every=1) measures after "
    "each update, or train for more epochs."
)
COLUMNS = (
    "step",
    "runs",
    "norm ± sd",
    "apart",
    "repeats",
    "variance [95 %]",
    "sampling",
    "cosine",
    "least cosine",
)
# A terminal has room for these; the others are on the page.
_SHOWN = tuple(c for c in COLUMNS if c not in ("runs", "least cosine"))


def text(comparison):
    """What `print` shows: the verdict, then the table."""
    c = comparison
    lines = [f"{len(c.runs)} runs of {seeds(c)}, {len(c.data['step'])} steps"]
    for sentence in c.verdict:
        lines += textwrap.wrap(
            sentence, _WIDTH, initial_indent="- ", subsequent_indent="  "
        )
    shown = [COLUMNS.index(column) for column in _SHOWN]
    found = rows(c, _MOST)
    table = [[row[k] for k in shown] for row in [COLUMNS, *found]]
    lines += ["", *_aligned(table)]
    steps = len(c.data["step"])
    if len(found) < steps:
        lines.append(
            f"{len(found)} of {steps} steps are shown; .data and .to_html() "
            "have all"
        )
    lines += [
        "apart, repeats: distance of two runs over the gradient's norm",
        "sampling: variance between batches at equal weights over that between",
        "runs, at most 100 %: a yardstick and not a cause",
    ]
    notes = [*c.notes, _ONE_STEP] if steps == 1 else c.notes
    for note in notes:
        lines += textwrap.wrap(
            note, _WIDTH, initial_indent="* ", subsequent_indent="  "
        )
    return "\n".join(lines)


def seeds(comparison):
    """How many seeds, in words."""
    return f"{comparison.seeds} seed{'s' if comparison.seeds > 1 else ''}"


def rows(comparison, most):
    """The table's cells at up to `most` steps, evenly spread."""
    data = comparison.data
    count = len(data["step"])
    chosen = np.linspace(0, count - 1, min(count, most)).round().astype(int)
    return [_row({k: v[t] for k, v in data.items()}) for t in np.unique(chosen)]


def _row(at):
    return (
        str(at["step"]),
        str(at["runs"]),
        f"{number(at['norm'])} ± {number(at['norm_sd'], 2)}",
        relative(at["distance"]),
        relative(at["repeat_distance"]),
        _interval(at["variance"], at["variance_low"], at["variance_high"]),
        relative(at["sampling_share"]),
        _cosine(at["cosine"]),
        _cosine(at["cosine_min"]),
    )


def _interval(value, low, high):
    if np.isnan(value) or value == 0:
        return number(value)
    return f"{number(value)} [{number(low, 2)}, {number(high, 2)}]"


def _cosine(value):
    return "–" if np.isnan(value) else f"{value:.3f}"


def _aligned(table):
    widths = [max(map(len, column)) for column in zip(*table)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths))
        for row in table
    ]
