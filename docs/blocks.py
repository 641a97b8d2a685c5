"""The blocks of code on a page, and what they print."""

import contextlib
import dataclasses
import io
import pathlib
import re

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
#: How Keras and TensorFlow write over a line, and set colours.
CONTROL = re.compile(r"\x1b\[[0-9;]*m|.\x08")


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: what stands behind the fence: "python", "text", "sh", "".
        code: its lines, with the newline of the last.
        line: the number of its first line of code on the page.
        start: where the fence begins in the text of the page.
        end: where it ends.
    """

    language: str
    code: str
    line: int
    start: int
    end: int


def blocks(text):
    """Return all fenced blocks of a page, in their order."""
    return [
        Block(
            match["language"],
            match["code"],
            text.count("\n", 0, match.start("code")) + 1,
            start=match.start(),
            end=match.end(),
        )
        for match in FENCE.finditer(text)
    ]


def run(page, before=""):
    """Run a page's Python in one namespace, in the current folder.

    Args:
        page: the path of the page.
        before: code that makes what the page takes for granted.

    Yields:
        Each Python `Block`, and what it has printed.

    `shown_after` returns what the page shows of that.
    """
    page = pathlib.Path(page)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "__main__"}
    exec(before, namespace)
    for block in blocks(text):
        if block.language != "python":
            continue
        # Empty lines before it make the traceback show the page's own line.
        code = "\n" * (block.line - 1) + block.code
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), namespace)
        yield block, as_shown(printed.getvalue())


def shown_after(text, block):
    """Return the block of output right after a block of code, or None."""
    after = next((b for b in blocks(text) if b.start >= block.end), None)
    if after is None or after.language != "text":
        return None
    return None if text[block.end : after.start].strip() else after


def as_shown(printed):
    """Return what a terminal shows in the end, but for progress bars."""
    printed = CONTROL.sub("", printed)
    lines = [line.rpartition("\r")[2].rstrip() for line in printed.split("\n")]
    return "\n".join(line for line in lines if "━━" not in line).strip("\n")
