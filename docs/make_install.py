"""Writes into the pages how the package is installed.

    python docs/make_install.py

What is right for a clone differs from what is right once the package is on
the package index. `published` in pyproject.toml says which of the two holds.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.addresses import COLAB, PUBLISHED  # noqa: E402

PIP = re.compile(
    r"pip install (?P<quote>[\"']?)(?:keras-pergrad|\.)"
    r"(?P<extras>\[[\w,-]+\])?(?P=quote)(?=[\s`]|$)"
)
#: What is said before and after publication, word for word.
SAID = [
    (
        "In the folder of the repository, since the package is on no package "
        "index yet:",
        "From the package index:",
    ),
    (
        "Nothing is hosted yet: if you can read this file, you have the "
        "repository or its source archive, so run these commands in its "
        "folder.",
        "Run `make` in a clone of the repository.",
    ),
]
#: The line of a guide that leads to its notebook.
NOTEBOOK = re.compile(
    r"^(?:\[!\[Open in Colab\]\(\.\./pictures/colab\.svg\)\]"
    rf"\({re.escape(COLAB)}docs/notebooks/|"
    r"\[This guide as a notebook\]\(\.\./notebooks/)(?P<name>\w+)\.ipynb\)$",
    re.MULTILINE,
)


def pages():
    """Return the pages that tell how to install or lead to a notebook."""
    guides = sorted(ROOT.glob("docs/guides/*.md"))
    texts = {page: page.read_text("utf-8") for page in guides}
    with_notebook = [p for p in guides if NOTEBOOK.search(texts[p])]
    return [ROOT / "README.md", ROOT / "docs" / "install.md", *with_notebook]


def as_set(text, published=PUBLISHED):
    """Return a page's text as it is to be, published or not."""
    name = "keras-pergrad" if published else "."

    def pip(match):
        extras = match["extras"] or ""
        quote = '"' if extras else ""
        return f"pip install {quote}{name}{extras}{quote}"

    def notebook(match):
        file = f"{match['name']}.ipynb"
        if published:
            picture = "[![Open in Colab](../pictures/colab.svg)]"
            return f"{picture}({COLAB}docs/notebooks/{file})"
        return f"[This guide as a notebook](../notebooks/{file})"

    text = NOTEBOOK.sub(notebook, PIP.sub(pip, text))
    for before, after in SAID:
        old, new = (before, after) if published else (after, before)
        text = text.replace(old, new)
    return text


def main():
    for page in pages():
        text = page.read_text("utf-8")
        if as_set(text) != text:
            print(page.relative_to(ROOT))
            page.write_text(as_set(text), encoding="utf-8")


if __name__ == "__main__":
    main()
