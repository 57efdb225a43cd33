"""Documents as HTML: every construct that ours use."""

import pytest

from app.ladder.markdown import anchor, to_html


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
        ("text\n# Head\nmore", '<p>text</p>\n<h1 id="head">Head</h1>\n<p>more</p>'),
        (
            "<details><summary>Why</summary>\n\nSo.\n\n</details>",
            "<details><summary>Why</summary>\n<p>So.</p>\n</details>",
        ),
    ],
)
def test_constructs(text: str, html: str) -> None:
    assert to_html(text, {"there.md": "there.html"}.get).rstrip("\n") == html


def test_names_of_headings() -> None:
    assert anchor("Pooling, element-wise, softmax") == "pooling-element-wise-softmax"
