"""Turn a document of docs/ into HTML: headings, paragraphs, lists, tables, fences, inline code, links and emphasis.

Only what our own documents use. Everything else in a line is text; a ``details`` element stays as it is.
"""

import re
from collections.abc import Callable, Iterator
from html import escape

Link = Callable[[str], str | None]  # a link's target → its address in the page, None: text without a link
_INLINE = re.compile(
    r"`(?P<code>[^`]+)`|\[(?P<text>[^\]]+)\]\((?P<target>[^)]+)\)|\*(?P<strong>\*?)(?P<said>[^*]+)\*\*?"
)
_ITEM = re.compile(r"(?:-|\d+\.) +(.*)")
_KEPT = re.compile(r"</?(?:details|summary)>")


def anchor(heading: str) -> str:
    """Return a heading's name in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def inline(text: str, link: Link) -> str:
    """Return a text with code, links and emphasis as HTML."""

    def shown(found: re.Match[str]) -> str:
        if found["code"]:
            return f"<code>{escape(found['code'])}</code>"
        if found["target"]:
            address, said = link(found["target"]), inline(found["text"], link)
            return said if address is None else f'<a href="{escape(address)}">{said}</a>'
        kind = "strong" if found["strong"] else "em"
        return f"<{kind}>{inline(found['said'], link)}</{kind}>"

    parts, at = [], 0
    for found in _INLINE.finditer(text):
        parts += [escape(text[at : found.start()], quote=False), shown(found)]
        at = found.end()
    return "".join([*parts, escape(text[at:], quote=False)])


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the blocks between blank lines; a fence is one block. Comments, which are generators' markers, go."""
    block: list[str] = []
    fenced = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("<!--") and not fenced:
            continue
        if line.startswith("```"):
            fenced = not fenced
        starts = re.match(r"#+ |</?details", line) is not None and not fenced
        if block and ((not line and not fenced) or starts):
            yield block
            block = []
        if line or fenced:
            block.append(line)
        if starts:
            yield block
            block = []


def to_html(text: str, link: Link) -> str:
    """Return the document as HTML, without a page around it."""
    return "\n".join(_block(block, link) for block in blocks(text)) + "\n"


def _block(lines: list[str], link: Link) -> str:
    first = lines[0]
    if first.startswith("```"):
        code = "\n".join(lines[1:-1])
        return f"<pre><code>{escape(code, quote=False)}</code></pre>"
    if heading := re.match(r"(#+) (.*)", first):
        level = len(heading[1])
        return f'<h{level} id="{anchor(heading[2])}">{inline(heading[2], link)}</h{level}>'
    if first.startswith("|"):
        return _table(lines, link)
    if _ITEM.match(first):
        return _list(lines, link)
    if _KEPT.match(first):
        return "\n".join(lines)
    return f"<p>{inline(' '.join(line.strip() for line in lines), link)}</p>"


def _list(lines: list[str], link: Link) -> str:
    items: list[str] = []
    for line in lines:
        if found := _ITEM.match(line):
            items.append(found[1])
        else:
            items[-1] += f" {line.strip()}"
    kind = "ol" if lines[0][0].isdigit() else "ul"
    return f"<{kind}>\n" + "\n".join(f"<li>{inline(item, link)}</li>" for item in items) + f"\n</{kind}>"


def _table(lines: list[str], link: Link) -> str:
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    heads = "".join(f'<th scope="col">{inline(cell, link)}</th>' for cell in head)
    body = "\n".join(
        f'<tr><th scope="row">{inline(row[0], link)}</th>'
        + "".join(f"<td>{inline(cell, link)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
