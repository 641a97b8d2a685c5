"""Pictures of a page, drawn by matplotlib, which an extra installs."""

import base64
import io
from html import escape

from keras_pergrad.common.optional import import_extra, import_if_there

#: Read on white and on black alike: pages are for light and dark.
COLORS, DASHES = ("#3d7edb", "#c8731a", "#24936f"), ("-", "--", ":")
GREY = "#808080"
_SIZE = 5.6, 2.8


def gallery(figures):
    """Return the HTML of figures side by side.

    `figures`: a generator, which is asked for none without matplotlib.
    """
    if import_if_there("matplotlib") is None:
        return (
            '<p class="muted">Charts need matplotlib: '
            "pip install 'keras-pergrad[plot]'.</p>"
        )
    return f'<div class="charts">{"".join(figures)}</div>'


def new_figure(size=_SIZE):
    """Return a new figure for a page, and its axes."""
    figures = import_extra("matplotlib.figure", "Drawing", "plot")
    figure = figures.Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.tick_params(colors=GREY, which="both")
    for spine in axes.spines.values():
        spine.set_color(GREY)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(GREY)
    return figure, axes


def add_legend(axes, columns):
    """Name the lines above the axes, where no line is."""
    axes.legend(
        labelcolor=GREY,
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
    )


def as_image(figure, title):
    """Return a figure as HTML that needs no other file."""
    content = io.BytesIO()
    figure.savefig(
        content, format="svg", transparent=True, metadata={"Date": None}
    )
    data = base64.b64encode(content.getvalue()).decode()
    return (
        f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}"/>'
    )
