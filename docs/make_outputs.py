"""Writes into pages what their code prints and draws.

    python docs/make_outputs.py README.md docs/guides/unusual_samples.md

A block of ```text right after a block of Python is its output, and is
replaced by what was printed. Pictures that the code saves are copied to
docs/pictures, if the page shows one of that name. A page without a block for
its output is run all the same.
"""

import contextlib
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs import blocks  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"


def fill(page):
    """Run a page and write its outputs into it."""
    text = page.read_text(encoding="utf-8")
    changed, done = [], 0
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            found = list(blocks.run(page))
        for block, printed in found:
            changed.append(text[done : block.end])
            done = block.end
            shown = blocks.shown_after(text, block)
            if shown:
                changed.append(f"\n\n```text\n{printed}\n```")
                done = shown.end
            elif printed:
                print(f"{page.name}, line {block.line}, not shown:\n{printed}")
        for picture in pathlib.Path(folder).glob("*.png"):
            if f"pictures/{picture.name})" in text:
                small(picture, PICTURES / picture.name)
    page.write_text("".join([*changed, text[done:]]), encoding="utf-8")


def small(source, target):
    """Copy a picture with few colours, which is enough for charts."""
    from PIL import Image

    with Image.open(source) as picture:
        picture.convert("RGB").quantize(128).save(target, optimize=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        fill(pathlib.Path(name).resolve())
