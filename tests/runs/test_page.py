import html.parser
import re

import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.common import tables
from keras_pergrad.runs import charts, page
from keras_pergrad.runs.report import Chart, Line
from tests.runs import made_up

NASTY = "<script>alert('x')</script>\"&$\\frac{"
VOID = {"meta"}
# What drawings call their parts.
IDS = r'id="[^"]*"|"#\w+"|url\(#\w+\)'


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
def html_page(tmp_path_factory):
    log_dir = tmp_path_factory.mktemp("runs")
    for seed in range(4):
        made_up.write(
            log_dir,
            NASTY.translate({47: "", 92: ""}) + str(seed),
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


def test_the_page_stands_alone(html_page):
    reader = Reader(html_page)
    assert not {"script", "link", "img", "iframe"} & set(reader.seen)
    names = {name for name, _ in reader.attributes}
    assert not {"src", "href", "onload", "onclick"} & names
    # Parts of a drawing refer to each other.
    links = [v for name, v in reader.attributes if name == "xlink:href"]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "//" not in html_page.replace("<!DOCTYPE", "")
    assert "@import" not in html_page
    assert "url(" not in html_page.replace("url(#", "")
    assert reader.seen.count("svg") == 4
    assert 'name="viewport"' in html_page


def test_the_page_has_a_light_and_a_dark_side(html_page):
    """Drawings take their colours from the style sheet alone."""
    style, _, content = html_page.partition("</style>")
    assert "prefers-color-scheme:dark" in style
    drawn = set(re.findall(r"var\((--\w+)\)", content))
    assert {"--c1", "--c2", "--text"} <= drawn
    for name in drawn:  # once in light, once in dark
        assert style.count(f"{name}:") == 2
    assert not re.findall(r"#[0-9a-f]{6}\b(?!\d)", re.sub(IDS, "", content))


def test_names_from_outside_are_only_text(html_page):
    reader = Reader(html_page)
    assert f"{NASTY}={NASTY}1" in reader.text
    assert f"{NASTY}0 – {NASTY}1" in reader.text
    assert f"{NASTY}first/kernel" in reader.text
    assert f"Groups by {NASTY}" in reader.text
    assert "<script" not in html_page


def test_the_figures_are_there(html_page):
    text = Reader(html_page).text
    for words in ("Gradient norm", "Step by step", "Where runs part", "95 %"):
        assert words in text


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, 3.0],
        [5.0, 5.0, 5.0],
        [1e-12, np.nan, 1e3],
        [0.0, 1e-7, 1.0],
        [np.nan, 4.0, np.inf],
        [0.0, 0.0, 0.0],
        [np.nan, np.nan, np.nan],
    ],
)
def test_every_chart_can_be_drawn(values, logarithmic):
    values = np.array(values)
    data = {"step": np.array([0, 5, 10]), "a": values, "b": values * 1e6}
    chart = Chart("t", "n", (Line("a", "a", "a", "b"),), logarithmic)
    svg = charts.svg(chart, data)
    Reader(svg)
    assert "nan" not in svg
    assert svg.count("<use ") >= np.isfinite(values).sum()


def test_an_interval_does_not_hide_the_line():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    ax = figure.add_subplot()
    line = Line("a", "a", "a", "b")
    steps = np.arange(3)
    data = {"step": steps, "a": steps + 1.0, "b": np.full(3, 1e9)}
    charts.draw(ax, Chart("t", "n", (line,)), data)
    assert ax.get_ylim()[1] < 10


@pytest.mark.parametrize(("high", "drawn"), [(3.0, True), (1018.0, False)])
def test_an_interval_that_says_nothing_is_not_drawn(high, drawn):
    """That of two seeds would be the whole chart."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    ax = figure.add_subplot()
    line = Line("a", "a", lambda data: data["a"] / 2, "b")
    data = {"step": np.arange(3), "a": np.ones(3), "b": np.full(3, high)}
    charts.draw(ax, Chart("t", "n", (line,)), data)
    (band,) = ax.collections
    assert bool(band.get_paths() and len(band.get_paths()[0].vertices)) == drawn


def test_long_runs_are_drawn_without_dots():
    values = np.random.default_rng(0).random(300)
    data = {"step": np.arange(300), "a": values}
    svg = charts.svg(Chart("t", "n", (Line("a", "a"),), False), data)
    assert svg.count("<use ") < 60
    assert len(svg) < 30_000


def test_the_map_tells_unknown_from_equal():
    distances = np.array([2.0, 0.5])
    assert page._shade(np.nan, distances) == 'class="none"'
    assert page._shade(0.0, distances) == ""
    assert "var(--c1) 95%" in page._shade(2.0, distances)
    assert "var(--c1) 15%" in page._shade(0.5, distances)


def test_the_map_names_its_rows_and_marks_a_run_and_itself(tmp_path):
    name = "a long name that was cut off where there was no room for it"
    for k in range(3):
        gradients = made_up.around(1, 8, 4, k // 2)
        made_up.write(tmp_path, f"{name} {k}", gradients, seed=k // 2)
    html = kpg.compare_runs(tmp_path)._repr_html_()
    rows = re.findall(r'<th scope="row">([^<]*)</th>', html)
    assert rows == ["seed 0", "seed 0 (2)", "seed 1"]
    assert html.count('<td class="self">') == 3
    assert 'class="none"' not in html
    assert "text-overflow" not in html
    assert f"<td>{name} 1</td>" in html.replace(' class="long"', "")


def test_the_glossary_has_the_headings_that_are_shown(html_page):
    heads = re.findall(r'<th scope="col">([^<]*)</th>', html_page)
    terms = re.findall(r"<dt>([^<]*)</dt>", html_page)
    assert set(terms) < set(heads)
    plain = {"groups", "runs of each", "set", "run", "name", "seed", "device"}
    plain |= {"mode", "records", "last step", "tags"}
    assert set(heads) - set(terms) == plain


def test_many_runs_have_no_map(tmp_path):
    for seed in range(41):
        gradients = made_up.around(1, 8, 1, seed)
        made_up.write(tmp_path, f"{seed:02}", gradients, seed=seed)
    html = kpg.compare_runs(tmp_path)._repr_html_()
    assert "Run against run" not in html
    assert "<td>40</td>" in html


def test_a_table_as_text_and_as_html():
    rows = [["a", "10"], ["long", "9"]]
    lines = tables.as_text(["name", "n"], rows, left=["name"])
    assert lines == ["name   n", "a     10", "long   9"]
    html = tables.as_html(["<n>"], [["&"], ["x" * 50]])
    reader = Reader(html)
    assert reader.text == "<n>&" + "x" * 50
    assert ("class", "long") in reader.attributes


def test_sentences_are_wrapped():
    lines = tables.bullets(["one two three", "four"], "*", width=9)
    assert lines == ["* one two", "  three", "* four"]
