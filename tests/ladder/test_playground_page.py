"""Test the playground's page in a browser, offline: it classifies images that are chosen, drawn or opened."""

import base64
import hashlib
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.images.pictures.preparing import prepare_picture
from app.images.pictures.reading import read_picture
from app.ladder.playground import find_test_images, to_script_json
from app.network.graph import load_network
from data_tools.fashion_mnist import Split
from docs.generate import site as program
from tests.ladder.test_playground import PHOTOS, SHAPE, check_prepared
from tests.support.pages import evaluate_in_page
from tests.support.pictures import KINDS, saved

PIXEL_TOLERANCE = 4  # of 255: the browser decodes JPEG itself, and Pillow may resize columns first


def page_without_policy(site: Path) -> str:
    """Return the page without its Content Security Policy, so that the tests' scripts can run."""
    html, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page_html(site))
    assert count == 1
    return html


def page_html(site: Path) -> str:
    return (site / "playground.html").read_text(encoding="utf-8")


def test_content_security_policy_allows_only_the_inline_script_and_style(site: Path) -> None:
    html = page_html(site)
    (policy,) = map(unescape, re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html))
    texts = [re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL) for tag in ("style", "script")]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for (text,) in texts]
    assert policy == (f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'")
    assert not re.search(r"<link|src=|style=|\son\w+=|url\(|eval\(", html) and len(re.findall("</script", html)) == 2


FIRST = """(async () => {
  const find = (id) => document.getElementById(id);
  while (!find("decided").textContent) await new Promise((done) => setTimeout(done, 50));
  const said = ["answer", "said", "decided"].map((id) => find(id).textContent);
  return [said, document.querySelectorAll("#layers canvas").length, document.querySelectorAll("#samples input").length];
})()"""
ASK_FILE = """(async () => {
  const find = (id) => document.getElementById(id), found = [];
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  for (const [name, type, content] of FILES) {
    const given = new DataTransfer();
    find("prepared").textContent = "";
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
# The page is opened in frames, because no window is as narrow as a phone, and Chromium then starts only once.
FRAMES = """(async () => {
  const inFrame = async (width, scripts) => {
    const frame = Object.assign(document.createElement("iframe"), { width, height: 1200, srcdoc: PAGE });
    await new Promise((done) => { frame.onload = done; document.body.append(frame); });
    const found = [];
    for (const script of scripts) found.push(await frame.contentWindow.eval(script));
    return found;
  };
  return { narrow: await inFrame(390, [DRAW]), wide: await inFrame(1280, [FIRST, DRAW, ASK_FILE]) };
})()"""


@pytest.fixture(scope="module")
def picture_files(samples: Split) -> dict[str, bytes]:
    """Return name → content of picture files to open."""
    found = {name: KINDS[name][0]() for name in ("grey.png", "palette.png", "alpha.png", "turned.jpg", "film.gif")}
    large = Image.fromarray(samples.images[5]).resize((701, 2051), Image.Resampling.BICUBIC).convert("RGB")
    found["large.jpg"] = saved(large, "JPEG", quality=90)  # decoded at half of its size
    return found | {"boot.jpg": (PHOTOS / "boot.jpg").read_bytes()}


@pytest.fixture(scope="module")
def page_results(
    site: Path, picture_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return what the scripts above return: ``narrow`` for [DRAW], ``wide`` for [FIRST, DRAW, ASK_FILE]."""
    types = {".png": "image/png", ".jpg": "image/jpeg", ".gif": "image/gif"}
    given = [
        [name, types[Path(name).suffix], base64.b64encode(content).decode()]
        for name, content in [*picture_files.items(), ("none.png", b"no picture")]
    ]
    scripts = {"DRAW": DRAW, "FIRST": FIRST, "ASK_FILE": ASK_FILE.replace("FILES", json.dumps(given))}
    constants = {"PAGE": page_without_policy(site), **scripts}
    texts = "".join(f"const {name} = {to_script_json(text)};\n" for name, text in constants.items())
    html = f"<!DOCTYPE html><title>x</title><body></body><script>{texts}</script>"
    found: dict[str, Any] = evaluate_in_page(html, FRAMES, tmp_path_factory.mktemp("results"))
    return found


def test_browser_classifies_and_explains_the_first_image(page_results: dict[str, Any]) -> None:
    (answer, said, decided), layers, images = page_results["wide"][0]
    assert answer.startswith("Ankle boot, ") and said == "It is labelled Ankle boot: the answer is right."
    assert decided.startswith("The score of Ankle boot leads by ") and (layers, images) == (10, 100)


def test_an_opened_picture_gets_the_label_of_predict(
    page_results: dict[str, Any], picture_files: dict[str, bytes], tmp_path: Path
) -> None:
    graph, weights = load_network("lenet5", None)
    *found, none = page_results["wide"][2]
    assert none["said"] == "none.png is no picture that this browser can read: save it as PNG or JPEG."
    for (name, content), one in zip(picture_files.items(), found, strict=True):
        (tmp_path / name).write_bytes(content)
        wanted = prepare_picture(read_picture(tmp_path / name), SHAPE)
        inverted, *doubts = one["said"].partition(": ")[2].removesuffix(".").split(", ")
        one |= {"inverted": inverted == "negated", "doubts": doubts}
        check_prepared(one, wanted, graph, name, PIXEL_TOLERANCE)
        label = graph.reference(wanted.pixels[None]).argmax()
        assert weights.classes and one["answer"].startswith(f"{weights.classes[label]}, "), name


@pytest.mark.parametrize(("form", "width"), [("narrow", 390), ("wide", 1280)])
def test_pointer_and_keys_draw_and_erase(form: str, width: int, page_results: dict[str, Any]) -> None:
    """Draw and erase with the pointer and with keys; the page fits in the width of the screen."""
    found = page_results[form][form == "wide"]
    assert (found["cleared"], found["left"]) == ("Nothing is drawn yet.", [0, 0])
    line = np.reshape(found["line"], (28, 28))
    assert (line[13:15, 7:21] == 255).all() and not line[:12].any() and not line[:, :5].any() and not line[:, 23:].any()
    assert found["lifted"] == line.sum() > found["erased"] > 0
    assert re.fullmatch(r"[A-Z].*, [\d.]+ %", found["answer"])
    assert found["wide"] <= width


def test_without_test_images_the_page_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FASHION_MNIST_DIR", str(tmp_path))
    monkeypatch.setattr("data_tools.fashion_mnist.SYSTEM_DIR", tmp_path / "none")
    assert find_test_images() is None
    monkeypatch.setattr("sys.argv", ["site", str(tmp_path / "site")])
    assert program.main() == 0
    assert "note: the playground has no test images: python -m data_tools fetch" in capsys.readouterr().err
    html = page_html(tmp_path / "site")
    assert 'id="samples"' not in html and "<code>python -m data_tools fetch</code>" in html
