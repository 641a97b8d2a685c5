"""Charts of any values."""

import base64
import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from keras_pergrad.runs import Histogram, drawing
from keras_pergrad.runs.drawing import Line
from tests.runs.html_reader import read


@pytest.mark.parametrize(
    "values",
    [
        (1.0,),
        (0.0, 0.0),
        (0.0, 1e-7, 1.0),
        (-1.0, 1e-300),
        (1e-8, 1.0, 1e12),
        (math.nan, 1.0, math.inf, 2.0),
        (1e300, -1e300),
        (1e-320, 1e300),
        (0.0, 1e-320, 1e300),
        (0.0, 5e-324),
    ],
)
def test_any_values_are_drawn(values):
    steps = range(0, 7 * len(values), 7)
    band = Line(values, "<b>", values, high=[2 * abs(v) for v in values])
    for drawn in (
        drawing.chart("a", steps, [Line(values)]),
        drawing.chart("a", steps, [Line(values, "&"), band]),
        drawing.sparkline(steps, values),
    ):
        read(drawn)
        assert drawn
        assert "nan" not in drawn.partition("base64")[0]
    paths = "".join(re.findall(r' d="([^"]*)"', drawn))
    for place in re.findall(r"[^ML ]+", paths):
        assert -1 <= float(place) <= 100


def test_what_has_no_value_is_not_drawn():
    nothing = (math.nan, math.inf)
    assert drawing.chart("a", (0, 1), [Line(nothing)]) == ""
    assert drawing.sparkline((0, 1), nothing) == ""
    assert drawing.bars("a", Histogram((), (0.0,))) == ""
    assert drawing.bars("a", Histogram((0,), (0.0, 1.0))) == ""
    assert "data:" in drawing.bars("a", Histogram((3, 1), (0.0, 1.0, 2.0)))


def drawn_axes(*lines):
    axes = Figure().subplots()
    drawing.plot([("a", range(len(lines[0].values)), lines)], [axes])
    return axes


def test_a_large_range_is_logarithmic_and_shows_zero():
    ax = drawn_axes(Line((0.0, 1.0, 1e4)))
    assert ax.get_yscale() == "symlog"
    assert drawn_axes(Line((1.0, 2.0))).get_yscale() == "linear"
    assert drawn_axes(Line((-1.0, 1e4))).get_yscale() == "linear"


def test_lines_are_named_and_have_their_values():
    gap = (1.0, 1.0, math.nan, 1.0, math.inf)
    band = Line(range(5), "first", gap, high=[2.0] * 5)
    ax = drawn_axes(band, Line(gap, "second"))
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["first", "second"]
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--"]
    assert np.isnan(ax.lines[1].get_ydata()).tolist() == [0, 0, 1, 0, 1]
    assert len(ax.collections) == 1  # the band
    assert ax.get_xlabel() == "optimizer step"


def test_long_runs_are_drawn_without_dots():
    ax = drawn_axes(Line([1.0, 2.0] * 150))
    assert ax.lines[0].get_marker() == "None"
    assert len(drawing.chart("a", range(300), [Line([1.0] * 300)])) < 60_000


def test_a_map_signs_a_run_itself_equal_and_unknown_runs():
    distances = np.array([[0, 0.1, 0], [0.1, 0, math.nan], [0, math.nan, 0]])
    html = drawing.distance_map("a", ["<r>", "s", "t"], distances)
    data = re.search(r'src="data:image/svg\+xml;base64,([^"]*)"', html)[1]
    svg = base64.b64decode(data).decode()
    assert [svg.count(f"<!-- {sign} -->") for sign in "·=?"] == [3, 2, 2]
    for distance in (0.0, 0.5):
        two = np.array([[0.0, distance], [distance, 0.0]])
        assert "data:" in drawing.distance_map("a", ["r", "s"], two)
