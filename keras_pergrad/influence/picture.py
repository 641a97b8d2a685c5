"""A page of test samples with the samples that helped and hurt them."""

from html import escape

import numpy as np
import tensorflow as tf

from keras_pergrad.influence.sample_cells import cell, label
from keras_pergrad.runs.page import main, whole

_STYLE = """<style>.kpg .test{display:flex;flex-wrap:wrap;gap:1rem;
border-top:1px solid var(--rule);padding:1rem 0}
.kpg .group{display:flex;flex-wrap:wrap;gap:.6rem;align-content:flex-start}
.kpg .group h2{flex-basis:100%;font-size:.9rem;margin:0}
.kpg .test figure{max-width:16rem;padding:.5rem;border-radius:6px;
font-size:.85rem;overflow-wrap:anywhere}
.kpg .helpful figure{border-top:3px solid var(--c3)}
.kpg .harmful figure{border-top:3px solid var(--c2)}
.kpg .test figure p{font-size:.75rem}
.kpg .test img{width:5rem;image-rendering:pixelated;display:block}</style>"""


def page(tests, train, best, worst, names=None, show=None):
    """Return a page, from (x, y) by row of both, and two `Top`s."""
    count = len(best.samples)
    parts = [
        "<h1>Which samples matter</h1>",
        f'<p class="muted">{count} test samples, each with the training '
        "samples whose absence would raise its loss most (helpful), and lower "
        "it most (harmful). The number is by how much, to first order.</p>",
    ]
    for t in range(count):
        groups = [("test sample", "", [_figure(tests, t, "", names, show)])]
        for title, top, sign in (
            ("helpful", best, 1),
            ("harmful", worst, -1),
        ):
            figures = [
                _figure(train, j, f" · {score:+.2g}", names, show)
                for j, score in zip(top.samples[t], top.scores[t])
                if sign * score > 0
            ]
            groups.append((title, title, figures))
        parts.append(f'<div class="test">{"".join(map(_group, groups))}</div>')
    return whole("Which samples matter", main(parts), _STYLE)


def _group(group):
    title, kind, figures = group
    shown = "".join(figures) or '<p class="muted">none</p>'
    return f'<div class="group {kind}"><h2>{escape(title)}</h2>{shown}</div>'


def _figure(data, row, note, names, show):
    x, y = data[row]
    target = "" if y is None else f" · {_target(y, names)}"
    return (
        f"<figure>{cell(x, show)}"
        f'<p class="muted">row {row}{target}{escape(note)}</p></figure>'
    )


def _target(y, names):
    if tf.nest.is_nested(y):
        return ", ".join(label(part) for part in tf.nest.flatten(y))
    return label(y, names)


def _row(part, row):
    """Return one sample of a structure of arrays."""
    if part is None:
        return None
    return tf.nest.map_structure(lambda a: np.asarray(a[row]), part)


def rows_of(batches, rows):
    """Return (x, y) by row number of some rows of data in batches."""
    wanted, found, first = set(map(int, rows)), {}, 0
    for x, y, _ in batches:
        n = len(tf.nest.flatten(x)[0])
        for row in wanted.intersection(range(first, first + n)):
            found[row] = _row(x, row - first), _row(y, row - first)
        first += n
    return found
