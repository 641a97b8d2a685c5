"""The page of a comparison: no script, no other file, no network."""

from html import escape

import numpy as np

from keras_pergrad.common.tables import as_html
from keras_pergrad.runs import charts, report
from keras_pergrad.runs.findings import share
from keras_pergrad.runs.report import number
from keras_pergrad.runs.step_statistics import MEANINGS
from keras_pergrad.runs.style import STYLE

_MOST_ROWS = 40
_MOST_SQUARES = 40


def document(comparison):
    """Return the whole page."""
    title = f"Gradients of {len(comparison.runs)} runs"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, '
        'initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{title}</title></head>\n"
        f'<body style="margin:0">{fragment(comparison)}</body></html>\n'
    )


def fragment(comparison):
    """Return the page's content, as a notebook shows it."""
    c = comparison
    steps = c.data["step"]
    first, *rest = c.verdict
    parts = [
        f"<h1>Gradients of {len(c.runs)} runs</h1>",
        f'<p class="muted">{report.seeds(c)} · {report.steps(c)}, {steps[0]} '
        f"to {steps[-1]} · probe batch of {c.samples} samples</p>",
        f'<p class="first">{escape(first)}</p>',
        _list(rest),
        '<div class="charts">',
        *[
            _figure(chart.title, charts.svg(chart, c.data), chart.note)
            for chart in report.CHARTS
        ],
        _map(c),
        "</div>",
        _groups(c),
        "<h2>Where runs part</h2>",
        _divergences(c),
        "<h2>Step by step</h2>",
        as_html(
            [column.head for column in report.COLUMNS],
            report.rows(c, report.COLUMNS, _MOST_ROWS),
        ),
        _list(report.left_out(c, _MOST_ROWS)),
        "<h2>Runs</h2>",
        _runs(c),
        f"<h2>Notes</h2>{_list(c.notes)}" if c.notes else "",
        "<h2>What the figures mean</h2><dl>",
        *[f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in MEANINGS.items()],
        "</dl>",
    ]
    return f'<style>{STYLE}</style><main class="kpg">{"".join(parts)}</main>'


def _list(sentences):
    items = "".join(f"<li>{escape(s)}</li>" for s in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _figure(title, drawing, note):
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>{drawing}"
        f'<p class="muted">{escape(note)}</p></figure>'
    )


def _map(c):
    """Return a map of the distances of runs, sorted by group and seed."""
    if len(c.runs) > _MOST_SQUARES:
        return ""
    order = sorted(
        range(len(c.runs)),
        key=lambda r: (str(c.runs[r]["group"]), str(c.runs[r]["seed"]), r),
    )
    distance = np.sqrt(np.maximum(c.apart, 0))
    np.fill_diagonal(distance, np.nan)
    names = [escape(run["name"]) for run in c.runs]
    shades = _shades(distance)
    rows = "".join(
        f'<tr><th scope="row" title="{names[a]}">{names[a]}</th>'
        + "".join(
            f'<td title="{names[a]} – {names[b]}: {share(distance[a, b])}" '
            f"{shades(distance[a, b])}></td>"
            for b in order
        )
        + "</tr>"
        for a in order
    )
    return _figure(
        "Run against run",
        f'<table class="map">{rows}</table>',
        "Distance over the gradient's norm, mean over the steps, on a "
        "logarithmic scale: the stronger the colour, the farther; empty is "
        "equal, grey is unknown.",
    )


def _shades(distance):
    """Return a function from a distance to the attributes of its square."""
    found = np.log(distance[distance > 0])
    low, high = (found.min(), found.max()) if len(found) else (0.0, 0.0)

    def attributes(value):
        if np.isnan(value):
            return 'class="none"'
        if value == 0:
            return ""
        place = (np.log(value) - low) / (high - low) if high > low else 0.6
        color = f"color-mix(in srgb,var(--c1) {15 + 80 * place:.0f}%,"
        return f'style="background:{color}transparent)"'

    return attributes


def _groups(c):
    if not c.groups:
        return ""
    rows = [
        (
            f"{e.first} – {e.second}",
            f"{e.counts[0]}, {e.counts[1]}",
            share(e.distance),
            f"{share(e.floor)} ({e.yardstick})" if e.yardstick else "–",
            "∞" if np.isinf(e.ratio) else number(e.ratio),
            "–" if e.probability is None else number(e.probability),
            "yes" if e.paired else "no",
        )
        for e in c.groups
    ]
    heads = ("groups", "runs", "distance", "inside a group", "ratio", "p")
    table = as_html([*heads, "equal seeds"], rows)
    return f"<h2>Groups by {escape(c.by)}</h2>{table}"


def _divergences(c):
    rows = [
        (
            d.common or "all",
            str(len(d.runs)),
            _when(d, d.differ_step),
            _when(d, d.step),
            ", ".join(f"{p} ({share(v)})" for p, v in d.variables) or "–",
            d.odd or "–",
        )
        for d in c.divergences
    ]
    heads = ("runs", "count", "first bit differs at")
    beyond = f"beyond {c.tolerance:g} at"
    return as_html(
        [*heads, beyond, "variables, largest first", "odd run"], rows
    )


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
    heads = ("run", "seed", "device", "mode", "records", "last step", "tags")
    return as_html(heads, rows)
