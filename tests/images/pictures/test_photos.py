"""Photos on every kind of ground keep most labels, and what is doubtful about them is said."""

import io

import numpy as np
import pytest
from PIL import Image

from app.engine.classifier import Classifier
from app.images.pictures.preparing import prepare
from data_tools.idx import read_idx
from tests.images.measure_photos import measure
from tests.support.outside import FOLDER
from tests.support.photos import GROUNDS, photo

IMAGES = read_idx(FOLDER / "t10k-images-idx3-ubyte.gz", 3)
TRUTH = read_idx(FOLDER / "t10k-labels-idx1-ubyte.gz", 1)
# Of 60; measured with more: docs/predict.md.
LEAST = {"cloudy": 0.7, "hand": 0.7, "creased": 0.8, "tiles": 0.7, "wood": 0.7}


@pytest.mark.parametrize("ground", GROUNDS)
def test_labels_are_kept(ground: str) -> None:
    with Classifier(device="cpu") as classifier:
        found = measure(IMAGES, TRUTH, ground, 60, 1, classifier)
    assert found.kept >= LEAST.get(ground, 0.8)
    assert found.kept_noted <= 0.4 or ground in LEAST


def doubts(image: Image.Image) -> set[str]:
    return {*prepare(image, (1, 28, 28)).doubts}


def test_doubts_are_said() -> None:
    white, half = Image.new("L", (200, 150), 255), Image.new("L", (200, 150), 255)
    half.paste(0, (0, 40, 90, 120))
    small = white.copy()
    small.paste(0, (100, 50, 115, 70))
    assert doubts(white) == {"nearly empty"}
    assert doubts(half) == {"cut at the border"}
    assert doubts(small) == {"very small"}
    wood = photo(IMAGES[0], "wood", np.random.default_rng(1))
    assert "ground not plain" in doubts(Image.open(io.BytesIO(wood)).convert("RGB"))
    assert not doubts(Image.fromarray(IMAGES[0]))  # of the network's size: taken as it is


@pytest.mark.parametrize("angle", [0, 180])
def test_light_that_falls_off_is_no_object(angle: int) -> None:
    light = np.linspace(255, 120, 300, dtype=np.uint8)[None].repeat(200, 0)
    light[60:140, 130:170] = 20
    found = prepare(Image.fromarray(light).rotate(angle), (1, 28, 28))
    assert found.inverted and not found.doubts
    np.testing.assert_array_equal(found.pixels[0, :, [6, 21]], 0)  # 40 × 80 becomes 14 × 28
    assert found.pixels[0, :, 7:21].min() > 200


def soft(depth: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-depth / 8))


Y, X = np.mgrid[:200, :300]
# What a quadratic surface does not follow.
LIGHTS = {
    "lamp": 90 + 150 / (1 + ((X - 240) ** 2 + (Y - 50) ** 2) / 100**2),
    "shadow from an edge": 220 - 80 * soft(X - 240.0) * soft(Y - 60.0),
    "joints": np.where(((X + 30) % 70 < 4) | ((Y + 30) % 66 < 4), 150, 220),
}


@pytest.mark.parametrize("light", LIGHTS)
def test_lamps_shadows_and_lines_are_no_objects(light: str) -> None:
    seen = LIGHTS[light].astype(np.uint8)
    seen[60:140, 130:170] = 10
    pixels = prepare(Image.fromarray(seen), (1, 28, 28)).pixels[0]
    np.testing.assert_array_equal(pixels[3:25, [1, 26]], 0)  # 40 × 80 becomes 14 × 28; stumps of lines stay
    assert pixels[3:25, 9:17].min() > 200
