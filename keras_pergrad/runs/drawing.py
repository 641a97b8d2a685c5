"""Charts: as SVG in the colours of a page, and on matplotlib's axes.

SVG is made by hand: matplotlib would take as long as the measurements of a
run, at each of which its page is written.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from keras_pergrad.common.optional import import_extra

# A figure's size, and where its axes begin.
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 460, 230, 56, 8, 206
_SMALL_SIZE = 96, 22
_LEGEND_HEIGHT = 18
_MAX_DOTS = 40
# A larger range is drawn with a logarithmic axis.
_LOG_RATIO = 20
# The part of a logarithmic axis between 0 and the least positive value.
_ZERO_SHARE = 0.15
# A smaller range has no round numbers of its own.
_MIN_SPAN = 1e-300
_COLORS, _DASHES = ("#2458c0", "#b8500a", "#14765a"), ("-", "--", ":")


class Line(NamedTuple):
    """A line over the steps, NaN for a gap, with a band around it or not."""

    values: Sequence[float] | np.ndarray
    label: str = ""
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None

    def all_values(self):
        """Return every value that is drawn."""
        return [
            *self.values,
            *_values_or_empty(self.low),
            *_values_or_empty(self.high),
        ]


def chart(title, steps, lines):
    """Return a chart of lines; what is not finite is a gap."""
    lines = [line for line in lines if any(map(math.isfinite, line.values))]
    if not lines:
        return ""
    top = _TOP + _LEGEND_HEIGHT * (len(lines) > 1)
    values = [v for line in lines for v in line.all_values()]
    y, y_ticks = _make_axis(values, _BOTTOM, top)
    x = _make_scale(steps[0], steps[-1], _LEFT, _WIDTH - 12)
    parts = [
        f'<path d="M{_LEFT} {y(t):.1f}H{_WIDTH}" class="grid"/>'
        f'<text x="{_LEFT - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{t:g}'
        "</text>"
        for t in y_ticks
    ] + [
        f'<text x="{x(t):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{t:g}'
        "</text>"
        for t in _round_ticks(steps[0], steps[-1], integers=True)
    ]
    for k, line in enumerate(lines):
        css_class = f"line line{k + 1}"
        if line.low is not None:
            parts += _band_paths(steps, line, x, y, css_class)
        path = _line_path(steps, line.values, x, y)
        parts.append(f'<path d="{path}" class="{css_class}"/>')
        if len(lines) > 1:
            left = _LEFT + k * (_WIDTH - _LEFT) // len(lines)
            parts.append(
                f'<path d="M{left} 10h22" class="{css_class}"/><text '
                f'x="{left + 27}" y="14">{escape(line.label)}</text>'
            )
        if len(steps) <= _MAX_DOTS:
            parts += [
                f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="3" '
                f'class="{css_class}"><title>step {s}: {v:.4g}</title></circle>'
                for s, v in zip(steps, line.values)
                if math.isfinite(v)
            ]
    return _svg(_WIDTH, _HEIGHT, parts, title)


def sparkline(steps, values):
    """Return a small line without axes; a circle for a lone value."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    width, height = _SMALL_SIZE
    y, _ = _make_axis(finite, height - 3, 3)
    x = _make_scale(steps[0], steps[-1], 3, width - 3)
    shape = f'<path d="{_line_path(steps, values, x, y)}" class="line"/>'
    if len(finite) == 1:
        shape = f'<circle cx="{width / 2}" cy="{height / 2}" r="2"/>'
    return _svg(width, height, [shape], small=True)


def bars(title, histogram, small=False):
    """Return the bars of a histogram over its range."""
    width, height = _SMALL_SIZE if small else (_WIDTH, _HEIGHT)
    bottom, top = (height - 1, 1) if small else (_BOTTOM, _TOP)
    left, right = (1, width - 1) if small else (12, width - 12)
    edges, max_count = histogram.edges, max(histogram.counts, default=0)
    if not max_count or not edges[-1] > edges[0]:
        return ""
    x = _make_scale(edges[0], edges[-1], left, right)
    y = _make_scale(0, max_count, bottom, top)
    shapes = [
        f'<path d="M{x(start):.1f} {bottom}V{y(count):.1f}H{x(end):.1f}'
        f'V{bottom}Z" class="bar"><title>{start:.3g} to {end:.3g}: {count}'
        "</title></path>"
        for start, end, count in zip(edges, edges[1:], histogram.counts)
        if count
    ]
    if not small:
        shapes += [
            f'<text x="{x(t):.1f}" y="{_HEIGHT - 6}" text-anchor="middle">'
            f"{t:g}</text>"
            for t in _round_ticks(edges[0], edges[-1])
        ]
    return _svg(width, height, shapes, title, small)


def plot(charts, axes=None):
    """Draw charts, (title, steps, lines) each, on axes; return the figure."""
    if axes is None:
        figure = import_extra("matplotlib.pyplot", "Drawing", "compare").figure(
            figsize=(10, 6.5), layout="constrained"
        )
        axes = figure.subplots(2, 2).flat
    axes = list(getattr(axes, "flat", axes))
    if len(axes) < len(charts):
        raise ValueError(
            f"`axes` expected four matplotlib axes. Received: {len(axes)}"
        )
    for ax, (title, steps, lines) in zip(axes, charts):
        ax.set_title(title)
        for line, color, dashes in zip(lines, _COLORS, _DASHES):
            marker = "o" if len(steps) <= _MAX_DOTS else None
            ax.plot(
                steps, line.values, dashes, color=color, label=line.label,
                marker=marker, markersize=3,
            )  # fmt: skip
            if line.low is not None:
                band = {"color": color, "alpha": 0.16, "linewidth": 0}
                ax.fill_between(steps, line.low, line.high, **band)
        values = [v for line in lines for v in line.all_values()]
        min_positive, is_logarithmic = _axis_range(values)
        if is_logarithmic:  # this scale also shows zero
            ax.set_yscale("symlog", linthresh=min_positive)
        ax.locator_params(axis="x", integer=True, nbins=7)
        ax.set_xlabel("step")
        ax.grid(color="#dcdbd4")
        if lines:
            ax.legend()
    return axes[0].figure


def _values_or_empty(values):
    return () if values is None else values


def _svg(width, height, shapes, title="", small=False):
    label = f'role="img" aria-label="{escape(title)}"' if title else ""
    css_class = 'class="small"' if small else ""
    size = f'viewBox="0 0 {width} {height}"'
    return f"<svg {size} {label} {css_class}>{''.join(shapes)}</svg>"


def _axis_range(values):
    """Return the least positive value, and whether an axis is logarithmic."""
    finite = [v for v in values if math.isfinite(v)]
    min_positive = min((v for v in finite if v > 0), default=0.0)
    is_wide = min_positive > 0 and max(finite) > _LOG_RATIO * min_positive
    return min_positive, is_wide and min(finite) >= 0


def _make_axis(values, start, end):
    """Return the function from values to places on an axis, and its ticks."""
    finite = [float(v) for v in values if math.isfinite(v)]
    low, high = min(finite), max(finite)
    min_positive, is_logarithmic = _axis_range(finite)
    if not is_logarithmic:
        return _make_scale(low, high, start, end), _round_ticks(low, high)
    first, last = math.log10(min_positive), math.log10(high)
    zero_exponent = first - _ZERO_SHARE * (last - first)
    to_position = _make_scale(first if low else zero_exponent, last, start, end)
    ticks = [*([] if low else [0.0]), *_powers_of_ten(first, last)]
    return lambda v: to_position(
        math.log10(v) if v > 0 else zero_exponent
    ), ticks


def _make_scale(low, high, start, end):
    """Return the function from values to places in a drawing."""
    if high == low:
        return lambda value: (start + end) / 2
    return lambda v: start + (v - low) / (high - low) * (end - start)


def _line_path(steps, values, x, y):
    """Return the path of a line, which begins anew after a gap."""
    parts, command = [], "M"
    for step, value in zip(steps, values):
        if math.isfinite(value):
            parts.append(f"{command}{x(step):.1f} {y(value):.1f}")
        command = "L" if math.isfinite(value) else "M"
    return "".join(parts)


def _band_paths(steps, line, x, y, css_class):
    """Yield the parts of a band, one between each two gaps."""
    points = []
    sentinel = (0, math.nan, math.nan)
    for step, low, high in [*zip(steps, line.low, line.high), sentinel]:
        if math.isfinite(low) and math.isfinite(high):
            points.append((step, low, high))
            continue
        if len(points) > 1:
            upper = _line_path(
                [p[0] for p in points], [p[2] for p in points], x, y
            )
            points.reverse()
            lower = _line_path(
                [p[0] for p in points], [p[1] for p in points], x, y
            )
            yield f'<path d="{upper}L{lower[1:]}Z" class="{css_class} band"/>'
        points = []


def _round_ticks(low, high, integers=False):
    """Return up to about five round numbers between two numbers."""
    if high - low < _MIN_SPAN:
        return [low]
    unit = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(
        s * unit for s in (1, 2, 5, 10) if (high - low) / (s * unit) <= 5
    )
    step = max(step, 1) if integers else step
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def _powers_of_ten(first, last):
    """Return powers of ten between two exponents, few of many."""
    first, last = math.ceil(first), math.floor(last)
    step = (last - first) // 5 + 1
    return [10.0**n for n in range(first, last + 1, step)]
