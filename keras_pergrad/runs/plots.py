"""Draws a comparison with matplotlib."""

import numpy as np

from keras_pergrad.runs.series import charts


def plot(comparison, axes=None):
    """Draws the charts on four axes; returns the figure."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "Drawing needs matplotlib, which is not installed. Install it "
            "with: pip install 'keras-pergrad[plot]'"
        ) from error
    if axes is None:
        _, axes = pyplot.subplots(2, 2, figsize=(10, 6.5), layout="constrained")
    axes = np.asarray(axes).reshape(-1)
    if len(axes) < 4:
        raise ValueError(
            f"`axes` expected four matplotlib axes. Received: {len(axes)}"
        )
    steps = comparison.data["step"]
    for ax, chart in zip(axes, charts(comparison)):
        _draw(ax, steps, chart)
    return axes[0].figure


def _draw(ax, steps, chart):
    marker = "o" if len(steps) < 30 else None
    for line in chart.lines:
        drawn = ax.plot(
            steps, line.values, marker=marker, markersize=3, label=line.label
        )
        if line.low is not None:
            ax.fill_between(
                steps, line.low, line.high, color=drawn[0].get_color(),
                alpha=0.2, linewidth=0,
            )  # fmt: skip
    if chart.logarithmic:
        values = np.concatenate([line.values for line in chart.lines])
        least = values[np.isfinite(values) & (values > 0)].min()
        # Zero, of bitwise equal runs, has a place at the bottom.
        ax.set_yscale("symlog", linthresh=least)
        ax.set_ylim(bottom=0)
    ax.set_title(chart.title)
    ax.set_xlabel("step")
    ax.legend()
