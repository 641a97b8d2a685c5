"""Charts of a comparison, drawn with matplotlib."""

import io
import re

import numpy as np

from keras_pergrad.runs import extras
from keras_pergrad.runs.report import CHARTS

_MOST_DOTS = 40
# An interval that is wider, as that of two seeds, would only fill the chart.
_MOST_TIMES = 4
# In a page each colour is a CSS variable, with a light and a dark value.
_COLORS = {
    "#2458c0": "var(--c1)",
    "#b8500a": "var(--c2)",
    "#14765a": "var(--c3)",
    "#1d1d1b": "var(--text)",
    "#dcdbd4": "var(--rule)",
}
# Keep text as text, so that browsers can search it and read it aloud. Give
# elements the same names each time.
_SVG = {"svg.fonttype": "none", "svg.hashsalt": "keras_pergrad"}
_LINES, (_TEXT, _RULE) = list(_COLORS)[:3], list(_COLORS)[3:]
_DASHES = ("-", "--", ":")


def plot(comparison, axes=None):
    """Draw the charts on four axes; return the figure."""
    if axes is None:
        figure = extras.matplotlib(".pyplot").figure(
            figsize=(10, 6.5), layout="constrained"
        )
        axes = figure.subplots(2, 2)
    axes = np.asarray(axes).reshape(-1)
    if len(axes) < len(CHARTS):
        raise ValueError(
            f"`axes` expected four matplotlib axes. Received: {len(axes)}"
        )
    for ax, chart in zip(axes, CHARTS):
        draw(ax, chart, comparison.data)
        ax.set_title(chart.title)
    return axes[0].figure


def draw(ax, chart, data):
    """Draw a `Chart` of figures (name → array) on matplotlib's axes."""

    def finite(what):
        values = data[what] if isinstance(what, str) else what(data)
        return np.where(np.isfinite(values), values, np.nan)

    steps, drawn = data["step"], []
    marker = "o" if len(steps) <= _MOST_DOTS else None
    for line, color, dashes in zip(chart.lines, _LINES, _DASHES):
        values = finite(line.values)
        if np.isnan(values).all():
            continue
        drawn.append(values)
        ax.plot(
            steps, values, dashes, color=color, label=line.label,
            marker=marker, markersize=3,
        )  # fmt: skip
        if line.low is not None:
            low, high = finite(line.low), finite(line.high)
            ax.fill_between(
                steps, low, high, where=high < _MOST_TIMES * values,
                color=color, alpha=0.16, linewidth=0,
            )  # fmt: skip
    positive = np.concatenate([np.zeros(0), *drawn])
    positive = positive[positive > 0]
    if chart.logarithmic and positive.size:
        if positive.max() > 20 * positive.min():
            # This scale also shows zero, the value for bitwise equal runs.
            ax.set_yscale("symlog", linthresh=positive.min())
        # Fit the axis to the lines, not to an interval.
        ax.set_ylim(0, min(ax.get_ylim()[1], 3 * positive.max()))
    ax.locator_params(axis="x", integer=True, nbins=7)
    ax.set_xlabel("step")
    ax.grid(color=_RULE)
    if drawn:
        ax.legend()


def svg(chart, data):
    """Return a `Chart` as an inline SVG element, in the page's colours."""
    figure = extras.matplotlib(".figure").Figure(figsize=(4.6, 2.8))
    figure.patch.set_visible(False)
    ax = figure.add_axes((0.13, 0.16, 0.85, 0.81))
    ax.patch.set_visible(False)
    draw(ax, chart, data)
    for spine in ax.spines.values():
        spine.set_color(_RULE)
    ax.tick_params(which="both", color=_RULE, labelcolor=_TEXT)
    ax.xaxis.label.set_color(_TEXT)
    legend = ax.get_legend()
    if legend is not None:
        legend.set_frame_on(False)
        for label in legend.get_texts():
            label.set_color(_TEXT)
    file = io.StringIO()
    with extras.matplotlib().rc_context(_SVG):
        figure.savefig(
            file,
            format="svg",
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    # HTML needs no namespaces, and the page's style sheet sets the size.
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", file.getvalue())
    for color, variable in _COLORS.items():
        text = text.replace(color, variable)
    head = f'<svg role="img" aria-label="{chart.title}" '
    return re.sub(
        r'^.*?<svg [^>]*(viewBox="[^"]*")[^>]*>',
        lambda match: f"{head}{match[1]}>",
        text,
        count=1,
        flags=re.DOTALL,
    )
