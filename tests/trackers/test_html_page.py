"""The page of a run: what it shows, and that it stands alone."""

import dataclasses
import math
import re

import pytest

import keras_pergrad as kpg
from keras_pergrad.gradient_health.instruments import INSTRUMENTS
from keras_pergrad.trackers import html_page
from tests.runs.html_reader import read
from tests.trackers.fits import fitted
from tests.trackers.readings import INFO, PATHS, reading, written


@pytest.fixture(autouse=True)
def at_each_measurement(monkeypatch):
    """However fast the measurements are."""
    monkeypatch.setattr(html_page, "_PAUSE", 0)


@pytest.fixture
def page(tmp_path):
    page = kpg.trackers.Page(tmp_path / "page.html")
    return written(page, reading(3), reading(10, gradient_cabs=math.inf))


def text(page):
    with open(page.path, encoding="utf-8") as file:
        return file.read()


def test_it_shows_all_figures_variables_and_layers(page):
    shown = text(page)
    for words in (
        "Gradients of seed0",
        "step 10, still running · 2 measurements of 8 samples",
        "seed 0 · device CPU · batch size 8",
        "device cpu",
        "gradient_norm",
        "Last: 12",
        "infinite at step 10",
        "dead: dense",
        "norm_test",
        *PATHS,
    ):
        assert words in shown, words
    assert "<title>step 3: 5</title>" in shown
    assert "<title>0 to 0.25: 3</title>" in shown
    # It stands alone, for light and dark.
    read(shown)
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|://", shown)
    assert '<meta name="color-scheme" content="light dark">' in shown
    assert "@media(prefers-color-scheme:dark)" in shown


def test_the_loss_is_first_and_charts_have_captions(tmp_path):
    """Names are escaped."""
    figures = {"bitwise_equal_variables": 2, "<b>&": 1.0}
    one = dataclasses.replace(reading(3, **figures), loss=0.25)
    shown = text(written(kpg.trackers.Page(tmp_path / "page.html"), one))
    titles = re.findall("<figcaption>(.*?)</figcaption>", shown)
    assert titles[:2] == ["loss", "gradient_norm"]
    assert "The compiled loss of the measured batch" in shown
    assert "Last: 0.25" in shown
    assert "in loss per unit of weight" in shown
    assert "bitwise_equal_variables" not in shown
    assert "<b>" not in shown
    assert "&lt;b&gt;&amp;" in shown


def test_every_instrument_has_a_caption():
    names = {"vanishing_layers", "exploding_layers", *INSTRUMENTS} - {"layers"}
    assert {f"gradient_{name}" for name in names} <= set(html_page._CAPTIONS)


def test_it_loads_itself_again_until_the_run_has_ended(page, tmp_path):
    assert 'http-equiv="refresh"' in text(page)
    page.end()
    assert 'http-equiv="refresh"' not in text(page)
    assert "step 10, ended" in text(page)
    page.end()
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_measurements_that_follow_at_once_are_passed_over(page, monkeypatch):
    monkeypatch.setattr(html_page, "_PAUSE", 1e9)
    page.write(reading(20))
    page.write(reading(30))
    assert "step 20, still running" in text(page)
    page.end()
    assert "step 30, ended · 4 measurements" in text(page)


def test_a_full_disk_keeps_the_page_before(page, tmp_path, monkeypatch):
    before = text(page)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        page.write(reading(20))
    assert text(page) == before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_many_measurements_make_no_larger_page(tmp_path):
    sizes = []
    for count in (300, 900):
        page = kpg.trackers.Page(tmp_path / f"{count}.html")
        page.begin(INFO)
        page._readings = [reading(step) for step in range(count)]
        page.end()
        sizes.append(len(text(page)))
    assert sizes[1] < 1.1 * sizes[0]


def test_each_recorded_run_has_one(tmp_path):
    watch, _ = fitted((), log_dir=tmp_path, instruments="all", histograms=True)
    with open(f"{watch.run_directory}/index.html", encoding="utf-8") as file:
        shown = file.read()
    read(shown)
    for name in watch.readings[-1].figures:
        assert f"<figcaption>{name}</figcaption>" in shown
    assert "head/kernel" in shown
