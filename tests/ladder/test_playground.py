"""Test the playground's JavaScript: it computes what the reference, NumPy and Pillow compute."""

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
PIXEL_TOLERANCE = 1  # of 255: sums in another order


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_network("lenet5", None)[0]


def script(samples: Split | None) -> str:
    """The scripts without the page, with the network as ``layers`` and what the page holds as ``told``."""
    told = playground_page(samples).body
    return f"{page_script(PURE)}\nconst told = {told}, layers = network.load(told.layers);"


def as_list(values: str) -> str:
    """An expression of a typed array as one of a list, which becomes JSON."""
    return f"Array.from({values})"


def decoded(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def pixels_of(picture: Image.Image) -> str:
    """A picture as the scripts take it."""
    data = base64.b64encode(np.asarray(picture).tobytes()).decode()
    channels = len(picture.getbands())
    size = f"width: {picture.width}, height: {picture.height}, channels: {channels}"
    return f'{{{size}, data: network.bytesOf("{data}")}}'


def test_the_page_holds_the_weights_and_images(samples: Split, graph: Graph) -> None:
    told = json.loads(playground_page(samples).body)
    assert [layer["name"] for layer in told["layers"]] == [step.layer.name for step in graph.steps[:-1]]
    held = {layer["name"]: layer["weights"] for layer in told["layers"] if "weights" in layer}
    assert held.keys() == graph.parameters.keys()
    for name, text in held.items():
        assert np.array_equal(decoded(text, "<f2"), graph.parameters[name].ravel())
    assert np.array_equal(decoded(told["images"], "u1").reshape(-1, 28, 28), samples.images)
    assert told["labels"] == samples.labels.tolist() and told["scale"] == graph.input_scale


def test_weights_that_are_not_exact_in_float16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, weights = load_network("lenet5", None)
    graph.parameters["fc2"][0, 0] = 0.1
    monkeypatch.setattr(playground, "load_network", lambda *_: (graph, weights))
    with pytest.raises(UserError, match="fc2 of lenet5 is not exact"):
        playground_page(None)


def test_labels_and_maps_are_the_references(samples: Split, graph: Graph, tmp_path: Path) -> None:
    maps = ".map(({ values }) => Array.from(values))"
    one = "network.forward(layers, images.subarray(at * 784, at * 784 + 784), told.shape, told.scale)"
    asked = f"told.labels.map((_, at) => {{ const found = {one}{maps}; return at < 3 ? found : found.slice(-1); }})"
    images = 'const images = network.bytesOf(told.images), best = "";'
    found = evaluate(f"{script(samples)}\n{images}", asked, tmp_path)
    scores = np.array([one[-1] for one in found])
    expected = graph.reference(samples.images[:, None])
    assert np.abs(scores - expected).max() < 1e-12 * np.abs(expected).max()
    stored = shipped_reference(load_network("lenet5", None)[1], graph.network).labels[: len(scores)]
    assert len(scores) == 100 and np.array_equal(scores.argmax(axis=1), stored)
    for number in range(3):
        for at, values in enumerate(found[number], start=1):
            reference = graph.input_of_step(at, samples.images[number : number + 1, None], np.float64).ravel()
            assert np.abs(np.array(values) - reference).max() < 1e-12 * max(np.abs(reference).max(), 1)


def test_probabilities_and_float16(tmp_path: Path) -> None:
    scores = [1000.0, 999.0, -5.0]
    asked = f"[network.softmax({scores}), [0, 1, 0x8001, 0x3c00, 0x7bff, 0xc248].map(network.fromHalf)]"
    chances, halves = evaluate(page_script(PURE), asked, tmp_path)
    powers = np.exp(np.array(scores) - 1000)
    assert chances == pytest.approx(powers / powers.sum())
    assert halves == np.array([0, 1, 0x8001, 0x3C00, 0x7BFF, 0xC248], "u2").view("f2").tolist()


def test_occlusion_is_what_it_says(samples: Split, graph: Graph, tmp_path: Path) -> None:
    """Image 12 is a sneaker that one square turns to something else."""
    image = samples.images[12]
    run = "(pixels) => Array.from(network.forward(layers, pixels, told.shape, told.scale).at(-1).values)"
    steps = f"network.occlusion({run}, {image.ravel().tolist()}, 28, 4, 2)"
    loop = (
        f"(() => {{ for (const steps = {steps};;) {{ const one = steps.next(); if (one.done) return one.value; }} }})()"
    )
    asked = f"(({{ falls, turning, label, lead }}) => [Array.from(falls), Array.from(turning), label, lead])({loop})"
    falls, turning, label, lead = evaluate(script(None), asked, tmp_path)

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


def test_pictures_are_resampled_as_pillow_does(tmp_path: Path) -> None:
    """To the last bit, one axis at a time: which comes first depends on Pillow's version."""
    rng, asked, expected = np.random.default_rng(1), [], []
    box_filter, bicubic = Image.Resampling.BOX, Image.Resampling.BICUBIC
    for number in range(12):
        width, height = (int(size) for size in rng.integers(1, 70, 2))
        shape = (height, width, 3) if number % 2 else (height, width)
        picture = Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8))
        left, right = sorted(int(at) for at in rng.choice(width + 1, 2, replace=False))
        size, factor, here = int(rng.integers(1, 50)), int(rng.integers(1, 6)), pixels_of(picture)
        rows = (left, 0, right, height)
        asked += [f"reduce({here}, {factor})", f"blur({here}, 2)", f"sharpen({here}, 1, 50)"]
        expected += [picture.reduce(factor), picture.filter(ImageFilter.GaussianBlur(2))]
        expected += [picture.filter(ImageFilter.UnsharpMask(1, 50, 0))]
        for name, way in (("box", box_filter), ("bicubic", bicubic)):
            asked.append(f'resize({here}, {size}, {height}, "{name}", {[*rows]})')
            expected.append(picture.resize((size, height), way, rows))
        turned = picture.transpose(Image.Transpose.TRANSPOSE)
        asked.append(f'resize({pixels_of(turned)}, {height}, {size}, "bicubic", {[0, left, height, right]})')
        expected.append(turned.resize((height, size), bicubic, (0, left, height, right)))
        if number % 2:
            asked.append(f"grey({here})")
            expected.append(picture.convert("L"))
    listed = ", ".join(as_list(f"resample.{one}.data") for one in asked)
    found = evaluate(page_script(PURE), f"[{listed}]", tmp_path)
    for call, values, picture in zip(asked, found, expected, strict=True):
        assert values == np.asarray(picture).ravel().tolist(), call[:40]


def test_the_rules_have_the_constants_of_predict() -> None:
    compared = []
    for name, modules in {"ground": [ground], "surface": [ground], "prepare": [preparing, reading]}.items():
        text = page_script((name,)).replace("[", "(").replace("]", ")")
        for constant, value in re.findall(r"\b([A-Z][A-Z_]+) = ([\d.e-]+|\([\d., ]+\))[,;]", text):
            (own,) = (vars(module)[constant] for module in modules if constant in vars(module))
            assert ast.literal_eval(value) == own, constant
            compared.append(constant)
    assert len(compared) == 29


def test_masks_are_what_pillow_and_numpy_make_of_them(tmp_path: Path) -> None:
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
    listed = ", ".join(as_list(f"masks.{one}.data") for one in asked)
    found = evaluate(page_script(PURE), f"[{listed}]", tmp_path)
    for call, values, wanted in zip(asked, found, expected, strict=True):
        assert values == wanted.ravel().astype(int).tolist(), call[:60]


def drawn_pictures(samples: Split) -> dict[str, Image.Image]:
    """Photos on every ground, pictures of one colour, noise, and images of the network's size."""
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


def prepared_rows_first(picture: Image.Image, invert: str) -> PreparedPicture:
    """As ``predict`` prepares it, if Pillow resizes rows before columns: its own order depends on the sizes."""
    resize = Image.Image.resize

    def in_two_steps(picture: Image.Image, size: Any, way: Any, box: Any) -> Image.Image:
        left, top, right, bottom = box
        wide = resize(picture, (size[0], picture.height), way, (left, 0, right, picture.height))
        return resize(wide, size, way, (0, top, size[0], bottom))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image.Image, "resize", in_two_steps)
        return prepare_picture(picture, SHAPE, invert)


def check_prepared(found: Any, wanted: PreparedPicture, graph: Graph, name: str, most: int) -> None:
    """The page's preparation is that of ``predict``: nearly the same pixels, the same label and notes."""
    pixels = np.array(found["pixels"], np.uint8).reshape(SHAPE)
    away = np.abs(pixels.astype(int) - wanted.pixels)
    assert away.max() <= most and away.mean() < 0.5, (name, away.max(), away.mean())
    assert (found["inverted"], found["doubts"]) == (wanted.inverted, [*wanted.doubts]), name
    if away.any():
        labels = graph.reference(np.stack([pixels, wanted.pixels])).argmax(axis=1)
        assert labels[0] == labels[1], name


def test_pictures_are_prepared_as_predict_does(samples: Split, graph: Graph, tmp_path: Path) -> None:
    cases = [
        (name, picture, "auto" if at % 4 else ("yes", "no")[at // 4 % 2])
        for at, (name, picture) in enumerate(drawn_pictures(samples).items())
    ]
    listed = ", ".join(f'[{pixels_of(picture)}, "{invert}"]' for _, picture, invert in cases)
    each = "const found = prepare.preparePicture(picture, 28, invert); return { ...found, pixels: [...found.pixels] };"
    found = evaluate(page_script(PURE), f"[{listed}].map(([picture, invert]) => {{ {each} }})", tmp_path)
    for (name, picture, invert), one in zip(cases, found, strict=True):
        check_prepared(one, prepared_rows_first(picture, invert), graph, f"{name}, {invert}", PIXEL_TOLERANCE)
