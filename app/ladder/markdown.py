"""Convert a document of docs/ to HTML by markdown-it, with the links and anchors that the site's pages need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token

Link = Callable[[str], str | None]  # a link's target → its address in the page; None: keep the text without a link


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub forms it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def to_html(text: str, link: Link) -> str:
    """Return the document as HTML without an enclosing page, and without the comments that mark generated parts."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    tokens = [*_adapt_to_site(parser.parse(text), link)]
    html: str = parser.renderer.render(tokens, parser.options, {})
    return html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def _adapt_to_site(tokens: list[Token], link: Link) -> Iterator[Token]:
    """Add ids to headings and the scope to table heads, and replace the targets of links by their addresses."""
    first = False  # whether the next cell is a row's first
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "html_block" and token.content.startswith("<!--"):
            continue
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", anchor(following.content))
        if token.type in ("th_open", "td_open"):
            row = token.type == "td_open" and first
            token.attrs = {"scope": "row" if row else "col"} if row or token.type == "th_open" else {}
            token.tag = "th" if row else token.tag
        if token.type == "td_close" and first:
            token.tag = "th"
        first = token.type == "tr_open" or (first and not token.type.endswith("_close"))
        if token.children:
            token.children = [*_replace_link_targets(token.children, link)]
        yield token


def _replace_link_targets(tokens: Iterable[Token], link: Link) -> Iterator[Token]:
    leads = True
    for token in tokens:
        if token.type == "link_open":
            address = link(str(token.attrGet("href")))
            leads = address is not None
            if address is not None:
                token.attrSet("href", address)
        if leads or token.type not in ("link_open", "link_close"):
            yield token
