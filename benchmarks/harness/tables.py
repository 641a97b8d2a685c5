"""Markdown tables, and those of the result pages that a benchmark writes."""

from benchmarks.harness.process import RESULTS


def table(head, rows):
    """A Markdown table, with all columns but the first to the right."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read(place, folder=RESULTS):
    """The text between two marks of a page.

    Args:
        place: `PAGE#NAME`; the marks are `<!-- NAME -->` and
            `<!-- end of NAME -->`.
        folder: where the page is.

    Raises:
        ValueError: if the page has no such marks.
    """
    return _around(place, folder)[1].strip()


def write(place, *parts, folder=RESULTS):
    """Puts parts between the marks, which stay, with lines between them."""
    before, _, after = _around(place, folder)
    text = "\n\n".join([before, *parts, after])
    (folder / place.partition("#")[0]).write_text(text, encoding="utf-8")


def write_rows(place, header, rows, *, keys=1):
    """Puts rows into the table between the marks.

    A row with the same first `keys` cells is replaced; others stay, if the
    header is the same.
    """
    before = read(place)
    stays = before.startswith(header + "\n")
    found = before[len(header) :].strip().splitlines() if stays else []
    named = {tuple(row.split("|")[1 : keys + 1]): row for row in found}
    named.update({tuple(row.split("|")[1 : keys + 1]): row for row in rows})
    write(place, "\n".join([header, *named.values()]))


def _around(place, folder):
    """What a page has up to the first mark, between, and from the second."""
    page, _, name = place.partition("#")
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = (folder / page).read_text("utf-8").partition(begin)
    between, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{page} has no marks {begin} and {end}")
    return before + begin, between, end + after
