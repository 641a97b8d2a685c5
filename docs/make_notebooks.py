"""Writes the notebooks of docs/notebooks from the guides.

    python docs/make_notebooks.py          # writes them
    python docs/make_notebooks.py --check  # fails where one is not up to date

A guide is the source, in jupytext's Markdown: blocks of Python become cells,
what follows them as ```text becomes their output, and links lead to the site.
Pictures that a cell draws are left out: the notebook draws them.
"""

import pathlib
import posixpath
import re
import sys

import jupytext
import nbformat
from nbformat.v4 import new_code_cell, new_output

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.addresses import FILE, FOLDER, PUBLISHED, SITE  # noqa: E402
from docs.make_install import NOTEBOOK  # noqa: E402

GUIDES = ROOT / "docs" / "guides"
NOTEBOOKS = ROOT / "docs" / "notebooks"
NAMES = [
    "consistent_gradients",
    "slow_training",
    "input_gradients",
    "cheaper_gradients",
    "parallel",
]
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
_PACKAGE = "keras-pergrad" if PUBLISHED else "../.."
INSTALL = f"""\
# Once, where keras_pergrad is not installed:
# %pip install -q "{_PACKAGE}[compare,examples]"
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # no log lines among the results"""
OUTPUT = re.compile(r"\A\s*```text\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(
    r"^!\[[^\]]*\]\(\.\./pictures/[^)]*\.png\)\n*", re.MULTILINE
)
LINK = re.compile(r"\]\((?P<target>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")


def notebook(name):
    """Return the notebook of a guide, as text."""
    source = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    if not PUBLISHED:
        source = NOTEBOOK.sub("", source)  # it would lead to itself
    made = jupytext.reads(source, fmt="md")
    cells = []
    for cell in made.cells:
        if cell.cell_type == "markdown":
            text = cell.source
            if cells and cells[-1].cell_type == "code":
                text = with_output(cells[-1], text)
            text = linked(PICTURE.sub("", text)).strip()
            if not text:
                continue
            cell.source = text
        cells.append(cell)
    cells.insert(1, new_code_cell(INSTALL))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    made.cells = cells
    made.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    made.nbformat, made.nbformat_minor = 4, 5
    nbformat.validate(made)
    return nbformat.writes(made, indent=1) + "\n"


def with_output(cell, text):
    """Move what a cell has printed from the text behind it into the cell."""
    match = OUTPUT.match(text)
    if match is None:
        return text
    cell.outputs = [new_output("stream", name="stdout", text=match[1])]
    return text[match.end() :]


def linked(text):
    """Turn links between pages into addresses."""

    def link(match):
        target, anchor = match["target"], match["anchor"] or ""
        if target.endswith("colab.svg"):
            return f"]({BADGE})"
        file = posixpath.normpath(posixpath.join("docs/guides", target))
        if not file.startswith("docs/") or not file.endswith(".md"):
            start = FOLDER if (ROOT / file).is_dir() else FILE
            return f"]({start}{file}{anchor})"
        page = file.removeprefix("docs/").removesuffix(".md")
        return f"]({SITE}/{page}/{anchor})"

    return LINK.sub(link, text)


def main():
    """Write or check all of them; return the exit code."""
    NOTEBOOKS.mkdir(exist_ok=True)
    stale = []
    for name in NAMES:
        path, text = NOTEBOOKS / f"{name}.ipynb", notebook(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"Not up to date: {', '.join(stale)}. Run: make notebooks")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
