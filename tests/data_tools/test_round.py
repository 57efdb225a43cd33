"""Test ``data_tools round``: what it writes, prints and refuses."""

import re
from pathlib import Path

import numpy as np
import pytest

from app.files import shipped
from app.network.definitions import LENET5
from app.network.graph import build
from app.network.rounding import round_layers
from app.network.weights import load_weights, rounded, save_weights
from data_tools.__main__ import main
from data_tools.fashion_mnist import CLASSES
from tests.support.bundle_for_tests import IMAGES, trained
from tests.support.networks_for_tests import FLAT, random_graph
from tests.support.shell import Refuses

pytestmark = pytest.mark.usefixtures("training_images")


def test_round_writes_weights_that_float16_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "mine.h5", tmp_path / "mine16.h5"
    graph = random_graph(LENET5)
    save_weights(
        source,
        graph.parameters,
        network=LENET5,
        classes=CLASSES,
        input_scale=1 / 200,
        recipe="random",
        expected_correct={100: 90},
    )
    assert main(["round", str(source), str(out), "--images", "70"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["conv1", "conv2", "fc1", "fc2", f"wrote {out}"]
    for line in printed[:-1]:
        ours, plain = map(float, re.findall(r"[\d.]+e-\d\d", line))
        assert 0 < ours < plain
    found = load_weights(out)
    assert (found.storage, found.classes, found.input_scale) == ("float16", CLASSES, 1 / 200)
    assert found.recipe == "random; rounded to float16 with error compensation on 70 training images"
    assert found.definition == LENET5 and not found.expected_correct
    for layer in round_layers(build(LENET5, load_weights(source)), IMAGES[:70, None]):
        for name, array in layer.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array, strict=True)
            assert name.endswith("_bias") or (array != rounded(graph.parameters, "float16")[name]).any()


def test_what_round_refuses(tmp_path: Path, refuses: Refuses) -> None:
    source, narrow, out = trained(tmp_path / "a.h5", "lenet5"), trained(tmp_path / "b.h5", "mlp"), tmp_path / "out.h5"
    other = tmp_path / "other.h5"
    save_weights(other, random_graph(FLAT).parameters, network=FLAT)
    for count in ("0", "60001"):
        refuses(["round", source, out, "--images", count], f"--images {count} is not between 1 and 60,000", main)
    refuses(["round", narrow, out], "b.h5 is stored as float16 already: there is nothing to round", main)
    refuses(["round", source, narrow], "b.h5 already exists: name another file", main)
    refuses(["round", source, shipped.weights_path("lenet5")], "is a file that the project ships", main)
    refuses(["round", other, out], "network flat reads images of 1 x 5 x 9, Fashion-MNIST's are 1 x 28 x 28", main)
    assert not out.exists()
