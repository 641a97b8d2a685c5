"""Pages have none of the words that the glossary of CONTRIBUTING.md bans."""

import pathlib
import re

import pytest

from docs import blocks

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(
            ROOT / f"{name}.md"
            for name in ("README", "CONTRIBUTING", "SECURITY")
        ),
        *ROOT.glob("docs/**/*.md"),
    ]
)
#: What a program prints, or another test writes: code, comments, tables made
#: from the package's messages, and the glossary itself.
MADE = re.compile(
    r"`[^`]*`|<!--.*?-->|^### Words$.*?^### |^## Refused$.*?^## ",
    re.DOTALL | re.MULTILINE,
)


def banned():
    """Return the patterns of the words in bold in the glossary."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    glossary = text.split("\n### Words\n")[1].split("\n### ")[0]
    rows = [row for row in glossary.splitlines() if row.startswith("| **")]
    words = [w for row in rows for w in re.findall(r"\*\*(.+?)\*\*", row)]
    # Three dots stand for up to three words.
    patterns = (
        re.escape(w).replace(r"\ \.\.\.", r"(?: \w+){1,3}") for w in words
    )
    return [re.compile(rf"\b{p}\b", re.IGNORECASE) for p in patterns]


def found(text):
    """Return the banned words of a text, with what stands around them."""
    text = re.sub(r"\s+", " ", text)
    return [
        text[max(match.start() - 30, 0) : match.end() + 30]
        for pattern in banned()
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_the_words_of_the_field(page):
    text = blocks.FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert found(MADE.sub("", text)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("They are told so.", True),
        ("It tells such rounding from a fault.", True),
        ("It tells you what to do.", False),
        ("Samples stay\napart.", True),
        ("Besides, it is an odd sample.", True),
        ("an even and an odd number", False),
    ],
)
def test_banned_words_are_found(text, expected):
    assert bool(found(text)) == expected
