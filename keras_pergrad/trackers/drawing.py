"""Drawings of readings as SVG, in the colours of the runs' pages.

By hand: matplotlib would take as long as the measurements, at each of them.
"""

import math
from html import escape

# A figure's size, and where its axes begin.
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 460, 230, 56, 8, 206
_SMALL = 96, 22
_MOST_DOTS = 40
# A larger range is drawn with a logarithmic axis.
_LARGE = 20
# A smaller range has no round numbers of its own.
_LEAST = 1e-300


def chart(title, steps, values):
    """Return a chart of values over steps; what is not finite is a gap."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    low, high = min(known), max(known)
    logarithmic = low > 0 and high > _LARGE * low
    y_ticks = _powers(low, high) if logarithmic else _round(low, high)
    y = _scale(low, high, _BOTTOM, _TOP, logarithmic)
    x = _scale(steps[0], steps[-1], _LEFT, _WIDTH - 12)
    drawn = [
        f'<path d="M{_LEFT} {y(t):.1f}H{_WIDTH}" class="grid"/>'
        f'<text x="{_LEFT - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{t:g}'
        "</text>"
        for t in y_ticks
    ] + [
        f'<text x="{x(t):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{t:g}'
        "</text>"
        for t in _round(steps[0], steps[-1], whole=True)
    ]
    drawn.append(f'<path d="{_path(steps, values, x, y)}" class="line"/>')
    if len(steps) <= _MOST_DOTS:
        drawn += [
            f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3"><title>step {s}: '
            f"{v:.4g}</title></circle>"
            for s, v in zip(steps, values)
            if math.isfinite(v)
        ]
    return _svg(_WIDTH, _HEIGHT, drawn, title)


def sparkline(steps, values):
    """Return a small line without axes; a circle for a lone value."""
    known = [v for v in values if math.isfinite(v)]
    if not known:
        return ""
    width, height = _SMALL
    low, high = min(known), max(known)
    logarithmic = low > 0 and high > _LARGE * low
    y = _scale(low, high, height - 3, 3, logarithmic)
    x = _scale(steps[0], steps[-1], 3, width - 3)
    drawn = f'<path d="{_path(steps, values, x, y)}" class="line"/>'
    if len(known) == 1:
        drawn = f'<circle cx="{width / 2}" cy="{height / 2}" r="2"/>'
    return _svg(width, height, [drawn], small=True)


def bars(title, histogram, small=False):
    """Return the bars of a histogram over its range."""
    width, height = _SMALL if small else (_WIDTH, _HEIGHT)
    bottom, top = (height - 1, 1) if small else (_BOTTOM, _TOP)
    left, right = (1, width - 1) if small else (12, width - 12)
    edges, most = histogram.edges, max(histogram.counts, default=0)
    if not most or not edges[-1] > edges[0]:
        return ""
    x = _scale(edges[0], edges[-1], left, right)
    y = _scale(0, most, bottom, top)
    drawn = [
        f'<path d="M{x(start):.1f} {bottom}V{y(count):.1f}H{x(end):.1f}'
        f'V{bottom}Z" class="bar"><title>{start:.3g} to {end:.3g}: {count}'
        "</title></path>"
        for start, end, count in zip(edges, edges[1:], histogram.counts)
        if count
    ]
    if not small:
        drawn += [
            f'<text x="{x(t):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">'
            f"{t:g}</text>"
            for t in _round(edges[0], edges[-1])
        ]
    return _svg(width, height, drawn, title, small)


def _svg(width, height, drawn, title="", small=False):
    said = f'role="img" aria-label="{escape(title)}"' if title else ""
    kind = 'class="small"' if small else ""
    size = f'viewBox="0 0 {width} {height}"'
    return f"<svg {size} {said} {kind}>{''.join(drawn)}</svg>"


def _scale(low, high, start, end, logarithmic=False):
    """Return the function from values to places in a drawing."""
    bend = math.log10 if logarithmic else float
    low, high = bend(low), bend(high)
    if high == low:
        return lambda value: (start + end) / 2

    def place(value):
        return start + (bend(value) - low) / (high - low) * (end - start)

    return place


def _path(steps, values, x, y):
    """Return the path of a line, which begins anew after a gap."""
    parts, mark = [], "M"
    for step, value in zip(steps, values):
        if math.isfinite(value):
            parts.append(f"{mark}{x(step):.1f} {y(value):.1f}")
        mark = "L" if math.isfinite(value) else "M"
    return "".join(parts)


def _round(low, high, whole=False):
    """Return up to about five round numbers between two numbers."""
    if high - low < _LEAST:
        return [low]
    unit = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(
        s * unit for s in (1, 2, 5, 10) if (high - low) / (s * unit) <= 5
    )
    step = max(step, 1) if whole else step
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def _powers(low, high):
    """Return powers of ten between two numbers, few of many."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    step = (last - first) // 5 + 1
    return [10.0**n for n in range(first, last + 1, step)]
