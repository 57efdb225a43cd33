"""Read the figures of a card that docs/benchmarks/ stores, and convert Markdown documents to HTML pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from app.base.errors import UserError
from app.base.precision import OFFERED
from app.files.checks import Check
from app.files.reading import may_exist, read_file, read_json
from app.lab.document import FIGURES, Row
from app.ladder.card import SHOWN, Card
from app.ladder.lessons import all_steps
from app.ladder.pictures import ExtraPage
from app.network.definitions import NETWORKS
from app.records.bench import Bench
from app.records.derive import check_for_type
from app.records.kernels import CompiledKernels, DisassembledKernels
from app.records.profile import Counters, Profile
from app.records.report import Report

if TYPE_CHECKING:
    from markdown_it.token import Token

Link = Callable[[str], str | None]  # a link's target → its address in the page; None: keep the text without a link


def heading_anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def markdown_to_html(text: str, link: Link) -> str:
    """Return a Markdown document as HTML without its comments. link: function from a link's target to its address."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    tokens = [*_adapt_tokens_to_site(parser.parse(text), link)]
    html: str = parser.renderer.render(tokens, parser.options, {})
    return html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")


def _adapt_tokens_to_site(tokens: list[Token], link: Link) -> Iterator[Token]:
    """Yield the tokens; headings get ids, table heads get ``scope``, and links the address that ``link`` returns."""
    first = False  # whether the next cell is the first of its row
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "html_block" and token.content.startswith("<!--"):
            continue
        if token.type == "heading_open" and following is not None:
            token.attrSet("id", heading_anchor(following.content))
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


LEARN = FIGURES.parent / "learn.md"
# File names, by network or precision.
BENCHES, COUNTED_STEPS = "h100_bench_{}.json", "h100_counters_{}.json"
REPORTED, STAMPED = "h100_lenet5_{}.json", "h100_timeline_lenet5_{}.json"
RESOURCES, INSTRUCTIONS = "kernels_resources.json", "kernels_instructions.json"
FAST = tuple(row.name for row in OFFERED if row.paired and not row.calibrated)  # precisions of the fast path
MOST_BYTES = 1 << 20  # size limit of docs/learn.md


def load_stored_card(network: str) -> Card:
    """Return the stored figures of a network, and of all of ``SHOWN`` if it is one of these. Raises UserError."""
    names = list(dict.fromkeys((network, *(SHOWN if network in SHOWN else ()))))
    path = FIGURES / BENCHES.format(network)
    if not may_exist(path):
        known = [name for name in NETWORKS if may_exist(FIGURES / BENCHES.format(name))]
        raise UserError(f"figures are stored of {', '.join(known) or 'no network'}, not of {network}")
    return Card(
        _read_stored_documents(BENCHES, names, check_for_type(Bench)),
        stored_kernels(None),
        _read_stored_documents(COUNTED_STEPS, names, check_for_type(Counters)),
        _read_stored_documents(REPORTED, FAST, check_for_type(Report)) if network in SHOWN else {},
        _read_stored_documents(STAMPED, FAST, check_for_type(Profile)) if network in SHOWN else {},
    )


def find_stored_card(network: str, card: str) -> Card | None:
    """Return the stored figures of a network if they were measured on a card named ``card``; otherwise None."""
    if not may_exist(FIGURES / BENCHES.format(network)):
        return None
    found = load_stored_card(network)
    return found if found.device["name"] == card else None


def stored_kernels(arch: str | None) -> Row:
    """Return the stored resources and instructions of compiled kernels; if ``arch`` is given, only those for it."""
    found: dict[str, object] = {}
    for name in (RESOURCES, INSTRUCTIONS):
        if may_exist(FIGURES / name):
            one = read_json(FIGURES / name, check_for_type(CompiledKernels | DisassembledKernels), "restore it")
            found |= one if arch in (None, one["arch"]) else {}
    return found


def introduction_pages() -> list[ExtraPage]:
    """Return a list with docs/learn.md as a page, or [] without it. Links to steps lead there; others become text."""
    if not may_exist(LEARN):
        return []
    pages = {step.row.source: f"{step.source_page_name}.html" for step in all_steps()}
    text = read_file(LEARN, MOST_BYTES).decode("utf-8")
    return [ExtraPage("learn", "A way in", markdown_to_html(text, lambda target: pages.get(target.rpartition("/")[2])))]


def _read_stored_documents(pattern: str, names: Iterable[str], check: Check) -> dict[str, Row]:
    paths = {name: FIGURES / pattern.format(name) for name in names}
    return {name: read_json(path, check, "restore it") for name, path in paths.items() if may_exist(path)}
