"""No text has a word that the glossary of CONTRIBUTING.md bans."""

import ast
import functools
import pathlib
import re

import pytest

from docs import blocks

ROOT = pathlib.Path(__file__).parents[1]
GLOSSARY = ROOT / "CONTRIBUTING.md"
PAGES = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"),
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
    *sorted(
        str(p.relative_to(ROOT)) for p in ROOT.glob("benchmarks/results/*.md")
    ),
]
FILES = {str(p.relative_to(ROOT)) for p in ROOT.glob("keras_pergrad/**/*.py")}
#: What a program prints or another test writes: code, comments, the refusals
#: of Keras's layers; and the glossary itself.
OTHERS = re.compile(
    r"`[^`]*`|<!--.*?-->|^### Words$.*?^### |^## Refused$.*?^## ",
    re.DOTALL | re.MULTILINE,
)
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
#: Code in a docstring: between backticks, or a line of a doctest.
CODE = re.compile(r"`[^`]*`|^\s*(?:>>>|\.\.\.) .*$", re.MULTILINE)


@functools.cache
def banned():
    """Return a pattern for the words in bold in the glossary."""
    text = GLOSSARY.read_text(encoding="utf-8")
    glossary = text.split("\n### Words\n")[1].split("\n### ")[0]
    words = re.findall(r"\*\*(.+?)\*\*", glossary)
    assert len(words) > 10
    # Three dots stand for up to three words.
    found = (re.escape(w).replace(r"\ \.\.\.", r"(?: \w+){1,3}") for w in words)
    return re.compile(rf"\b(?:{'|'.join(found)})\b", re.IGNORECASE)


def hits(text):
    """Return the banned words of a text, with what stands around them."""
    text = re.sub(r"\s+", " ", text)
    return [
        text[max(match.start() - 30, 0) : match.end() + 30]
        for match in banned().finditer(text)
    ]


def messages(source):
    """Yield the strings of a program with a space in them, but no docstrings.

    A field in braces is a name, not a word.
    """
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    skipped = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            parts = [getattr(part, "value", "") for part in node.values]
            yield "".join(part for part in parts if isinstance(part, str))
    for node in nodes:
        if isinstance(node, ast.Constant) and node not in skipped:
            text = node.value if isinstance(node.value, str) else ""
            yield re.sub(r"\{.*?\}", "", text) if " " in text else ""


def docstrings(source):
    """Yield the docstrings of a program, without the code in them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            yield CODE.sub("", ast.get_docstring(node) or "")


def wrong_words(texts_of):
    """Return the hits in what a function finds in each file, by file."""
    wrong = {}
    for file in sorted(FILES):
        for text in texts_of((ROOT / file).read_text(encoding="utf-8")):
            if hits(text):
                wrong.setdefault(file, []).extend(hits(text))
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_the_words_of_the_field(page):
    text = blocks.FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert hits(OTHERS.sub("", text)) == []


def test_messages_have_the_words_of_the_field():
    assert wrong_words(messages) == {}


def test_docstrings_have_the_words_of_the_field():
    assert wrong_words(docstrings) == {}


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
    assert bool(hits(text)) == expected


def test_messages_are_found():
    source = '"""told"""\nx = f"told {apart} so"\ny = "a {told} b", "told"\n'
    assert [m for m in messages(source) if m] == ["told  so", "a  b"]


def test_docstrings_are_found():
    source = '''"""told"""
class A:
    """It is told `apart`.

    >>> apart
    """
    def f():
        """Told."""
        return "told so"
'''
    assert [bool(hits(text)) for text in docstrings(source)] == [True] * 3
    assert "apart" not in "".join(docstrings(source))
