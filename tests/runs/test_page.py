import html.parser
import re

import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.runs import charts
from keras_pergrad.runs.series import Chart, Line
from tests.runs import made_up

NASTY = "<script>alert('x')</script>\"&"
VOID = {"meta"}


class Reader(html.parser.HTMLParser):
    """Checks that tags close, and gathers them and the text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.text, self.attributes = [], [], "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    log_dir = tmp_path_factory.mktemp("runs")
    for seed in range(4):
        made_up.write(
            log_dir,
            NASTY.replace("/", "") + str(seed),
            made_up.around(1, 8, 5, seed // 2),
            seed=seed // 2,
            variance=50.0,
            tags={NASTY: f"{NASTY}{seed % 2}"},
            variables=[
                {"path": NASTY + p, "shape": list(s)}
                for p, s in made_up.SHAPES.items()
            ],
        )
    path = str(log_dir / "page.html")
    assert kpg.compare_runs(log_dir, by=NASTY).to_html(path) == path
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_the_page_stands_alone(page):
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe"} & set(reader.seen)
    names = {name for name, _ in reader.attributes}
    assert not {"src", "href", "onload", "onclick"} & names
    assert "//" not in page.replace("<!DOCTYPE", "")
    assert "@import" not in page
    assert "url(" not in page
    assert reader.seen.count("svg") == 5
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page


def test_names_from_outside_are_only_text(page):
    reader = Reader(page)
    assert f"{NASTY}={NASTY}1" in reader.text
    assert f"{NASTY}0 – {NASTY}1" in reader.text
    assert f"{NASTY}first/kernel" in reader.text
    assert f"Groups by {NASTY}" in reader.text
    assert "<script" not in page


def test_the_figures_are_there(page):
    text = Reader(page).text
    for words in ("Gradient norm", "Step by step", "Where runs part", "95 %"):
        assert words in text


def _numbers(svg):
    places = re.findall(r' (?:cy|y|x|cx)="([^"]*)"', svg)
    for path in re.findall(r' d="([^"]*)"', svg):
        places += re.findall(r"[\d.eE+-]+|nan|inf", path)
    return np.array(places, float)


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, 3.0],
        [5.0, 5.0, 5.0],
        [1e-12, np.nan, 1e3],
        [0.0, 1e-7, 1.0],
        [np.nan, 4.0, np.inf],
    ],
)
def test_every_chart_stays_inside_its_frame(values, logarithmic):
    values = np.array(values)
    line = Line("a", values, values * 0.1, values * 1e6)
    chart = Chart("t", "n", [line], logarithmic)
    svg = charts.line_chart(np.array([0, 5, 10]), chart)
    Reader(svg)
    numbers = _numbers(svg)
    assert np.isfinite(numbers).all()
    assert ((numbers >= 0) & (numbers <= 360)).all()
    assert svg.count("<circle") == np.isfinite(values).sum()


def test_a_chart_of_zeros_and_a_single_step():
    chart = Chart("t", "n", [Line("a", np.zeros(1))], False)
    svg = charts.line_chart(np.array([7]), chart)
    assert np.isfinite(_numbers(svg)).all()


def test_zero_is_below_what_a_logarithmic_axis_shows():
    line = Line("a", np.array([1.0, 1e-6, 0.0]))
    svg = charts.line_chart(np.arange(3), Chart("t", "n", [line], True))
    heights = [float(y) for y in re.findall(r'cy="([^"]*)"', svg)]
    assert heights == sorted(heights)
    assert len(set(heights)) == 3
    assert ">0</text>" in svg


def test_long_runs_are_drawn_without_dots():
    line = Line("a", np.random.default_rng(0).random(300))
    svg = charts.line_chart(np.arange(300), Chart("t", "n", [line], False))
    assert "<circle" not in svg
    assert len(svg) < 10_000


def test_the_map_tells_unknown_from_equal():
    apart = np.array([[0, 0, np.nan], [0, 0, 4.0], [np.nan, 4.0, 0]])
    svg = charts.distance_map(list("abc"), apart, [0, 1, 2])
    squares = re.findall(r'class="(\w+)"[^>]*><title>(. – .: [^<]*)<', svg)
    assert ("cell", "a – b: 0") in squares
    assert ("none", "a – c: –") in squares
    assert ("cell", "b – c: 200 %") in squares


def test_many_runs_have_no_map(tmp_path):
    for seed in range(41):
        gradients = made_up.around(1, 8, 1, seed)
        made_up.write(tmp_path, f"{seed:02}", gradients, seed=seed)
    page = kpg.compare_runs(tmp_path)._repr_html_()
    assert "Run against run" not in page
    assert "<td>40</td>" in page
