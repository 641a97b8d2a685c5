"""Links between the files of a clone lead to files and headings that exist.

The pages of the site are tested where it is built (`make docs`).
"""

import functools
import pathlib
import re

import pytest

from docs import addresses, blocks

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("benchmarks", "docs", "examples", "keras_pergrad", "tests")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for found in (
        ROOT.glob("*.md"),
        ROOT.glob(".github/**/*.md"),
        *(ROOT.glob(f"{folder}/**/*.md") for folder in FOLDERS),
    )
    for path in found
)
#: A link or picture in brackets, one that is defined apart, and one of HTML.
TARGETS = (
    re.compile(r"\]\(<?([^)\s>]+)"),
    re.compile(r"^\[[^\]]+\]: (\S+)", re.MULTILINE),
    re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\""),
)
#: An address of a file of the repository, which a README needs.
OWN = (addresses.FILE, addresses.FOLDER, addresses.PICTURE)


@functools.cache
def _prose(page):
    """The text of a page without its blocks of code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return blocks.FENCE.sub("", text)


def _links(text):
    """What a text links to in this repository: a path and an anchor each.

    The path is "" for the page itself, and None for an address elsewhere. A
    path that starts with a slash is one from the root.
    """
    text = re.sub(r"`[^`\n]*`", "", text)
    for pattern in TARGETS:
        for target in pattern.findall(text):
            start = next((s for s in OWN if target.startswith(s)), None)
            if start:
                target = f"/{target.removeprefix(start)}"
            elif re.match(r"\w+:", target):
                continue
            path, _, anchor = target.partition("#")
            yield path, anchor


def _anchors(page):
    """The anchors that a page has where its Markdown is shown by itself.

    They are made as by GitHub: letters, digits, hyphens and underscores stay.
    The names of the reference are anchors on the site alone.
    """
    text = _prose(page)
    found = set(re.findall(r"^::: (\S+)", text, re.MULTILINE))
    found |= set(re.findall(r"<\w+ [^>]*?(?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip()
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def _dead(page, text):
    """The links of a page that lead nowhere."""
    for path, anchor in _links(text):
        start = ROOT if path.startswith("/") else (ROOT / page).parent
        file = (start / path.lstrip("/")).resolve() if path else ROOT / page
        if not file.exists() or not file.is_relative_to(ROOT):
            yield f"{path}: no such file"
        elif anchor and file.suffix == ".md":
            name = file.relative_to(ROOT).as_posix()
            if anchor not in _anchors(name):
                yield f"{path}#{anchor}: no such heading"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    assert list(_dead(page, _prose(page))) == []


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("[a](docs/limits.md)", False),
        ("[a](docs/no.md)", True),
        ("[a](docs/gpu.md#cost)", False),
        ("[a](docs/gpu.md#no)", True),
        ("[a](#what-it-costs)", False),
        ("[a](#no)", True),
        ("![a](docs/no.png)", True),
        ('<img src="docs/no.png">', True),
        ("[a]: docs/no.md", True),
        (f"[a]({addresses.FILE}docs/no.md)", True),
        (f"[a]({addresses.FILE}docs/gpu.md#no)", True),
        (f"[a]({addresses.FILE}docs/gpu.md#cost)", False),
        ("[a](https://example.org/no.md#no)", False),
        ("`[a](docs/no.md)`", False),
        ("[a](../outside.md)", True),
    ],
)
def test_dead_links_are_found(text, dead):
    assert bool(list(_dead("README.md", text))) == dead


def test_the_pages_of_the_clone_are_looked_at():
    named = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md"}
    assert {*named, "benchmarks/README.md", "docs/guides/index.md"} <= set(
        PAGES
    )
