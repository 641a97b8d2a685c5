"""The statement as a page, for whoever has to sign it."""

from html import escape

import numpy as np

from keras_pergrad.common.page import bullet_list, figure, main, whole
from keras_pergrad.common.pictures import (
    COLORS,
    DASHES,
    GREY,
    add_legend,
    as_image,
    gallery,
    new_figure,
)
from keras_pergrad.common.text import as_html
from keras_pergrad.privacy import statement_words as words
from keras_pergrad.privacy.trade_off import bound_curve

_TITLE = "Privacy statement"
_CURVE = "What an attacker can identify at most"


def document(entries):
    """Return the whole page, from the entries of a `Statement`."""
    return whole(_TITLE, main(_content(entries)))


def _content(entries):
    formal, *warnings = words.describe_guarantee(entries)
    is_trained = words.is_trained(entries)
    yield f"<h1>{_TITLE}</h1>"
    yield from (_paragraph(warning, "first") for warning in warnings)
    if is_trained:
        yield _paragraph(words.describe_plainly(entries), "first")
        yield _paragraph(words.describe_level(entries))
    yield _paragraph(formal)
    if entries["planned"]:
        yield _paragraph("This describes a plan: nothing has been trained yet.")
    if is_trained and "true_positive_rates" in entries:
        yield from _trade_off(entries)
    yield f"<h2>How it is trained</h2>{bullet_list(_training(entries))}"
    yield f"<h2>What is proved</h2>{_paragraph(entries['proof'] + '.')}"
    yield "<h2>What is assumed, on the word of those who train it</h2>"
    yield bullet_list(entries["assumptions"])
    yield f"<h2>What is not covered</h2>{bullet_list(entries['not_covered'])}"
    yield f"<h2>What it was made with</h2>{bullet_list(_origin(entries))}"
    yield "<h2>Name, date and signature</h2><p>&nbsp;</p>"


def _paragraph(text, css_class=""):
    attribute = f' class="{css_class}"' if css_class else ""
    return f"<p{attribute}>{escape(text)}</p>"


def _trade_off(entries):
    """Yield what an attacker can find out: rates, pairs and curve."""
    unit = entries["unit"]
    yield "<h2>What an attacker can find out</h2>"
    yield _paragraph(
        f"An attacker infers from the weights which {unit}s were used, and "
        f"wrongly accuses some {unit}s that were not used. This is the largest "
        "share of the used ones that they can identify:"
    )
    columns = ["wrongly accused", "identified at most"]
    yield as_html(columns, words.attacker_rates(entries))
    _, *others = words.describe_trade_off(entries)
    yield bullet_list(others)
    yield gallery(_pictures(entries))


def _pictures(entries):
    """Yield the trade-off curve."""
    picture, axes = new_figure((5.6, 4.2))
    wrong = np.linspace(0, 1, 201)
    for found, label, color, dashes in (
        (bound_curve(entries, wrong), "bound", COLORS[0], DASHES[0]),
        (wrong, "guessing at random", GREY, DASHES[1]),
    ):
        axes.plot(100 * wrong, 100 * found, dashes, color=color, label=label)
    unit = entries["unit"]
    axes.set_xlabel(f"% of unused {unit}s that are wrongly accused")
    axes.set_ylabel(f"% of used {unit}s that are identified")
    axes.grid(color=GREY, alpha=0.3)
    add_legend(axes, 2)
    note = "The closer the bound is to guessing, the better the protection."
    yield figure(_CURVE, as_image(picture, _CURVE), note)


def _training(entries):
    """Yield what was done, and the budget."""
    yield from (f"{text}." for text in words.each_phase(entries))
    if entries["budget"] is not None:
        yield f"The budget for epsilon is {entries['budget']:g}."


def _origin(entries):
    """Yield the date and the versions, and the file if it is known."""
    yield from words.describe_origin(entries)
    if not entries.get("weights_sha256"):
        yield (
            "The statement names no file; statement(weights_file=path) adds "
            "the SHA-256 of one."
        )
