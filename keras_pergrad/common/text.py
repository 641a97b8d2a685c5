"""Tables, wrapped sentences, and the text of errors."""

import re
import textwrap
from html import escape

WIDTH = 79
_LONG_CELL = 40


def as_text(columns, rows, left=()):
    """Return the lines of a table; columns not in `left` are aligned right."""
    table = [tuple(columns), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    pads = [str.ljust if head in left else str.rjust for head in columns]
    return [
        "  ".join(
            pad(cell, width) for pad, cell, width in zip(pads, row, widths)
        ).rstrip()
        for row in table
    ]


def as_html(columns, rows):
    """Return a table as HTML, in a `div` that scrolls; all text is escaped."""
    return cells_as_html(columns, [map(_cell, row) for row in rows])


def cells_as_html(columns, rows):
    """Return a table of cells that are HTML already, each in its <td>."""
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in columns)
    body = "".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    return (
        '<div class="wide" tabindex="0"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text):
    css_class = ' class="long"' if len(text) > _LONG_CELL else ""
    return f"<td{css_class}>{escape(text)}</td>"


def text_page(title, columns, rows, *, notes, left=(), width=0):
    """Return a title, a table between rules, and sentences wrapped below."""
    lines = as_text(columns, rows, left)
    rule = "-" * max(map(len, lines))
    width = width or max(len(rule), 60)
    notes = [textwrap.fill(n, width, subsequent_indent="  ") for n in notes]
    return "\n".join([title, lines[0], rule, *lines[1:], rule, *notes])


def html_page(title, columns, rows, *, sentences, notes):
    """Return the page as HTML: sentences as paragraphs, notes as a list."""
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    table = as_html(columns, rows)
    return f"<p>{escape(title)}</p>{table}{paragraphs}<ul>{items}</ul>"


def first_few(words, limit=3):
    """Return "a, b, c and 2 more"."""
    ending = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + ending


def bullets(sentences, mark="-", width=WIDTH):
    """Return the lines of a list of sentences, wrapped."""
    lines = []
    for sentence in sentences:
        lines += textwrap.wrap(
            sentence,
            width,
            initial_indent=f"{mark} ",
            subsequent_indent=" " * (len(mark) + 1),
            break_on_hyphens=False,
        )
    return lines


_MAX_LENGTH = 500
_WRAPPER_LINES = (
    "Exception encountered when calling",
    "Graph execution error",
    "Detected at node",
    "Detected unsupported operations when trying to compile graph",
)
# The message of an assertion, in a graph and in eager execution.
_ASSERTION_PATTERNS = (
    r"assertion failed: \[(.+?)\]",
    r"Summarized data: b[\"'](.+?)[\"']\s*$",
)


def reason(error):
    """Return the sentence to show for an error, at most a few lines long."""
    text = getattr(error, "message", None) or str(error)
    # TensorFlow's errors have colours, and nodes as {{node name}}.
    text = re.sub(r"\x1b\[\d+m|\{\{\w+ [^}]*\}\}", "", text).strip()
    for pattern in _ASSERTION_PATTERNS:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return match.group(1).replace("\\'", "'")[:_MAX_LENGTH]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    informative = [
        line for line in lines if not line.startswith(_WRAPPER_LINES)
    ]
    sentence = (informative or lines or [type(error).__name__])[0]
    return sentence[:_MAX_LENGTH]
