"""A comparison as one web page: no script, no other file, no network."""

from html import escape

import numpy as np

from keras_pergrad.runs import charts, summary
from keras_pergrad.runs.series import charts as charts_of
from keras_pergrad.runs.style import STYLE
from keras_pergrad.runs.wording import number, relative

_MOST_ROWS = 40
_MOST_SQUARES = 40
_LONG = 40
_READING = (
    (
        "apart",
        "Distance between the gradients of two runs of different seeds, over "
        "the gradient's norm. Gradients are compared by sketches, to about "
        "3 %.",
    ),
    (
        "repeats",
        "The same for runs of one seed on the same device, machine, "
        "optimizer and mode: nondeterminism, the noise floor.",
    ),
    (
        "variance",
        "Trace of the covariance of the gradient across runs, with a 95 % "
        "interval for normally distributed differences.",
    ),
    (
        "sampling",
        "The probe batch is the same in every run; sampling enters by the "
        "path of the weights. The yardstick is the variance of one batch's "
        "gradient at equal weights (trace of the per-sample covariance over "
        "the batch size). Its share of the variance between runs is near 1 "
        "where runs differ no more than batches do, near 0 where the weights "
        "have gone elsewhere; it is a yardstick and not a cause.",
    ),
    ("cosine", "Mean and least over pairs of runs of different seeds."),
    (
        "seeds and repeats",
        "Each seed counts once in every mean and spread, however often it "
        "was repeated. Where all runs are of one seed, each counts.",
    ),
)


def document(comparison):
    """The whole page."""
    title = f"Gradients of {len(comparison.runs)} runs"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, '
        'initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{title}</title></head>\n"
        f'<body style="margin:0">{fragment(comparison)}</body></html>\n'
    )


def fragment(comparison):
    """The page's content, as a notebook shows it."""
    c = comparison
    steps = c.data["step"]
    first, *rest = c.verdict
    parts = [
        f"<h1>Gradients of {len(c.runs)} runs</h1>",
        f'<p class="muted">{summary.seeds(c)} · {len(steps)} steps, {steps[0]} '
        f"to {steps[-1]} · probe batch of {c.samples} samples</p>",
        f'<p class="first">{escape(first)}</p>',
        _list(rest),
        '<div class="charts">',
        *[_figure(chart, steps) for chart in charts_of(c)],
        _map(c),
        "</div>",
        *_groups(c),
        "<h2>Where runs part</h2>",
        _divergences(c),
        "<h2>Step by step</h2>",
        _table(summary.COLUMNS, summary.rows(c, _MOST_ROWS)),
        "<h2>Runs</h2>",
        _runs(c),
        "<h2>How to read this</h2><dl>",
        *[f"<dt>{term}</dt><dd>{text}</dd>" for term, text in _READING],
        "</dl>",
        f"<h2>Notes</h2>{_list(c.notes)}" if c.notes else "",
    ]
    return f'<style>{STYLE}</style><main class="kpg">{"".join(parts)}</main>'


def _list(sentences):
    items = "".join(f"<li>{escape(s)}</li>" for s in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _figure(chart, steps):
    keys = "".join(
        f'<span class="key c{k}">{escape(line.label)}</span>'
        for k, line in enumerate(chart.lines, 1)
    )
    return (
        f"<figure><figcaption><b>{chart.title}</b>{keys}</figcaption>"
        f"{charts.line_chart(steps, chart)}"
        f'<p class="muted">{chart.note}</p></figure>'
    )


def _map(c):
    """The distances between all runs, those of a group or seed together."""
    count = len(c.runs)
    if count > _MOST_SQUARES:
        return ""
    names = [run["name"] for run in c.runs]
    order = sorted(
        range(count),
        key=lambda r: (str(c.runs[r]["group"]), str(c.runs[r]["seed"]), r),
    )
    return (
        "<figure><figcaption><b>Run against run</b></figcaption>"
        f"{charts.distance_map(names, c.apart, order)}"
        '<p class="muted">Distance over the gradient\'s norm, mean over the '
        "steps, on a logarithmic scale: the stronger the colour, the farther; "
        "empty is equal, grey is unknown.</p></figure>"
    )


def _groups(c):
    if not c.groups:
        return
    yield f"<h2>Groups by {escape(c.by)}</h2>"
    rows = [
        (
            f"{e.first} – {e.second}",
            f"{e.counts[0]}, {e.counts[1]}",
            relative(e.distance),
            f"{relative(e.floor)} ({e.yardstick})" if e.yardstick else "–",
            "∞" if np.isinf(e.ratio) else number(e.ratio),
            "–" if e.probability is None else number(e.probability),
            "yes" if e.paired else "no",
        )
        for e in c.groups
    ]
    columns = (
        "groups",
        "runs",
        "apart",
        "inside a group",
        "ratio",
        "p",
        "equal seeds",
    )
    yield _table(columns, rows)


def _divergences(c):
    rows = [
        (
            d.common or "all",
            str(len(d.runs)),
            _when(d, d.differ_step),
            _when(d, d.step),
            ", ".join(f"{p} ({relative(v)})" for p, v in d.variables) or "–",
            d.odd or "–",
        )
        for d in c.divergences
    ]
    columns = (
        "runs",
        "count",
        "first bit differs at",
        f"beyond {c.tolerance:g} at",
        "variables, largest first",
        "odd run",
    )
    return _table(columns, rows)


def _when(d, step):
    if d.first_step is None:
        return "–"
    return "never" if step is None else str(step)


def _runs(c):
    rows = [
        (
            run["name"],
            "–" if run["seed"] is None else str(run["seed"]),
            str(run["device"] or "–"),
            str(run["mode"] or "–"),
            str(run["records"]),
            str(run["last_step"]),
            ", ".join(f"{k}={v}" for k, v in run["tags"].items()) or "–",
        )
        for run in c.runs
    ]
    columns = ("run", "seed", "device", "mode", "records", "last step", "tags")
    return _table(columns, rows)


def _table(columns, rows):
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return (
        '<div class="wide" tabindex="0"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text):
    long = ' class="long"' if len(text) > _LONG else ""
    return f"<td{long}>{escape(text)}</td>"
