"""Docstrings as Markdown: examples become blocks of code."""

import griffe

FENCE = "```"


def with_fences(text):
    """Return a docstring with fences around its doctests."""
    lines, open_ = [], False
    for line in text.splitlines():
        starts = line.lstrip().startswith(">>>")
        if starts and not open_:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}{FENCE}pycon")
            open_ = True
        elif open_ and not line.strip():
            lines.append(f"{indent}{FENCE}")
            open_ = False
        lines.append(line)
    if open_:
        lines.append(f"{indent}{FENCE}")
    return "\n".join(lines)


class Doctests(griffe.Extension):
    """Change each docstring when it is read."""

    def on_object(self, *, obj, **kwargs):
        """Fence the doctests of one module, class, function or attribute."""
        docstring = getattr(obj, "docstring", None)
        if docstring is not None:
            docstring.value = with_fences(docstring.value)
