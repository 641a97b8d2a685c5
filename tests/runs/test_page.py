import re
import sys

import numpy as np
import pytest

from keras_pergrad.common import text as tables
from keras_pergrad.diagnose import compare_runs
from keras_pergrad.runs import report
from tests.runs import made_up
from tests.runs.html_reader import read

NASTY = "<script>alert('x')</script>\"&$\\frac{"


@pytest.fixture(scope="module")
def html_page(tmp_path_factory):
    log_dir = tmp_path_factory.mktemp("runs")
    for seed in range(4):
        made_up.write(
            log_dir,
            # Without what the name of a directory cannot have.
            re.sub(r"[<>\"/\\]", "", NASTY) + str(seed),
            made_up.around(1, 8, 5, seed=seed // 2),
            seed=seed // 2,
            variance=50.0,
            tags={NASTY: f"{NASTY}{seed % 2}"},
            variables=[
                {"path": NASTY + p, "shape": list(s)}
                for p, s in made_up.SHAPES.items()
            ],
        )
    path = log_dir / "page.html"
    comparison = compare_runs(log_dir, by=NASTY)
    assert comparison.to_html(str(path)) == str(path)
    return path.read_text(encoding="utf-8")


def test_the_page_stands_alone_for_light_and_dark(html_page):
    """Drawings are in the page."""
    reader = read(html_page)
    assert not {"script", "link", "iframe"} & set(reader.tags)
    names = {name for name, _ in reader.attributes}
    assert not {"href", "onload", "onclick"} & names
    sources = [v for name, v in reader.attributes if name == "src"]
    assert len(sources) == 5
    assert all(v.startswith("data:image/svg+xml;base64,") for v in sources)
    assert "://" not in html_page
    assert not re.search(r"@import|url\(|<script", html_page)
    assert 'name="viewport"' in html_page
    assert '<meta name="color-scheme" content="light dark">' in html_page
    style, _, content = html_page.partition("</style>")
    assert "prefers-color-scheme:dark" in style
    for name in set(re.findall(r"var\((--\w+)\)", html_page)):
        assert style.count(f"{name}:") == 2
    assert not re.findall(r"#[0-9a-f]{6}\b(?!\d)", content)


def test_the_page_has_all_figures_names_and_terms(html_page):
    """Names from outside are only text."""
    text = read(html_page).text
    for words in (
        "Gradient norm",
        "Step by step",
        "Where runs diverge",
        "95 %",
        f"{NASTY}={NASTY}1",
        f"{NASTY}0 – {NASTY}1",
        f"{NASTY}first/kernel",
        f"Groups by {NASTY}",
    ):
        assert words in text
    heads = re.findall(r'<th scope="col">([^<]*)</th>', html_page)
    terms = re.findall(r"<dt>([^<]*)</dt>", html_page)
    assert set(terms) < set(heads)
    plain = {"groups", "runs of each", "set", "run", "name", "seed", "device"}
    plain |= {"mode", "records", "last step", "tags"}
    assert set(heads) - set(terms) == plain


@pytest.mark.parametrize("count", [2, 5, 41])
def test_what_the_number_of_runs_leaves_to_draw(tmp_path, count):
    """A map of many runs has no room; an interval of two fills the chart."""
    made_up.write_seeds(tmp_path, count, 2)
    comparison = compare_runs(tmp_path)
    html = comparison._repr_html_()
    assert ("Run against run" in html) == (count < 41)
    assert f"<td>{count - 1:02}</td>" in html
    *_, (_, _, [line, _]), _ = report.charts(comparison.data)
    assert np.isfinite(line.high).any() == (count > 2)


def test_without_matplotlib_the_page_has_all_but_charts(tmp_path, monkeypatch):
    made_up.write_seeds(tmp_path, 3, 2)
    comparison = compare_runs(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = "pip install 'keras-pergrad[plot]'"
    with pytest.raises(ImportError, match=re.escape(said)):
        comparison.plot()
    html = comparison._repr_html_()
    assert said in html
    assert "Step by step" in html
    assert "<figure>" not in html


def test_a_table_as_text_and_as_html():
    rows = [["a", "10"], ["long", "9"]]
    lines = tables.as_text(["name", "n"], rows, left=["name"])
    assert lines == ["name   n", "a     10", "long   9"]
    html = tables.as_html(["<n>"], [["&"], ["x" * 50]])
    reader = read(html)
    assert reader.text == "<n>&" + "x" * 50
    assert ("class", "long") in reader.attributes


def test_sentences_are_wrapped():
    lines = tables.bullets(["one two three", "four"], "*", width=9)
    assert lines == ["* one two", "  three", "* four"]
