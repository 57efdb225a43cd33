"""Test the playground's JavaScript in Node.js: its results equal those of the NumPy reference and Pillow."""

import ast
import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from app.base.errors import UserError
from app.images.pictures import ground, preparing, reading
from app.images.pictures.preparing import PreparedPicture, prepare_picture
from app.ladder import playground
from app.ladder.playground import page_script, playground_page
from app.network.graph import Graph, load_network
from app.network.reference import shipped_reference
from data_tools.fashion_mnist import Split
from tests.support.pages import evaluate
from tests.support.pictures import GROUNDS, photo

PURE = tuple(name for name in playground.SCRIPTS if name != "page")
SHAPE = (1, 28, 28)
PHOTOS = Path(__file__).parents[2] / "docs" / "photos"
PIXEL_TOLERANCE = 1  # of 255: the script adds in another order


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_network("lenet5", None)[0]


def playground_script(samples: Split | None) -> str:
    """Return the scripts without page.js, then JavaScript that sets ``content`` (the page's JSON) and ``layers``."""
    content = playground_page(samples).body
    return f"{page_script(PURE)}\nconst content = {content}, layers = network.load(content.layers);"


def array_from(values: str) -> str:
    """Return a JavaScript expression that turns a typed array into a list, which JSON can contain."""
    return f"Array.from({values})"


def decode_base64(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def picture_literal(picture: Image.Image) -> str:
    """Return a JavaScript object literal of a picture, as the scripts take it."""
    data = base64.b64encode(np.asarray(picture).tobytes()).decode()
    channels = len(picture.getbands())
    size = f"width: {picture.width}, height: {picture.height}, channels: {channels}"
    return f'{{{size}, data: network.bytesOf("{data}")}}'


def test_the_page_contains_all_weights_and_test_images(samples: Split, graph: Graph) -> None:
    content = json.loads(playground_page(samples).body)
    assert [layer["name"] for layer in content["layers"]] == [step.layer.name for step in graph.steps[:-1]]
    held = {layer["name"]: layer["weights"] for layer in content["layers"] if "weights" in layer}
    assert held.keys() == graph.parameters.keys()
    for name, text in held.items():
        assert np.array_equal(decode_base64(text, "<f2"), graph.parameters[name].ravel())
    assert np.array_equal(decode_base64(content["images"], "u1").reshape(-1, 28, 28), samples.images)
    assert content["labels"] == samples.labels.tolist() and content["scale"] == graph.input_scale


def test_weights_that_are_not_exact_in_float16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, weights = load_network("lenet5", None)
    graph.parameters["fc2"][0, 0] = 0.1
    monkeypatch.setattr(playground, "load_network", lambda *_: (graph, weights))
    with pytest.raises(UserError, match="fc2 of lenet5 is not exact"):
        playground_page(None)


def test_scores_and_layer_outputs_equal_the_reference(samples: Split, graph: Graph, tmp_path: Path) -> None:
    maps = ".map(({ values }) => Array.from(values))"
    one = "network.forward(layers, images.subarray(at * 784, at * 784 + 784), content.shape, content.scale)"
    asked = f"content.labels.map((_, at) => {{ const found = {one}{maps}; return at < 3 ? found : found.slice(-1); }})"
    images = 'const images = network.bytesOf(content.images), best = "";'
    found = evaluate(f"{playground_script(samples)}\n{images}", asked, tmp_path)
    scores = np.array([one[-1] for one in found])
    expected = graph.reference(samples.images[:, None])
    assert np.abs(scores - expected).max() < 1e-12 * np.abs(expected).max()
    stored = shipped_reference(load_network("lenet5", None)[1], graph.network).labels[: len(scores)]
    assert len(scores) == 100 and np.array_equal(scores.argmax(axis=1), stored)
    for number in range(3):
        for at, values in enumerate(found[number], start=1):
            reference = graph.input_of_step(at, samples.images[number : number + 1, None], np.float64).ravel()
            assert np.abs(np.array(values) - reference).max() < 1e-12 * max(np.abs(reference).max(), 1)


def test_softmax_and_float16_decoding(tmp_path: Path) -> None:
    scores = [1000.0, 999.0, -5.0]
    asked = f"[network.softmax({scores}), [0, 1, 0x8001, 0x3c00, 0x7bff, 0xc248].map(network.fromHalf)]"
    chances, halves = evaluate(page_script(PURE), asked, tmp_path)
    powers = np.exp(np.array(scores) - 1000)
    assert chances == pytest.approx(powers / powers.sum())
    assert halves == np.array([0, 1, 0x8001, 0x3C00, 0x7BFF, 0xC248], "u2").view("f2").tolist()


def test_occlusion_equals_its_definition(samples: Split, graph: Graph, tmp_path: Path) -> None:
    """Compare occlusion with NumPy on image 12, a sneaker that gets another label if one square is black."""
    image = samples.images[12]
    run = "(pixels) => Array.from(network.forward(layers, pixels, content.shape, content.scale).at(-1).values)"
    steps = f"network.occlusion({run}, {image.ravel().tolist()}, 28, 4, 2)"
    loop = (
        f"(() => {{ for (const steps = {steps};;) {{ const one = steps.next(); if (one.done) return one.value; }} }})()"
    )
    asked = f"(({{ falls, turning, label, lead }}) => [Array.from(falls), Array.from(turning), label, lead])({loop})"
    falls, turning, label, lead = evaluate(playground_script(None), asked, tmp_path)

    def lead_of(pixels: np.ndarray) -> float:
        (scores,) = graph.reference(pixels[None, None])
        return float(scores[label] - np.delete(scores, label).max())

    expected, counts, turned = (np.zeros((28, 28)) for _ in range(3))
    for top in range(0, 25, 2):
        for left in range(0, 25, 2):
            changed, square = image.copy(), np.s_[top : top + 4, left : left + 4]
            changed[square] = 0
            rest = lead_of(changed)
            expected[square] += lead_of(image) - rest
            counts[square] += 1
            turned[square] += rest < 0
    assert label == graph.reference(image[None, None]).argmax() and lead == pytest.approx(lead_of(image))
    assert np.abs(np.reshape(falls, (28, 28)) - expected / counts).max() < 1e-9
    assert np.array_equal(np.reshape(turning, (28, 28)), turned > 0)
    assert (expected != 0).any()


def test_resampling_equals_pillow(tmp_path: Path) -> None:
    """Compare all bits, one axis at a time, because the order of the axes depends on Pillow's version."""
    rng, asked, expected = np.random.default_rng(1), [], []
    box_filter, bicubic = Image.Resampling.BOX, Image.Resampling.BICUBIC
    for number in range(12):
        width, height = (int(size) for size in rng.integers(1, 70, 2))
        shape = (height, width, 3) if number % 2 else (height, width)
        picture = Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8))
        left, right = sorted(int(at) for at in rng.choice(width + 1, 2, replace=False))
        size, factor, here = int(rng.integers(1, 50)), int(rng.integers(1, 6)), picture_literal(picture)
        rows = (left, 0, right, height)
        asked += [f"reduce({here}, {factor})", f"blur({here}, 2)", f"sharpen({here}, 1, 50)"]
        expected += [picture.reduce(factor), picture.filter(ImageFilter.GaussianBlur(2))]
        expected += [picture.filter(ImageFilter.UnsharpMask(1, 50, 0))]
        for name, way in (("box", box_filter), ("bicubic", bicubic)):
            asked.append(f'resize({here}, {size}, {height}, "{name}", {[*rows]})')
            expected.append(picture.resize((size, height), way, rows))
        turned = picture.transpose(Image.Transpose.TRANSPOSE)
        asked.append(f'resize({picture_literal(turned)}, {height}, {size}, "bicubic", {[0, left, height, right]})')
        expected.append(turned.resize((height, size), bicubic, (0, left, height, right)))
        if number % 2:
            asked.append(f"grey({here})")
            expected.append(picture.convert("L"))
    listed = ", ".join(array_from(f"resample.{one}.data") for one in asked)
    found = evaluate(page_script(PURE), f"[{listed}]", tmp_path)
    for call, values, picture in zip(asked, found, expected, strict=True):
        assert values == np.asarray(picture).ravel().tolist(), call[:40]


def test_script_constants_equal_those_of_predict() -> None:
    compared = []
    for name, modules in {"ground": [ground], "surface": [ground], "prepare": [preparing, reading]}.items():
        text = page_script((name,)).replace("[", "(").replace("]", ")")
        for constant, value in re.findall(r"\b([A-Z][A-Z_]+) = ([\d.e-]+|\([\d., ]+\))[,;]", text):
            (own,) = (vars(module)[constant] for module in modules if constant in vars(module))
            assert ast.literal_eval(value) == own, constant
            compared.append(constant)
    assert len(compared) == 29


def test_mask_operations_equal_those_of_predict(tmp_path: Path) -> None:
    rng, asked, expected = np.random.default_rng(4), [], []
    for share in (0.2, 0.45, 0.5, 0.55, 0.7):
        height, width = (int(edge) for edge in rng.integers(12, 40, 2))
        mask, weights = rng.random((height, width)) < share, rng.random((height, width))
        mask[2:10, 1:9] = True
        here = f"{{ width: {width}, height: {height}, data: {mask.ravel().astype(int).tolist()} }}"
        asked += [f"dilate({here}, 5)", f"withoutSpecks({here})", f"withoutLines({here})", f"filled({here})"]
        expected += [
            ground.dilate(mask, 5),
            ground._drop_specks(mask),
            ground._drop_thin_lines(mask),
            ground._fill_holes(mask),
        ]
        asked.append(f"heavyParts({here}, {weights.ravel().tolist()}, 0.02)")
        expected.append(ground._keep_heavy_parts(mask, weights, 0.02))
    listed = ", ".join(array_from(f"masks.{one}.data") for one in asked)
    found = evaluate(page_script(PURE), f"[{listed}]", tmp_path)
    for call, values, wanted in zip(asked, found, expected, strict=True):
        assert values == wanted.ravel().astype(int).tolist(), call[:60]


def example_pictures(samples: Split) -> dict[str, Image.Image]:
    """Return name → RGB picture: photos on every background, pictures of one colour, noise, and 28 x 28 images."""
    rng = np.random.default_rng(7)
    found = {
        ground: Image.open(io.BytesIO(photo(samples.images[rng.integers(100)], ground, rng))).reduce(2)
        for ground in GROUNDS
    }
    found |= {path.name: Image.open(path) for path in sorted(PHOTOS.iterdir())}
    for edge in (1, 9, 60):
        found[f"one colour {edge}"] = Image.new("RGB", (edge, 2 * edge), (200, 120, edge))
        found[f"noise {edge}"] = Image.fromarray(rng.integers(0, 256, (edge + 5, edge, 3)).astype(np.uint8))
    found["own"], found["negated"] = (Image.fromarray(image) for image in (samples.images[1], 255 - samples.images[2]))
    return {name: picture.convert("RGB") for name, picture in found.items()}


def prepare_rows_first(picture: Image.Image, invert: str) -> PreparedPicture:
    """Prepare a picture as ``predict`` does, but resize rows before columns; Pillow's order depends on the sizes."""
    resize = Image.Image.resize

    def in_two_steps(picture: Image.Image, size: Any, way: Any, box: Any) -> Image.Image:
        left, top, right, bottom = box
        wide = resize(picture, (size[0], picture.height), way, (left, 0, right, picture.height))
        return resize(wide, size, way, (0, top, size[0], bottom))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image.Image, "resize", in_two_steps)
        return prepare_picture(picture, SHAPE, invert)


def check_prepared(found: Any, wanted: PreparedPicture, graph: Graph, name: str, most: int) -> None:
    """Check that the page prepared a picture as ``predict`` does: similar pixels, the same label and notes.

    found: the page's result. most: largest allowed difference of a pixel.
    """
    pixels = np.array(found["pixels"], np.uint8).reshape(SHAPE)
    away = np.abs(pixels.astype(int) - wanted.pixels)
    assert away.max() <= most and away.mean() < 0.5, (name, away.max(), away.mean())
    assert (found["inverted"], found["doubts"]) == (wanted.inverted, [*wanted.doubts]), name
    if away.any():
        labels = graph.reference(np.stack([pixels, wanted.pixels])).argmax(axis=1)
        assert labels[0] == labels[1], name


def test_prepared_pictures_equal_those_of_predict(samples: Split, graph: Graph, tmp_path: Path) -> None:
    cases = [
        (name, picture, "auto" if at % 4 else ("yes", "no")[at // 4 % 2])
        for at, (name, picture) in enumerate(example_pictures(samples).items())
    ]
    listed = ", ".join(f'[{picture_literal(picture)}, "{invert}"]' for _, picture, invert in cases)
    each = "const found = prepare.preparePicture(picture, 28, invert); return { ...found, pixels: [...found.pixels] };"
    found = evaluate(page_script(PURE), f"[{listed}].map(([picture, invert]) => {{ {each} }})", tmp_path)
    for (name, picture, invert), one in zip(cases, found, strict=True):
        check_prepared(one, prepare_rows_first(picture, invert), graph, f"{name}, {invert}", PIXEL_TOLERANCE)
