"""Documents as HTML: every construct that ours use, and docs/learn.md whole."""

from html.parser import HTMLParser

import pytest

from docs.generate.__main__ import LEARN
from docs.generate.markdown import anchor, inline, to_html


class Nesting(HTMLParser):
    """Elements must be closed in their place."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.links: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag == "a":
            self.links.append(dict(attrs)["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("## A *new* word", '<h2 id="a-new-word">A <em>new</em> word</h2>'),
        ("one\ntwo `a < b` & c", "<p>one two <code>a &lt; b</code> &amp; c</p>"),
        ("- one\n  more\n- **two**", "<ul>\n<li>one more</li>\n<li><strong>two</strong></li>\n</ul>"),
        ("1. one\n2. two", "<ol>\n<li>one</li>\n<li>two</li>\n</ol>"),
        ("```sh\na  < b\n\nc\n```", "<pre><code>a  &lt; b\n\nc</code></pre>"),
        ("[a `b`](there.md) [c](gone.md)", '<p><a href="there.html">a <code>b</code></a> c</p>'),
        (
            "| a | b |\n| --- | ---: |\n| 1 | `2` |",
            '<div class="wide"><table>\n<thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>\n<tbody>\n'
            '<tr><th scope="row">1</th><td><code>2</code></td></tr>\n</tbody>\n</table></div>',
        ),
        ("<!-- [[[cog x() ]]] -->\nsaid\n<!-- [[[end]]] -->", "<p>said</p>"),
        ("text\n# Head\nmore", '<p>text</p>\n<h1 id="head">Head</h1>\n<p>more</p>'),
        (
            "<details><summary>Why</summary>\n\nSo.\n\n</details>",
            "<details><summary>Why</summary>\n<p>So.</p>\n</details>",
        ),
    ],
)
def test_constructs(text: str, html: str) -> None:
    assert to_html(text, {"there.md": "there.html"}.get) == f"{html}\n"


def test_what_looks_like_html_is_text() -> None:
    assert inline("a <script> & [b](<c>)", lambda target: target) == 'a &lt;script&gt; &amp; <a href="&lt;c&gt;">b</a>'
    assert anchor("Pooling, element-wise, softmax") == "pooling-element-wise-softmax"


def test_learn_is_a_page() -> None:
    found = Nesting(to_html(LEARN.read(), lambda target: target))
    assert found.counts["details"] == 10 and found.counts["table"] == 2 and found.counts["pre"] == 10
    assert "fast-path.md" in found.links and "[[[" not in to_html(LEARN.read(), lambda target: target)
