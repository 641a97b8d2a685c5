"""Charts as SVG, for a page without scripts.

Colours are the page's own CSS variables, so that one drawing serves light and
dark. A drawing is as wide as a phone; on a wide screen several stand side by
side, and letters keep their size.
"""

import math
from html import escape

import numpy as np

from keras_pergrad.runs.wording import relative

_WIDTH, _HEIGHT = 360, 216
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 350, 10, 180
_MOST_DOTS = 40
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def line_chart(steps, chart):
    """The lines of a `Chart` over the steps."""
    scale = _Scale(chart)
    x = _across(steps)
    parts = [_grid(scale), _steps(steps)]
    for k, line in enumerate(chart.lines, 1):
        parts.append(_line(k, line, steps, x, scale))
    label = f"{chart.title}: " + ", ".join(li.label for li in chart.lines)
    return _svg(_WIDTH, _HEIGHT, label, parts)


def distance_map(names, apart, order):
    """One square for each two runs, the darker the farther apart.

    Grey where there is no distance: of a run to itself, and where it is NaN.
    """
    count = len(names)
    left = 100 if count <= 20 else 8
    cell = (_WIDTH - left - 8) / count
    height = cell * count + 8
    distance = np.sqrt(np.maximum(apart[np.ix_(order, order)], 0))
    found = distance[np.isfinite(distance) & (distance > 0)]
    low, high = (found.min(), found.max()) if len(found) else (1.0, 1.0)
    parts = []
    for i, a in enumerate(order):
        if count <= 20:
            parts.append(
                f'<text class="end" x="{left - 6}" '
                f'y="{_at(4 + cell * (i + 0.5) + 4)}">{_short(names[a])}</text>'
            )
        for j, b in enumerate(order):
            none = i == j or np.isnan(distance[i, j])
            parts.append(
                f'<rect class="{"none" if none else "cell"}" '
                f'x="{_at(left + cell * j)}" y="{_at(4 + cell * i)}" '
                f'width="{_at(cell - 1)}" height="{_at(cell - 1)}" '
                f'fill-opacity="{_shade(distance[i, j], low, high)}">'
                f"<title>{escape(names[a])} – {escape(names[b])}: "
                f"{relative(distance[i, j])}</title></rect>"
            )
    return _svg(_WIDTH, math.ceil(height), "Distances between the runs", parts)


class _Scale:
    """From values to places on the vertical axis, and its ticks."""

    def __init__(self, chart):
        shown = [
            part
            for line in chart.lines
            for part in (line.values, line.low, line.high)
            if part is not None
        ]
        values = np.concatenate(shown)
        values = values[np.isfinite(values)]
        self.logarithmic = chart.logarithmic
        if self.logarithmic:
            centre = np.concatenate([line.values for line in chart.lines])
            centre = centre[np.isfinite(centre) & (centre > 0)]
            # An interval of few runs spans decades; the lines come first.
            top = min(values.max(), 10 * centre.max())
            bottom = values[values > 0].min()
            bottom = max(bottom, 0.1 * centre.min())
            self.low = math.floor(math.log10(bottom))
            self.high = max(math.ceil(math.log10(top)), self.low + 1)
            # Zero, of bitwise equal runs, has a place below all others.
            self.zero = bool((values == 0).any())
            each = math.ceil((self.high - self.low) / 4)
            powers = range(self.low, self.high + 1, each)
            self.ticks = [
                (10.0**p, f"10{str(p).translate(_SUPERSCRIPT)}") for p in powers
            ]
            if self.zero:
                self.ticks.insert(0, (0.0, "0"))
        else:
            self.ticks = _round_ticks(values.min(), values.max())
            self.low, self.high = self.ticks[0][0], self.ticks[-1][0]

    def __call__(self, value):
        if self.logarithmic:
            if self.zero:
                start = self.low - 0.15 * (self.high - self.low)
            else:
                start = self.low
            power = math.log10(value) if value > 0 else start
            share = (power - start) / (self.high - start)
        else:
            share = (value - self.low) / (self.high - self.low)
        return _BOTTOM - min(max(share, 0.0), 1.0) * (_BOTTOM - _TOP)


def _round_ticks(low, high):
    """A few round numbers around a range: [(value, label)]."""
    span = max(high - low, abs(high) * 1e-6, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / 4))
    each = min(power * k for k in (1, 2, 5, 10) if power * k * 4.5 >= span)
    first, last = math.floor(low / each), math.ceil(high / each)
    last = max(last, first + 1)
    return [(k * each, f"{k * each:.6g}") for k in range(first, last + 1)]


def _across(steps):
    span = max(int(steps[-1] - steps[0]), 1)
    return _LEFT + 6 + (steps - steps[0]) / span * (_RIGHT - _LEFT - 12)


def _grid(scale):
    parts = []
    for value, label in scale.ticks:
        y = _at(scale(value))
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y}H{_RIGHT}"/><text class="end" '
            f'x="{_LEFT - 5}" y="{_at(scale(value) + 4)}">{label}</text>'
        )
    return "".join(parts)


def _steps(steps):
    """Labels of the first, middle and last step."""
    places = _across(steps)
    shown = {0: "start", len(steps) - 1: "end"}
    if len(steps) > 4:
        shown[len(steps) // 2] = "middle"
    parts = [
        f'<text class="{kind}" x="{_at(places[t])}" y="196">{steps[t]}</text>'
        for t, kind in shown.items()
    ]
    centre = (_LEFT + _RIGHT) / 2
    return (
        "".join(parts)
        + f'<text class="middle" x="{centre}" y="210">step</text>'
    )


def _line(k, line, steps, x, scale):
    parts = []
    if line.low is not None:
        there = np.isfinite(line.low) & np.isfinite(line.high)
        for run in _stretches(there):
            up = [f"{_at(x[t])} {_at(scale(line.high[t]))}" for t in run]
            down = [f"{_at(x[t])} {_at(scale(line.low[t]))}" for t in run[::-1]]
            path = "M" + "L".join(up + down) + "Z"
            parts.append(f'<path class="band c{k}" d="{path}"/>')
    for run in _stretches(np.isfinite(line.values)):
        path = "M" + "L".join(
            f"{_at(x[t])} {_at(scale(line.values[t]))}" for t in run
        )
        parts.append(f'<path class="line c{k}" d="{path}"/>')
    if len(steps) <= _MOST_DOTS:
        parts += [
            f'<circle class="c{k}" cx="{_at(x[t])}" '
            f'cy="{_at(scale(line.values[t]))}" r="2.6"><title>'
            f"{escape(line.label)}, step {steps[t]}: {line.values[t]:.3g}"
            "</title></circle>"
            for t in np.flatnonzero(np.isfinite(line.values))
        ]
    return "".join(parts)


def _stretches(there):
    """The indices of each unbroken run of True."""
    where = np.flatnonzero(there)
    if not len(where):
        return []
    return np.split(where, np.flatnonzero(np.diff(where) > 1) + 1)


def _shade(distance, low, high):
    if not distance > 0:
        return 0
    if high <= low:
        return 0.6
    share = math.log(distance / low) / math.log(high / low)
    return f"{0.15 + 0.8 * share:.2f}"


def _short(name):
    return escape(name if len(name) <= 13 else f"{name[:4]}…{name[-7:]}")


def _at(place):
    return f"{place:.1f}".removesuffix(".0")


def _svg(width, height, label, parts):
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
