"""The tables in README.md that a benchmark writes between two marks."""

import pathlib

README = pathlib.Path(__file__).with_name("README.md")


def write(marks, *parts):
    """Puts parts between the marks, which stay, with lines between them."""
    begin, end = marks
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    table = "\n\n".join([begin, *parts, end])
    README.write_text(f"{before}{table}{after}", encoding="utf-8")
