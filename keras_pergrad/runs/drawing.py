"""Charts of runs by matplotlib, and small lines for a table's cells."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_pergrad.common.optional import import_extra
from keras_pergrad.common.pictures import (
    COLORS,
    DASHES,
    GREY,
    add_legend,
    as_image,
    new_figure,
)

_SMALL_SIZE = 96, 22
_MAX_DOTS = 40
# A larger range is drawn with a logarithmic axis.
_LOG_RATIO = 20
# What is smaller than the largest value by more is drawn near zero.
_MAX_RATIO = 1e15


class Line(NamedTuple):
    """A line over the steps, NaN for a gap, with a band around it or not."""

    values: Sequence[float] | np.ndarray
    label: str = ""
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None


def chart(title, steps, lines):
    """Return the HTML of a chart of lines; what is not finite is a gap."""
    lines = _with_values(lines)
    if not lines:
        return ""
    figure, axes = new_figure()
    _draw(axes, steps, lines)
    if len(lines) > 1:
        add_legend(axes, len(lines))
    return as_image(figure, title)


def _with_values(lines):
    return [line for line in lines if np.isfinite(line.values).any()]


def bars(title, histogram):
    """Return the HTML of the bars of a histogram over its range."""
    edges, counts = np.array(histogram.edges), np.array(histogram.counts)
    if not counts.sum() or not edges[-1] > edges[0]:
        return ""
    figure, axes = new_figure()
    widths = np.diff(edges)
    axes.bar(edges[:-1], counts, widths, align="edge", color=COLORS[0])
    axes.set_ylabel("samples")
    return as_image(figure, title)


def distance_map(title, names, distances):
    """Return the HTML of a map of the distances of runs, (R, R).

    Zero, and what is not finite, has a sign in place of a colour.
    """
    colors = import_extra("matplotlib.colors", "Drawing", "plot")
    size = 1.5 + 0.28 * len(names)
    figure, axes = new_figure((max(size + 1.2, 4.2), max(size, 3.0)))
    is_distance = np.isfinite(distances) & (distances > 0)
    positive = distances[is_distance]
    if len(positive):
        low, high = positive.min(), positive.max()
        is_wide = high > _LOG_RATIO * low
        norm = colors.LogNorm(low, high) if is_wide else None
        shown = np.where(is_distance, distances, np.nan)
        picture = axes.imshow(shown, norm=norm, cmap="viridis")
        bar = figure.colorbar(
            picture, label="distance over the norm", format="%.3g"
        )
        bar.ax.yaxis.label.set_color(GREY)
        bar.ax.tick_params(colors=GREY, which="both")
    else:
        axes.imshow(np.full(distances.shape, np.nan))
    for a, b in zip(*np.nonzero(~is_distance)):
        sign = "·" if a == b else "=" if distances[a, b] == 0 else "?"
        axes.text(b, a, sign, color=GREY, ha="center", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks([])
    axes.grid(False)
    return as_image(figure, title)


def sparkline(steps, values):
    """Return a small line without axes; a circle for a lone value."""
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    finite = np.isfinite(values)
    width, height = _SMALL_SIZE
    if not finite.any():
        return ""
    x = _scaled(steps, 3, width - 3)
    y = _scaled(np.where(finite, values, np.nan), height - 3, 3)
    points = [
        f"{'L' if k and finite[k - 1] else 'M'}{x[k]:.1f} {y[k]:.1f}"
        for k in np.flatnonzero(finite)
    ]
    shape = f'<path d="{"".join(points)}" class="line"/>'
    if len(points) == 1:
        shape = f'<circle cx="{width / 2}" cy="{height / 2}" r="2"/>'
    size = f'viewBox="0 0 {width} {height}"'
    return f'<svg {size} class="small">{shape}</svg>'


def plot(charts, axes=None):
    """Draw charts, (title, steps, lines) each, on axes; return the figure."""
    if axes is None:
        figure = import_extra("matplotlib.pyplot", "Drawing", "plot").figure(
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
        lines = _with_values(lines)
        _draw(ax, steps, lines)
        if any(line.label for line in lines):
            ax.legend(loc="upper right")
    return axes[0].figure


def _draw(axes, steps, lines):
    """Draw lines over the steps."""
    for line, color, dashes in zip(lines, COLORS, DASHES):
        axes.plot(
            steps,
            _finite(line.values),
            dashes,
            color=color,
            label=line.label,
            marker="o" if len(steps) <= _MAX_DOTS else None,
            markersize=3,
        )
        if line.low is not None:
            low, high = _finite(line.low), _finite(line.high)
            axes.fill_between(
                steps, low, high, color=color, alpha=0.16, linewidth=0
            )
    parts = [p for line in lines for p in (line.values, line.low, line.high)]
    drawn = np.concatenate([[], *(p for p in parts if p is not None)])
    min_positive, is_logarithmic = _axis_range(drawn)
    if is_logarithmic:  # this scale also shows zero
        axes.set_yscale("symlog", linthresh=min_positive)
    axes.locator_params(axis="x", integer=True, nbins=7)
    axes.set_xlabel("optimizer step")
    axes.grid(color=GREY, alpha=0.3)


def _finite(values):
    values = np.asarray(values, float)
    return np.where(np.isfinite(values), values, np.nan)


def _axis_range(values):
    """Return the least positive value, and whether an axis is logarithmic."""
    finite = values[np.isfinite(values)]
    positive = finite[finite > 0]
    if not len(positive):
        return 0.0, False
    least = max(positive.min(), finite.max() / _MAX_RATIO)
    is_wide = math.log(finite.max()) > math.log(_LOG_RATIO) + math.log(least)
    return least, is_wide and finite.min() >= 0


def _scaled(values, start, end):
    """Return values as places in a drawing; in its middle if all are equal."""
    low, high = np.nanmin(values), np.nanmax(values)
    if not high > low:
        return np.full(len(values), (start + end) / 2)
    unit = max(abs(low), abs(high))
    if unit > 1:  # the difference may be beyond the largest number
        values, low, high = values / unit, low / unit, high / unit
    return start + (values - low) / (high - low) * (end - start)
