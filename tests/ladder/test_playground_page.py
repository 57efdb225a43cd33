"""Test the playground's page in a browser, without a connection: it classifies what is chosen, drawn or opened."""

import base64
import hashlib
import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.images.pictures.preparing import prepare_picture
from app.images.pictures.reading import read_picture
from app.ladder.playground import find_samples
from app.network.graph import load_network
from data_tools.fashion_mnist import Split
from docs.generate import site as program
from tests.ladder.test_playground import PHOTOS, SHAPE, check_prepared
from tests.support.pages import evaluate_in_page
from tests.support.pictures import GROUNDS, KINDS, photo, saved

MOST = 4  # of 255: a browser decodes JPEG files by itself, and Pillow may resize columns first


def without_policy(site: Path) -> str:
    """The page, without the rule that it may run no other script than its own."""
    html, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(site))
    assert count == 1
    return html


def page(site: Path) -> str:
    return (site / "playground.html").read_text(encoding="utf-8")


def test_the_policy_allows_the_pages_own_script_and_style_alone(site: Path) -> None:
    html = page(site)
    (policy,) = map(unescape, re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html))
    texts = [re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL) for tag in ("style", "script")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for (text,) in texts]
    assert policy == (f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'")
    assert not re.search(r"<link|src=|style=|\son\w+=|url\(|eval\(", html) and len(re.findall("</script", html)) == 2


def test_in_a_browser_the_first_image_is_classified_and_explained(site: Path, tmp_path: Path) -> None:
    told = "['answer', 'said', 'decided'].map((id) => document.getElementById(id).textContent)"
    shown = "document.querySelectorAll('#layers canvas').length, document.querySelectorAll('#samples input').length"
    later = f"new Promise((done) => setTimeout(() => done([{told}, {shown}]), 3000))"
    (answer, said, decided), layers, images = evaluate_in_page(without_policy(site), later, tmp_path)
    assert answer.startswith("Ankle boot, ") and said == "It is labelled Ankle boot: the answer is right."
    assert decided.startswith("The score of Ankle boot leads by ") and (layers, images) == (10, 100)


ASK_FILE = """(async () => {
  const find = (id) => document.getElementById(id), found = [];
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  for (const [name, type, content] of FILES) {
    const given = new DataTransfer(), before = find("prepared").textContent = "";
    given.items.add(new File([network.bytesOf(content)], name, { type }));
    find("file").files = given.files;
    find("file").dispatchEvent(new Event("change"));
    while (!/: | is no /.test(find("prepared").textContent)) await sleep(5);
    await sleep(20);
    const [said, answer] = ["prepared", "answer"].map((id) => find(id).textContent);
    found.push({ said, answer, pixels: [...playground.pixels] });
  }
  return found;
})()"""


def test_a_picture_that_is_opened_is_classified_as_by_predict(site: Path, samples: Split, tmp_path: Path) -> None:
    graph, weights = load_network("lenet5", None)
    rng = np.random.default_rng(3)
    contents = {name: KINDS[name][0]() for name in ("grey.png", "palette.png", "alpha.png", "turned.jpg", "film.gif")}
    contents |= {f"{ground}.jpg": photo(samples.images[at], ground, rng) for at, ground in enumerate(GROUNDS)}
    large = Image.fromarray(samples.images[5]).resize((2300, 2500), Image.Resampling.BICUBIC).convert("RGB")
    contents["large.jpg"] = saved(large, "JPEG", quality=90)
    contents |= {path.name: path.read_bytes() for path in sorted(PHOTOS.iterdir())}
    types = {".png": "image/png", ".jpg": "image/jpeg", ".gif": "image/gif"}
    given = [
        [name, types[Path(name).suffix], base64.b64encode(content).decode()]
        for name, content in [*contents.items(), ("none.png", b"no picture")]
    ]
    *found, none = evaluate_in_page(without_policy(site), ASK_FILE.replace("FILES", json.dumps(given)), tmp_path)
    assert none["said"] == "none.png is no picture that this browser can read: save it as PNG or JPEG."
    for (name, content), one in zip(contents.items(), found, strict=True):
        (tmp_path / name).write_bytes(content)
        wanted = prepare_picture(read_picture(tmp_path / name), SHAPE)
        inverted, *doubts = one["said"].partition(": ")[2].removesuffix(".").split(", ")
        one |= {"inverted": inverted == "negated", "doubts": doubts}
        check_prepared(one, wanted, graph, name, MOST)
        label = graph.reference(wanted.pixels[None]).argmax()
        assert weights.classes and one["answer"].startswith(f"{weights.classes[label]}, "), name


DRAW = """(async () => {
  const find = (id) => document.getElementById(id), canvas = find("drawing"), box = canvas.getBoundingClientRect();
  const lit = () => playground.pixels.reduce((a, b) => a + b, 0);
  async function answered(change) {
    find("answer").textContent = "";
    change();
    while (!find("answer").textContent) await new Promise((done) => setTimeout(done, 10));
    return find("answer").textContent;
  }
  const point = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type,
    { clientX: box.left + box.width * x, clientY: box.top + box.height * y, bubbles: true }));
  const press = (...keys) => keys.forEach((key) =>
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })));
  canvas.setPointerCapture = () => {}; // there is no real pointer
  const found = {};
  found.cleared = await answered(() => find("clear").click());
  found.left = [lit(), document.querySelectorAll("#samples input:checked").length];
  found.answer = await answered(() => { point("pointerdown", 0.25, 0.5); point("pointermove", 0.75, 0.5); });
  found.line = [...playground.pixels];
  point("pointerup", 0.75, 0.5); point("pointermove", 0.5, 0.9);
  found.lifted = lit();
  await answered(() => press("e", "ArrowUp", "ArrowDown", " "));
  found.erased = lit();
  found.wide = document.documentElement.scrollWidth;
  return found;
})()"""


@pytest.mark.parametrize("width", [500, 1280])  # Chromium's windows are at least 500 pixels wide
def test_pointer_and_keys_draw_and_erase(width: int, site: Path, tmp_path: Path) -> None:
    found = evaluate_in_page(without_policy(site), DRAW, tmp_path, size=f"{width},1200")
    assert (found["cleared"], found["left"]) == ("Nothing is drawn yet.", [0, 0])
    line = np.reshape(found["line"], (28, 28))
    assert (line[13:15, 7:21] == 255).all() and not line[:12].any() and not line[:, :5].any() and not line[:, 23:].any()
    assert found["lifted"] == line.sum() > found["erased"] > 0
    assert re.fullmatch(r"[A-Z].*, [\d.]+ %", found["answer"])
    assert found["wide"] <= width


def test_on_a_phone_nothing_is_wider_than_the_screen(site: Path, tmp_path: Path) -> None:
    """The page in a frame of 390 pixels, as windows cannot be so narrow."""
    framed = json.dumps(without_policy(site)).replace("<", "\\u003c")
    wide = "(frame) => frame.contentDocument.documentElement.scrollWidth"
    html = f"<script>const html = {framed};</script>"
    asked = (
        "new Promise((done) => { const frame = document.createElement('iframe'); frame.width = 390; "
        f"frame.onload = () => setTimeout(() => done(({wide})(frame)), 500); frame.srcdoc = html; "
        "document.body.append(frame); })"
    )
    assert evaluate_in_page(f"<!DOCTYPE html><title>x</title>{html}", asked, tmp_path) <= 390


def test_without_test_images_the_page_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FASHION_MNIST_DIR", str(tmp_path))
    monkeypatch.setattr("data_tools.fashion_mnist.SYSTEM_DIR", tmp_path / "none")
    assert find_samples() is None
    monkeypatch.setattr("sys.argv", ["site", str(tmp_path / "site")])
    assert program.main() == 0
    assert "note: the playground has no test images: python -m data_tools fetch" in capsys.readouterr().err
    html = page(tmp_path / "site")
    assert 'id="samples"' not in html and "<code>python -m data_tools fetch</code>" in html
