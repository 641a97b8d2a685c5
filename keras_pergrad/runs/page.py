"""The page of a comparison: no script, no other file, no network."""

from html import escape

import numpy as np

from keras_pergrad.common.tables import as_html
from keras_pergrad.runs import charts, report
from keras_pergrad.runs.findings import share
from keras_pergrad.runs.style import STYLE

_MOST_ROWS = 40
_MOST_SQUARES = 40


def document(comparison):
    """Return the whole page."""
    title = f"Gradients of {len(comparison.runs)} runs"
    return whole(title, fragment(comparison))


def whole(title, content, more=""):
    """Return a page, with `more` in its head."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, '
        'initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"{more}<title>{escape(title)}</title></head>\n"
        f'<body style="margin:0">{content}</body></html>\n'
    )


def fragment(comparison):
    """Return the page's content, as a notebook shows it."""
    c = comparison
    steps = c.data["step"]
    of_groups = report.GROUPS if c.groups else ()
    meanings = report.meanings([*report.COLUMNS, *of_groups, *report.SETS])
    parts = [
        f"<h1>Gradients of {len(c.runs)} runs</h1>",
        f'<p class="muted">{" · ".join(report.size(c))}, {steps[0]} to '
        f"{steps[-1]} · probe batch of {c.samples} samples</p>",
        f'<p class="first">{escape(c.answer)}</p>',
        _list(c.verdict),
        '<div class="charts">',
        *[
            figure(chart.title, charts.svg(chart, c.data), chart.note)
            for chart in report.CHARTS
        ],
        _map(c),
        "</div>",
        f"<h2>Groups by {escape(c.by)}</h2>" if of_groups else "",
        _table(of_groups, c.groups) if of_groups else "",
        f"<h2>Where runs part by more than {c.tolerance:g}</h2>",
        _table(report.SETS, c.divergences),
        "<h2>Step by step</h2>",
        _table(report.COLUMNS, report.at_steps(c, _MOST_ROWS)),
        _list(report.left_out(c, _MOST_ROWS)),
        "<h2>Runs</h2>",
        _table(report.RUNS, c.runs),
        f"<h2>Notes</h2>{_list(c.notes)}" if c.notes else "",
        "<h2>What the headings mean</h2><dl>",
        *[f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in meanings.items()],
        "</dl>",
    ]
    return main(parts)


def main(parts):
    """Return the parts of a page's content with their style sheet."""
    return f'<style>{STYLE}</style><main class="kpg">{"".join(parts)}</main>'


def _table(columns, items):
    return as_html(*report.table(columns, items))


def _list(sentences):
    items = "".join(f"<li>{escape(s)}</li>" for s in sentences)
    return f"<ul>{items}</ul>" if items else ""


def figure(title, drawing, note):
    """Return a drawing with its title and a note."""
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
    np.fill_diagonal(distance, 0)
    apart = distance[distance > 0]
    names = [escape(run["label"]) for run in c.runs]

    def square(a, b):
        if a == b:
            return '<td class="self"></td>'
        said = f"{names[a]} – {names[b]}: {share(distance[a, b])}"
        return f'<td title="{said}" {_shade(distance[a, b], apart)}></td>'

    rows = "".join(
        f'<tr><th scope="row">{names[a]}</th>'
        f"{''.join(square(a, b) for b in order)}</tr>"
        for a in order
    )
    scale = (
        f", from {share(apart.min())} (pale) to {share(apart.max())} (strong)"
        if len(apart)
        else ""
    )
    return figure(
        "Run against run",
        f'<table class="map">{rows}</table>',
        "Columns are in the order of the rows; dots are a run and itself. "
        f"Distance over the gradient's norm, mean over the steps{scale}; "
        "empty is equal, hatched is unknown.",
    )


def _shade(value, every):
    """Return the attributes of a distance's square, among all distances."""
    if np.isnan(value):
        return 'class="none"'
    if value == 0:
        return ""
    low, high = np.log(every.min()), np.log(every.max())
    place = (np.log(value) - low) / (high - low) if high > low else 0.6
    color = f"color-mix(in srgb,var(--c1) {15 + 80 * place:.0f}%,"
    return f'style="background:{color}transparent)"'
