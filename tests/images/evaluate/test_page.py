"""Test that the page of ``evaluate`` is well formed and self-contained, with escaped names and alternative texts."""

import base64
import re
import zlib
from typing import Any

import numpy as np
import pytest

from app.images.evaluate import page
from app.images.evaluate.page import build_html_page
from app.images.evaluate.results import MISTAKES, Answers, build_document
from app.images.evaluate.text import as_text
from app.records.evaluate import EvaluatedNetwork
from data_tools.dataset import Dataset
from tests.support.pages import Nesting
from tests.support.schemas import check_widths, mistakes

HOSTILE = ("<script>alert('x')</script>", 'a "quoted" & <b>bold</b> name', "]]> --> 名前 'é'")
RNG = np.random.default_rng(11)
ABOUT: EvaluatedNetwork = {
    "network": {"name": "three", "input_shape": [1, 4, 3]},
    "weights": {"path": "a\udcff<b>.h5", "sha256": "0" * 64, "vouched": False, "recipe": None},
    "precision": "fp32",
}
DEVICE = {"kind": "cpu", "name": "Some & Co", "threads": 2, "numpy": "2"}


def random_answers(labels: np.ndarray, classes: int) -> Answers:
    """Return answers with random probabilities, of which that of the label is the highest."""
    probabilities = RNG.random((len(labels), classes)).astype(np.float32)
    probabilities[np.arange(len(labels)), labels] += 1
    return Answers(ABOUT, labels, probabilities / probabilities.sum(axis=1, keepdims=True))


def random_document(
    names: tuple[str, ...] | None, count: int = 80, *, labelled: bool = True, channels: int = 1, classes: int = 3
) -> tuple[Any, np.ndarray]:
    """Return a document of random answers, compared with others, and its images, (count, channels, 4, 3) uint8."""
    images = RNG.integers(0, 256, (count, channels, 4, 3), np.uint8)
    truth, first, second = (RNG.integers(0, classes, count).astype(np.uint8) for _ in range(3))
    data = Dataset(images, truth if labelled else None, None, "my <images>", None)
    return build_document(DEVICE, data, names, random_answers(first, classes), random_answers(second, classes)), images


class PageReader(Nesting):
    """Parser that collects the tags, attributes and texts of a page."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        super().__init__(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        super().handle_starttag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.tags)


def test_names_are_escaped_and_nothing_is_loaded() -> None:
    found, images = random_document(HOSTILE)
    text = build_html_page(found, images)
    reader = PageReader(text)
    assert {tag for tag, _ in reader.tags}.isdisjoint({"script", "b", "link", "iframe", "a", "img"})
    read = "".join(reader.texts)
    assert all(name in read for name in HOSTILE) and "my <images>" in read and r"a\udcff<b>.h5" in read
    for tag, attributes in reader.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes), tag
        assert (attributes.get("href") or "data:image/png;base64,").startswith("data:image/png;base64,")
    assert "http" not in text.replace("http-equiv", "") and "url(" not in text and "@import" not in text


def test_headings_pictures_and_tables_are_accessible() -> None:
    found, images = random_document(("a", "b", "c"))
    reader = PageReader(build_html_page(found, images))
    tags = [tag for tag, _ in reader.tags]
    assert tags[:2] == ["html", "head"] and tags.count("title") > 1 and tags.count("h1") == 1
    pictures = [attributes for tag, attributes in reader.tags if tag == "svg"]
    named = [f"{name}-title {name}-desc" for name in ("confusion", "reliability", "mistakes")]
    assert [picture["aria-labelledby"] for picture in pictures] == named
    assert all(picture["role"] == "img" for picture in pictures)
    described = re.findall(r'<desc id="(.*?)">(.*?)</desc>', build_html_page(found, images))
    assert [name for name, _ in described] == [name.split()[1] for name in named]
    assert all(len(words) > 40 for _, words in described)
    for tag, attributes in reader.tags:
        assert tag != "th" or attributes.get("scope") in ("row", "col")
    assert reader.count("table") == reader.count("caption") == 5
    style = build_html_page(found, images).partition("<style>")[2].partition("</style>")[0]
    assert "prefers-color-scheme: dark" in style and "@media print" in style
    assert {*re.findall(r"var\((--[\w-]+)\)", style)} <= {*re.findall(r"(--[\w-]+):", style)}


def test_confusion_matrix_shows_every_count() -> None:
    found, _ = random_document(("a", "b", "c"))
    counts = np.array(found["answers"]["confusion"])
    reader = PageReader(page.draw_confusion_matrix(found["answers"], found["classes"]))
    cells = [attributes for tag, attributes in reader.tags if tag == "rect" and attributes["class"] != "ground"]
    assert len(cells) == (counts > 0).sum()
    assert sum(cell["class"] == page.RIGHT for cell in cells) == (counts.diagonal() > 0).sum()
    numbers = [int(text) for text in reader.texts if text.isdigit()]
    assert numbers == counts[counts > 0].tolist()
    tooltip = f"a taken for b: {counts[0, 1]} of {counts[0].sum()}"
    assert tooltip in reader.texts


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("as_floats", [False, True])
def test_the_worst_mistakes_are_shown(channels: int, as_floats: bool) -> None:
    found, images = random_document(None, channels=channels)
    listed = found["answers"]["mistakes"]
    shown = images / np.float32(255) if as_floats else images
    reader = PageReader(page.draw_mistakes(found["answers"]["mistakes"], found["classes"], shown))
    uris = [attributes["href"] or "" for tag, attributes in reader.tags if tag == "image"]
    assert len(uris) == len(listed) == MISTAKES
    for one, uri in zip(listed, uris, strict=True):
        np.testing.assert_array_equal(
            decode_png(base64.b64decode(uri.partition(",")[2]), channels), images[one["image"]]
        )
    probabilities = [one["probability"] for one in listed]
    assert probabilities == sorted(probabilities, reverse=True)
    assert f"image {listed[0]['image']}: {listed[0]['answer']} with" in "".join(reader.texts)
    texts = [float(one["y"] or 0) for tag, one in reader.tags if tag == "text"]
    (height,) = [float(one["height"] or 0) for tag, one in reader.tags if tag == "svg"]
    assert height == max(texts) + 8


def decode_png(content: bytes, channels: int) -> np.ndarray:
    """Return the pixels, (channels, 4, 3), of a PNG of that size without filters."""
    size = int.from_bytes(content[33:37], "big")
    assert content[37:41] == b"IDAT" and content[16:24] == bytes([0, 0, 0, 3, 0, 0, 0, 4])
    rows = np.frombuffer(zlib.decompress(content[41 : 41 + size]), np.uint8).reshape(4, 1 + 3 * channels)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(4, 3, channels).transpose(2, 0, 1)


def test_without_labels_there_is_only_the_comparison() -> None:
    found, images = random_document(None, labelled=False)
    assert found["answers"] is None and found["against"]["answers"] is None and not mistakes(found)
    reader = PageReader(build_html_page(found, images))
    assert reader.count("svg") == 0 and reader.count("table") == 2
    assert "McNemar" not in as_text(found)


def test_page_of_a_network_without_mistakes() -> None:
    images, truth = np.zeros((4, 1, 4, 3), np.uint8), np.array([0, 1, 2, 2], np.uint8)
    found = build_document(DEVICE, Dataset(images, truth, None, "few", None), None, random_answers(truth, 3), None)
    reader = PageReader(build_html_page(found, images))
    assert reader.count("image") == 0 and any("There are none" in text for text in reader.texts)
    assert "mistakes" not in as_text(found) and not mistakes(found)


@pytest.mark.parametrize("names", [("a", "b", "c"), ("x" * 30, "two words " * 9 + "end", "c"), None])
def test_text_fits_the_width_and_document_its_schema(names: tuple[str, ...] | None) -> None:
    found, _ = random_document(names)
    wide = check_widths(as_text, found)
    assert not mistakes(found)
    for row in found["answers"]["confusion"]:
        assert re.search(r"  ".join(rf"\s*{count or '·'}" for count in row), wide)


def test_confusion_matrix_of_many_classes() -> None:
    """Too wide for the terminal, the matrix is left out of the text, which says so; as a picture it has no numbers."""
    found, images = random_document(None, 3000, classes=40)
    assert "too wide for this terminal; --wide prints it" in " ".join(as_text(found).split())
    check_widths(as_text, found)
    assert not any(
        text.isdigit() and int(text) > 40
        for text in PageReader(page.draw_confusion_matrix(found["answers"], found["classes"])).texts
    )
    PageReader(build_html_page(found, images))


def test_axis_labels_stand_beside_the_middle_of_their_axes() -> None:
    found, _ = random_document(("a", "b", "c"))
    svg = page.draw_reliability_diagram(found["answers"])
    ((left, bottom, right, top),) = re.findall(r'class="mark dashed" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)
    turned = r'<text transform="translate\(12 ([\d.]+)\) rotate\(-90\)" text-anchor="middle">(.*?)</text>'
    labels = {name: float(y) for y, name in re.findall(turned, svg)}
    assert labels["right answers"] == (float(top) + float(bottom)) / 2
    assert labels.keys() == {"right answers", "answers"} and labels["answers"] > float(bottom)
    below = r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">probability of the answer</text>'
    assert [float(x) for x in re.findall(below, svg)] == [(float(left) + float(right)) / 2]
