"""Test the site of HTML pages: content, links, excerpts and stored times, conversion of Markdown, and a browser."""

import re
from html import unescape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from app.base.errors import UserError
from app.cuda.compiler import KERNEL_DIR
from app.ladder.card import Card
from app.ladder.counting import PARTS
from app.ladder.lessons import (
    GAP,
    LADDERS,
    Step,
    all_steps,
    changed_line_count,
    code_lines,
    excerpt_lines,
    ladder_steps,
)
from app.ladder.pages import MARK, write_site
from app.ladder.pictures import ExtraPage
from app.ladder.stored import markdown_to_html
from app.terminal.text import format_ms
from docs.generate.site import COMMAND
from tests.ladder.conftest import BY_NAME, STEPS
from tests.support.pages import Nesting, opened

MOST_BYTES = 8_000_000
LEAST, MOST = 8, 24  # number of lines of an excerpt
SECTIONS = ("idea", "tile", "change", "count", "time", "proof", "bound", "exercise")


class PageParser(Nesting):
    """Parser that collects a page's ids, link targets and the files that it loads."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, html: str) -> None:
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        super().__init__(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        given = {name: value or "" for name, value in attrs}
        self.ids += filter(None, [given.get("id")])
        self.links += [given["href"]] if tag == "a" else []
        self.loads += [given[name] for name in ("src", "href") if name in given and tag != "a"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]


def section_html(text: str, name: str) -> str:
    """Return the HTML inside the ``section`` element with id ``name``."""
    (found,) = re.findall(rf'<section id="{name}">(.*?)</section>', text, re.DOTALL)
    return str(found)


def plain_text(html: str) -> str:
    """Return HTML as text: without tags, with single spaces."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


@STEPS
def test_a_step_page_has_every_section(step: Step, site: Path) -> None:
    text = (site / f"{step.page_name}.html").read_text(encoding="utf-8")
    parts = {name: section_html(text, name) for name in SECTIONS}
    assert all(len(plain_text(part)) > 40 for part in parts.values())
    assert 1 <= plain_text(parts["idea"]).count(". ") + 1 <= 4
    assert parts["tile"].count("<svg") == 1 and parts["time"].count("<svg") == 1
    for name in ("tile", "time"):
        (drawn,) = re.findall(r"<svg.*</svg>", parts[name], re.DOTALL)
        root = ElementTree.fromstring(drawn)
        assert root.get("role") == "img" and len(root.get("aria-label", "")) > 30
    assert LEAST <= parts["change"].count('class="line ') <= MOST
    assert ("removed lines are" in parts["change"]) == ('class="line minus"' in parts["change"])
    assert ("… stands for" in parts["change"]) == ('class="line gap"' in parts["change"])
    assert "multiply-adds" in parts["count"] and "bytes through device memory" in parts["count"]
    assert "Predicted" in parts["time"] and "Measured" in parts["time"]
    assert step.since is None or f"What bounded step {step.since.title}: " in parts["change"]
    assert re.search(r"<details><summary>.*</summary>.+</details>", parts["exercise"], re.DOTALL)
    assert "{" not in plain_text(text) or "{" in plain_text(parts["change"])  # only code has braces


@STEPS
def test_a_step_page_shows_the_stored_times(step: Step, site: Path, card: Card) -> None:
    text = plain_text(section_html((site / f"{step.page_name}.html").read_text(encoding="utf-8"), "time"))
    for network in card.networks:
        for table in card.benches[network]["tables"]:
            rows = [row for row in table["rows"] if row["name"] == step.row.name and row["dtype"] == step.dtype]
            if rows and "+" not in table["item"] and table["operation"] == step.row.operation:
                assert format_ms(rows[0]["ms"]) in text
    layers = card.layers(step)
    assert all(format_ms(layer.prediction.ms) in text for layer in layers)
    assert any(layer.ms for layer in layers) or "has not been measured" in text


@STEPS
def test_excerpts_are_lines_of_the_files(step: Step) -> None:
    shown = [line for line in excerpt_lines(step) if line.change != GAP]
    included = "".join((KERNEL_DIR / one[2]).read_text("utf-8") for one in step.lesson.excerpt if len(one) > 2)
    lines = step.source.splitlines()
    olds = step.since.source.splitlines() if step.since else []
    for line in shown:
        own = (olds if line.change == "-" else lines)[line.number - 1 :][:1]
        assert own == [line.text] or f"{line.text}\n" in included
        assert unescape(re.sub(r"<[^>]+>", "", line.html)) == line.text
    assert LEAST <= len(excerpt_lines(step)) <= MOST
    assert step.since is None or sum(line.change != " " for line in shown) >= min(5, changed_line_count(step) or 0)
    assert all(any(text in line.text for line in shown) for one in step.lesson.excerpt for text in one[:2])


@STEPS
def test_removed_lines_of_an_excerpt_are_gone_or_replaced_beside_them(step: Step) -> None:
    """Check that removed lines are no longer in the step, and that none begins or ends a part of the excerpt."""
    shown = excerpt_lines(step)
    stays = {line.strip(" {}") for line in code_lines(step.source) if not line.startswith("#pragma")}
    beside = {line.text.strip(" {}") for line in shown if line.change != "-"}
    assert not [line.text for line in shown if line.change == "-" and line.text.strip(" {}") in stays - beside]
    ends = [line for line, after in pairwise([*shown, shown[0]]) if after.change == GAP] + shown[-1:]
    assert not [line.text for line in ends if line.change in ("-", GAP)]


@STEPS
def test_index_page_explains_every_name_in_formulas_and_every_tunable(step: Step, site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    used = {name for formula in step.lesson.counts.values() for name in re.findall(r"\b[A-Z][A-Z_]*\b", formula)}
    assert not [name for name in used | {*step.row.tunables} if f"<code>{name}</code>" not in index]


def test_excerpt_of_shared_tile_shows_both_barriers_and_keeps_the_store() -> None:
    step = BY_NAME["conv-shared-tile"]
    shown = [(line.change, line.text.strip()) for line in excerpt_lines(step)]
    assert sum(text.startswith("__syncthreads()") for change, text in shown if change == "+") == 2
    assert not any(change == "-" and text.startswith(("y[", "OUTPUT(")) for change, text in shown)


def test_links_resolve_and_pages_load_only_files_of_the_site(site: Path) -> None:
    pages = {path.name: PageParser(path.read_text(encoding="utf-8")) for path in site.glob("*.html")}
    assert len(pages) == 1 + 2 * len(all_steps()) + len(("learn", "playground", "pictures", "interactives"))
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        for link in page.links:
            target, _, part = link.partition("#")
            assert target in pages, (name, link)
            assert not part or part in pages[target].ids, (name, link)
        assert all((site / file).is_file() for file in page.loads), name
        assert not re.search(r"https?://", (site / name).read_text(encoding="utf-8")), name
    assert not re.search(r"url\(|@import", (site / "style.css").read_text(encoding="utf-8"))


def test_the_site_is_small(site: Path) -> None:
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MOST_BYTES


def test_index_page_lists_every_step_after_the_one_that_it_continues(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    for operation in LADDERS:
        places = [text.index(f'"{step.page_name}.html"') for step in ladder_steps(operation)]
        assert places == sorted(places)
        names = [step.row.name for step in ladder_steps(operation)]
        assert all(
            names.index(step.since.row.name) < names.index(step.row.name)
            for step in ladder_steps(operation)
            if step.since
        )
    assert all(what in text for what in PARTS.values())


def test_times_of_a_step_are_in_the_columns_of_their_layers(card: Card, site: Path) -> None:
    """Check the row of ``conv-warpgroup``, which does not compute conv1: its first cell is empty."""
    text = (site / "index.html").read_text(encoding="utf-8")
    (row,) = re.findall(r'<tr><th scope="row"><a href="conv-warpgroup.html">.*?</tr>', text)
    conv1, conv2 = re.findall(r'<td class="number">(.*?)</td>', row)
    step = BY_NAME["conv-warpgroup"]
    (layer,) = (layer for layer in card.layers(step) if layer.network == "lenet5")
    assert layer.name == "conv2" and conv1 == "" and format_ms(layer.prediction.ms) in conv2


def test_write_site_replaces_a_site_but_no_other_folder(card: Card, tmp_path: Path) -> None:
    own = tmp_path / "site"
    more = ExtraPage("extra", "More to see", "<p>here</p>")
    write_site(own, card, COMMAND, [more])
    assert more.body in (own / "extra.html").read_text(encoding="utf-8")
    assert 'href="extra.html">More to see' in (own / "index.html").read_text(encoding="utf-8")
    write_site(own, card, COMMAND)
    assert not (own / "extra.html").exists() and (own / MARK).is_file()
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.html").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        write_site(other, card, COMMAND)
    assert (other / "index.html").read_text() == "mine"
    with pytest.raises(UserError, match="is no folder"):
        write_site(other / "index.html", card, COMMAND)
    assert {path.name for path in tmp_path.iterdir()} == {"site", "other"}


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("## A *new* word", '<h2 id="a-new-word">A <em>new</em> word</h2>'),
        ("one\ntwo `a < b` & c", "<p>one\ntwo <code>a &lt; b</code> &amp; c</p>"),
        ("- one\n  more\n- **two**", "<ul>\n<li>one\nmore</li>\n<li><strong>two</strong></li>\n</ul>"),
        ("1. one\n2. two", "<ol>\n<li>one</li>\n<li>two</li>\n</ol>"),
        ("```sh\na  < b\n\nc\n```", '<pre><code class="language-sh">a  &lt; b\n\nc\n</code></pre>'),
        ("[a `b`](there.md) [c](gone.md)", '<p><a href="there.html">a <code>b</code></a> c</p>'),
        (
            "| a | b |\n| --- | ---: |\n| 1 | `2` |",
            '<div class="wide"><table>\n<thead>\n<tr>\n<th scope="col">a</th>\n<th scope="col">b</th>\n</tr>\n'
            '</thead>\n<tbody>\n<tr>\n<th scope="row">1</th>\n<td><code>2</code></td>\n</tr>\n</tbody>\n</table></div>',
        ),
        ("<!-- [[[cog x() ]]] -->\nsaid\n<!-- [[[end]]] -->", "<p>said</p>"),
        ("text\n# One, two-fold\nmore", '<p>text</p>\n<h1 id="one-two-fold">One, two-fold</h1>\n<p>more</p>'),
        (
            "<details><summary>Why</summary>\n\nSo.\n\n</details>",
            "<details><summary>Why</summary>\n<p>So.</p>\n</details>",
        ),
    ],
)
def test_markdown_constructs_become_html(text: str, html: str) -> None:
    assert markdown_to_html(text, {"there.md": "there.html"}.get).rstrip("\n") == html


LOOKED_AT = ("index", "conv-direct", "learn", "playground", "pictures", "interactives")


def test_browser_reports_no_error_on_the_pages(site: Path, tmp_path: Path) -> None:
    """Open all pages in frames of one page, with a last frame that reports errors on purpose."""
    bad = "<script>console.error('one'); throw Error('two')</script>"
    (tmp_path / "bad.html").write_text(f"<!DOCTYPE html><title>x</title>{bad}")
    pages = [*((site / f"{name}.html").as_uri() for name in LOOKED_AT), (tmp_path / "bad.html").as_uri()]
    loaded = "<script>let loaded = 0;</script><p id='loaded'></p>"
    noted = "onload='document.getElementById(\"loaded\").textContent = ++loaded'"
    frames = "".join(f'<iframe src="{page}" {noted}></iframe>' for page in pages)
    (tmp_path / "all.html").write_text(f"<!DOCTYPE html><title>x</title>{loaded}{frames}")
    found = opened(tmp_path / "all.html", tmp_path / "profile")
    assert f'<p id="loaded">{len(pages)}</p>' in found.html
    assert [line.partition(",")[0] for line in found.console] == ['"one"', '"Uncaught Error: two"']
    for name in LOOKED_AT:
        title = re.findall(r"<h1[^>]*>(.*?)</h1>", (site / f"{name}.html").read_text("utf-8"), re.DOTALL)
        assert title and unescape(re.sub(r"<[^>]+>", "", title[0])).strip(), name
