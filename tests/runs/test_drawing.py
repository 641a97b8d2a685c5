"""Charts of any values, as SVG."""

import math
import re

import pytest

from keras_pergrad.runs import drawing
from keras_pergrad.runs.drawing import Line
from keras_pergrad.runs.store import Histogram
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
    band = Line(values, "<b>", values, [2 * abs(v) for v in values])
    for drawn in (
        drawing.chart("a", steps, [Line(values)]),
        drawing.chart("a", steps, [Line(values, "&"), band]),
        drawing.sparkline(steps, values),
    ):
        read(drawn)
        assert "nan" not in drawn
        assert "inf" not in drawn
        paths = "".join(re.findall(r' d="([^"]*)"', drawn))
        for place in re.findall(r"[^MLHVZh ]+", paths):
            assert -1 <= float(place) <= 470


def test_what_has_no_value_is_not_drawn():
    nothing = (math.nan, math.inf)
    assert drawing.chart("a", (0, 1), [Line(nothing)]) == ""
    assert drawing.sparkline((0, 1), nothing) == ""
    assert drawing.bars("a", Histogram((), (0.0,))) == ""
    assert drawing.bars("a", Histogram((0,), (0.0, 1.0))) == ""


def test_a_large_range_is_logarithmic_and_shows_zero():
    svg = drawing.chart("a", (0, 1, 2), [Line((0.0, 1.0, 1e4))])
    texts = re.findall(r'text-anchor="end">([^<]*)<', svg)
    assert texts == ["0", "1", "10", "100", "1000", "10000"]


def test_lines_are_named_and_a_band_has_gaps():
    gap = (1.0, 1.0, math.nan, 1.0, 1.0)
    lines = [Line(range(5), "first", gap, [2.0] * 5), Line(gap, "second")]
    drawn = read(drawing.chart("a", range(5), lines))
    assert "first" in drawn.text
    assert "second" in drawn.text
    kinds = [value for name, value in drawn.attributes if name == "class"]
    assert kinds.count("line line1 band") == 2
    assert "line line2" in kinds


def test_long_runs_are_drawn_without_dots():
    svg = drawing.chart("a", range(300), [Line([1.0, 2.0] * 150)])
    assert "<circle" not in svg
    assert len(svg) < 30_000
