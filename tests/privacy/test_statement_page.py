"""The statement's page: what it says, and that it stands alone."""

import json
import math
import re
import sys

import numpy as np
import pytest

from keras_pergrad.privacy.statement import Statement
from keras_pergrad.privacy.statement_words import factor_in_words
from tests.privacy.tiny import N, fitted, private, words
from tests.runs.html_reader import read

USERS = {"user_ids": np.arange(N) // 4, "samples_per_user": 2}
NASTY = "<b>&\"'"


def page_text(statement):
    """Return the text that a reader sees, in one line."""
    _, _, content = statement.to_html().partition("</style>")
    return words(read(f"<html><body>{content}").text)


def test_it_has_all_that_the_text_has(tmp_path):
    path = tmp_path / "published.weights.h5"
    path.write_bytes(b"weights")
    training = private(target_epsilon=3.0, epochs=2)
    statement = training.statement(weights_file=path)
    shown = page_text(statement)
    for line in re.split(r"\n(?! )", str(statement)):
        text = words(line.removeprefix("Phase: ").lstrip("- ").rstrip(";."))
        if text.startswith("An attacker"):
            # In a table, as numbers.
            for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text):
                assert number in shown, number
        elif text not in ("It is assumed that", "Not covered:"):
            assert text in shown, text
    cells = re.findall(r"<td>([^<]*)</td>", statement.to_html())
    assert cells == [
        cell
        for wrong, found in statement["true_positive_rates"]
        for cell in (f"1 in {1 / wrong:,.0f}", f"{100 * found:.3g} %")
    ]
    for text in (
        "The budget for epsilon is 3.",
        "nothing has been trained yet",
        "Name, date and signature",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("arguments", "who", "condition", "level"),
    [
        (
            {},
            "one person",
            "whether that person's example was used or not",
            "each example comes from a different person",
        ),
        (
            {"user_ids": None},
            "one example",
            "whether that example was used or not",
            "A person with several examples has less protection",
        ),
        (
            {**USERS, "noise_multiplier": 5.0},
            "one user",
            "whether that user's examples were used or not",
            "User-level privacy: it protects all examples of one user, at most "
            "2 of which are used",
        ),
        (
            {"sampling": "fixed", "noise_multiplier": 5.0},
            "one person",
            "whatever that person's example was replaced by",
            "each example comes from a different person",
        ),
    ],
)
def test_its_first_sentence_says_whom_it_protects(
    arguments, who, condition, *, level
):
    statement = private(steps=4, **arguments).statement()
    shown = page_text(statement)
    factor, chance = re.search(
        rf"No conclusion that anyone can draw from the weights about {who} "
        r"would change its probability by more than a factor of ([\d.,]+), "
        rf"{condition}, except for a probability of at most 1 in ([\d,]+) ",
        shown,
    ).groups()
    exact = math.exp(statement["epsilon"])
    assert exact <= float(factor.replace(",", "")) < 1.02 * exact
    assert 1 / int(chance.replace(",", "")) == pytest.approx(1e-2)
    assert level in shown


@pytest.mark.parametrize(
    ("epsilon", "factor"),
    [
        (0.0, "1.00"),
        (1e-5, "1.01"),
        (math.log(2), "2.00"),
        (1.0, "2.72"),
        (3.0, "20.1"),
        (8.0, "2,990"),
        (20.0, "486,000,000"),
        (20.1, None),
        (math.inf, None),
    ],
)
def test_a_factor_is_rounded_up(epsilon, factor):
    assert factor_in_words(epsilon) == factor


def test_it_says_if_nothing_is_promised():
    entries = dict(private(steps=4).statement())
    large = Statement({**entries, "epsilon": 45.2})
    assert "Epsilon is 45.2: so large a number bounds no" in page_text(large)
    outside = page_text(Statement({**entries, "outside": True}))
    warning, claim = "THIS DOES NOT HOLD", "No conclusion that anyone"
    assert 0 < outside.index(warning) < outside.index(claim)
    phases = [{**entries["phases"][0], "steps": 0}]
    nothing = {**entries, "planned": False, "phases": phases}
    shown = page_text(Statement(nothing))
    assert "The model was not trained privately" in shown
    assert claim not in shown
    assert "attacker" not in shown


def test_a_trained_model_and_a_saved_statement(training):
    statement = training.statement(fitted(training))
    shown = page_text(statement)
    assert "changes its probability by more than" in shown
    assert "nothing has been trained yet" not in shown
    saved = Statement(json.loads(json.dumps(statement)))
    assert page_text(saved) == shown
    new = "mu", "epsilons", "true_positive_rates", "date", "versions"
    old = {k: v for k, v in statement.items() if k not in new}
    (phase,) = statement["phases"]
    old["phases"] = [{k: v for k, v in phase.items() if k != "unit"}]
    shown = page_text(Statement(old))
    assert "about one example changes" in shown
    assert "attacker" not in shown


def test_it_stands_alone_for_light_dark_and_paper(tmp_path):
    """Text from outside is only text."""
    entries = dict(private(steps=4).statement())
    nasty = {
        "proof": f"{NASTY}proof",
        "assumptions": [f"{NASTY}assumed"],
        "not_covered": [f"{NASTY}left out"],
        "versions": {f"{NASTY}library": "1"},
        "unit": f"{NASTY}unit",
        "neighbours": f"{NASTY}neighbours",
        "accountant": f"{NASTY}accountant",
        "weights_sha256": f"{NASTY}sum",
    }
    statement = Statement({**entries, **nasty})
    html = statement.to_html()
    reader = read(html)
    assert not {"script", "link", "iframe", "b"} & set(reader.tags)
    assert not {"href", "onload"} & {name for name, _ in reader.attributes}
    (picture,) = [v for name, v in reader.attributes if name == "src"]
    assert picture.startswith("data:image/svg+xml;base64,")
    assert "://" not in html
    for words_ in ("(prefers-color-scheme:dark)", "@media print", "viewport"):
        assert words_ in html
    shown = page_text(statement)
    for value in nasty.values():
        value = value if isinstance(value, str) else next(iter(value))
        assert value in shown
    path = tmp_path / "statement.html"
    assert statement.to_html(path) == str(path)
    picture = re.compile(r'src="[^"]*"')  # its ids are drawn anew
    written = path.read_text(encoding="utf-8")
    assert picture.sub("", written) == picture.sub("", html)


def test_without_matplotlib_it_has_all_but_the_picture(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    html = private(steps=4).statement().to_html()
    assert "pip install 'keras-pergrad[plot]'" in html
    assert "<figure>" not in html
    assert "Epsilon for other values of delta" in html
