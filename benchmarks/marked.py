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


def write_rows(marks, header, rows, keys=1):
    """Puts rows into the table between the marks.

    A row with the same first `keys` cells is replaced; others stay, if the
    header is the same.
    """
    begin, end = marks
    text = README.read_text(encoding="utf-8").partition(begin)[2]
    before = text.partition(end)[0].strip()
    stays = before.startswith(header + "\n")
    found = before[len(header) :].strip().splitlines() if stays else []
    table = {tuple(row.split("|")[1 : keys + 1]): row for row in found}
    table.update({tuple(row.split("|")[1 : keys + 1]): row for row in rows})
    write(marks, "\n".join([header, *table.values()]))
