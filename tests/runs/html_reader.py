"""A reader of pages that fails where tags do not close."""

import html.parser

VOID = {"meta"}


class _Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text, self.attributes = [], [], "", []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(page):
    """Return a reader with the `tags`, `attributes` and `text` of a page."""
    reader = _Reader()
    reader.feed(page)
    assert not reader.open
    return reader
