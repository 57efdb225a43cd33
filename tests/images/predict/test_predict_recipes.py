"""The commands that README, docs/predict.md and ``predict --help`` show work as they stand, and need few extras."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.commands.predict import EPILOG
from app.network.definitions import LENET5
from app.network.weights import load_weights, save_weights
from tests.images.predict.conftest import Predict
from tests.support.shell import ROOT, check_error

SHOWN = "\n".join([*((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/predict.md")), EPILOG])
RECIPES = [*dict.fromkeys(re.findall(r"^ *python main\.py predict ([^`#\n]*[^`#\s])", SHOWN, re.MULTILINE))]


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str, predict: Predict, fashion: np.ndarray) -> None:
    Path("photos").mkdir()
    for path in ("photo.jpg", "photos/1.png", "photos/2.webp"):
        Image.fromarray(255 - fashion[0]).resize((112, 112)).save(path)
    np.save("images.npy", fashion)
    save_weights(Path("mine.h5"), load_weights().arrays, network=LENET5)
    code, out, report = predict(*shlex.split(recipe))
    assert code == 0, report
    named = re.findall(r"--(?:out|show) (\S+)", recipe)
    assert all(Path(name).stat().st_size for name in named) and bool(out) == ("--out" not in recipe)


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) >= 5 and any("--show" in recipe for recipe in RECIPES)


@pytest.mark.parametrize(
    ("package", "command", "wrong"),
    [
        ("PIL", "photo.png", "reading pictures needs Pillow: pip install 'Pillow>="),
        ("PIL", "images.npy --show seen.png", "needs Pillow: pip install 'Pillow>="),
        ("pyarrow", "images.npy --out a.parquet", "--out a.parquet needs pyarrow: pip install 'pyarrow>="),
    ],
)
def test_a_missing_extra_is_one_line(
    package: str, command: str, wrong: str, predict: Predict, fashion: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("images.npy", fashion[:3])
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    check_error(*predict(*command.split()), wrong)
    assert predict("images.npy")[0] == 0  # which needs neither
