"""The built pages: what they load, where they lead, what is found."""

import functools
import html.parser
import json
import pathlib
import re
import urllib.parse

import pytest

from docs.addresses import PICTURE, SITE
from docs.site_tests.conftest import SITE as FOLDER

PAGES = sorted(FOLDER.rglob("*.html"))
#: Elements that load what they name, and the attribute that names it.
LOADING = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "input": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
#: Kinds of links in a page's head that say where it is and load nothing.
SAYING = {"canonical", "next", "prev", "alternate"}


class _Page(html.parser.HTMLParser):
    """The links, the anchors and what is loaded."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = set(), set(), {""}
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.elements.append((tag, values))
        self.anchors.add(values.get("id") or values.get("name") or "")
        if tag == "a" and values.get("href"):
            self.links.add(values["href"])
        named = values.get(LOADING.get(tag))
        if named and values.get("rel") not in SAYING:
            self.loaded.add(named)


@functools.cache
def _page(path):
    return _Page(path.read_text(encoding="utf-8"))


def _inside(path, target):
    """The file and the anchor that a page's link leads to, or None."""
    parts = urllib.parse.urlsplit(target)
    if parts.scheme or parts.netloc:
        whole = f"{parts.scheme}://{parts.netloc}{parts.path}"
        if not whole.startswith(f"{SITE}/"):
            return None
        file = FOLDER / whole.removeprefix(f"{SITE}/")
    elif not parts.path:
        file = path
    elif parts.path.startswith("/"):
        # The page of errors, which may stand in for any address.
        base = urllib.parse.urlsplit(SITE).path
        file = FOLDER / parts.path.removeprefix(base).lstrip("/")
    else:
        file = pathlib.Path(path.parent, urllib.parse.unquote(parts.path))
    file = file.resolve()
    return (file / "index.html" if file.is_dir() else file), parts.fragment


def test_the_site_is_built():
    assert len(PAGES) > 40, "run: make docs"


def test_nothing_is_loaded_from_elsewhere():
    for path in PAGES:
        for target in _page(path).loaded:
            assert _inside(path, target) or target.startswith("data:"), (
                f"{path.relative_to(FOLDER)} loads {target}"
            )
    for path in FOLDER.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r"(?:url\(|@import )[\"']?([^)\"']+)", text):
            assert not re.match(r"(https?:)?//", target), f"{path}: {target}"
    assert PICTURE not in (FOLDER / "index.html").read_text()


def test_programs_find_every_page_of_the_menu():
    """In llms.txt, whose addresses are those of pages that are there."""
    text = (FOLDER / "llms.txt").read_text(encoding="utf-8")
    addresses = re.findall(r"^- \[.+\]\((.+)\)$", text, re.MULTILINE)
    there = [_inside(FOLDER / "llms.txt", address) for address in addresses]
    assert all(file.is_file() for file, _ in there)
    assert {file for file, _ in there} == {
        path.resolve() for path in PAGES if path.name != "404.html"
    }


def test_links_lead_somewhere():
    """To pages and headings that are there; other sites are not asked."""
    wrong = []
    for path in PAGES:
        for target in _page(path).links | _page(path).loaded:
            if re.match(r"(mailto|data|javascript):", target):
                continue
            inside = _inside(path, target)
            if inside is None:
                continue
            file, anchor = inside
            anchor = urllib.parse.unquote(anchor)
            there = file.is_file() and (
                file.suffix != ".html" or anchor in _page(file).anchors
            )
            if not there:
                wrong.append(f"{path.relative_to(FOLDER)}: {target}")
    assert wrong == []


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.parent.name)
def test_page_fits_phones_and_has_a_dark_mode(path):
    elements = _page(path).elements
    viewports = [v for tag, v in elements if v.get("name") == "viewport"]
    assert "width=device-width" in viewports[0]["content"]
    schemes = [v.get("data-md-color-scheme") for tag, v in elements]
    assert {"default", "slate"} <= set(schemes)


@pytest.mark.parametrize(
    "words",
    [
        "batchnormalization",
        "epsilon",
        "out of memory",
        "microbatch",
        "metal",
        "per_sample_norms",
        "lora",
        "saliency",
        "resum",
    ],
)
def test_search_knows(words):
    index = json.loads((FOLDER / "search" / "search_index.json").read_text())
    texts = [f"{doc['title']} {doc['text']}".lower() for doc in index["docs"]]
    assert any(words in text for text in texts)
