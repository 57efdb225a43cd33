"""Read HTML whose elements must nest."""

from html.parser import HTMLParser


class Nesting(HTMLParser):
    """Every element but the ``VOID`` ones must be closed in its place. open: the elements around, the innermost last.

    A subclass sets what it collects before it calls this ``__init__``, which reads everything.
    """

    VOID: tuple[str, ...] = ()

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
