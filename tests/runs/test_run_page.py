"""The page of a recorded run: what it shows, and that it stands alone."""

import dataclasses
import math
import pathlib
import re
import sys
from html import escape

import numpy as np
import pytest

import keras_pergrad as kpg
from keras_pergrad.__main__ import main
from keras_pergrad.runs.figures import FIGURES
from keras_pergrad.runs.recorder import Recorder
from tests.runs.html_reader import read
from tests.runs.records import write
from tests.trackers.fits import fitted
from tests.trackers.readings import INFO, PATHS, reading


def page_of(tmp_path, *readings):
    """Record readings, and return the text of the page."""
    norms = {"norm": np.float32([1.5, 0.1])}
    steps = {
        one.step: dataclasses.replace(
            one, by_variable={**norms, **one.by_variable}
        )
        for one in readings
    }
    run = write(
        tmp_path,
        steps,
        reads=steps.get,
        variables=INFO.variables,
        seed=INFO.seed,
        batch_size=INFO.batch_size,
        tags={"<b>&": "cpu"},
    )
    path = kpg.runs.page(run)
    assert path == str(run / "index.html")
    return pathlib.Path(path).read_text(encoding="utf-8")


def test_it_shows_all_figures_variables_and_layers(tmp_path):
    infinite = reading(10, gradient_cabs=math.inf)
    shown = page_of(tmp_path, reading(3), infinite)
    for words in (
        "Gradients of first",
        "2 measurements of 8 samples, the last at step 10",
        "seed 0 · device CPU · batch size 8",
        "gradient_norm",
        "Last: 12",
        "infinite at step 10",
        "dead: dense",
        '<th scope="col">norm test</th>',
        *PATHS,
    ):
        assert words in shown, words
    # It stands alone; names are escaped.
    read(shown)
    assert not re.search(r"<script|<link|href=|url\(|://|<b>", shown)
    assert set(re.findall(r'src="(.{26})', shown)) == {
        "data:image/svg+xml;base64,"
    }
    assert "&lt;b&gt;&amp; cpu" in shown


def test_the_loss_is_first_and_charts_have_captions(tmp_path):
    figures = {"bitwise_equal_variables": 2, "one's own": 1.0}
    one = dataclasses.replace(reading(3, **figures), loss=0.25)
    shown = page_of(tmp_path, one)
    titles = re.findall("<figcaption>(.*?)</figcaption>", shown)
    assert titles[0] == "Compiled loss of the measured batch"
    assert titles[1] == "Norm of the mean gradient"
    assert "one&#x27;s own" in titles
    assert "Last: 0.25" in shown
    assert "Unit: loss per unit of weight" in shown
    assert "bitwise_equal_variables" not in shown


def test_many_measurements_make_no_larger_page(tmp_path):
    sizes = [
        len(page_of(tmp_path / str(count), *map(reading, range(count))))
        for count in (300, 900)
    ]
    assert sizes[1] < 1.1 * sizes[0]


@pytest.mark.quick
def test_a_fit_and_the_command(tmp_path, capsys):
    watch, _ = fitted((), log_dir=tmp_path, instruments="all", histograms=True)
    assert main(["show", str(tmp_path)]) == 0
    path = capsys.readouterr().out.strip().removeprefix("Written: ")
    assert path == f"{watch.run_directory}/index.html"
    shown = pathlib.Path(path).read_text(encoding="utf-8")
    read(shown)
    for name in watch.readings[-1].figures:
        if name != "bitwise_equal_variables":
            title = FIGURES[name].caption.rstrip(".").partition(":")[0]
            assert f"<figcaption>{escape(title)}</figcaption>" in shown
            assert f"In the logs: {name}<" in shown
    assert "head/kernel" in shown
    assert "<h2>Advice</h2>" in shown
    assert all(f"<p>{one.name}: " in shown for one in watch.advice)


def test_the_command_says_what_it_cannot_show(tmp_path, capsys):
    assert main(["show", str(tmp_path / "nowhere")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main(["show", str(tmp_path)]) == 2
    assert "Received: none" in capsys.readouterr().err
    for run in ("a", "b"):
        write(tmp_path, [], run=run)
    assert main(["show", str(tmp_path), "--html", "one.html"]) == 2
    assert "2 runs" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "a")]) == 2
    assert "Received: none yet" in capsys.readouterr().err
    target = tmp_path / "page.html"
    write(tmp_path, [1], Recorder.resume, run="a")
    assert main(["show", str(tmp_path / "a"), "--html", str(target)]) == 0
    assert target.exists()


def test_without_matplotlib_it_has_all_but_charts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = page_of(tmp_path, reading(3))
    assert "pip install 'keras-pergrad[plot]'" in shown
    assert "<figure>" not in shown
    assert PATHS[0] in shown
