"""Test ``data_tools sparsify``: what it writes, prints and refuses; round and quantise keep its zeros."""

import re
from pathlib import Path

import numpy as np
import pytest

from app.kernels.plain_problems import is_two_of_four
from app.network.definitions import LENET5
from app.network.graph import build_graph
from app.network.pruning import sparsify_layers
from app.network.weights import load_weights
from data_tools.__main__ import main
from tests.support.bundle_for_tests import IMAGES, trained
from tests.support.shell import Refuses

pytestmark = pytest.mark.usefixtures("training_images")


def test_sparsify_prunes_conv2_and_round_and_quantise_keep_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = trained(tmp_path / "mine.h5", "lenet5"), tmp_path / "sparse.h5"
    assert main(["sparsify", str(source), str(out), "--images", "50"]) == 0
    *changes, wrote = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in changes] == ["conv2", "fc1", "fc2"] and wrote == f"wrote {out}"
    for line in changes:
        ours, plain = map(float, re.findall(r"[\d.]+e-\d\d", line))
        assert 0 < ours <= plain
    before, found = load_weights(source), load_weights(out)
    assert not found.expected_correct and found.definition == LENET5
    assert str(found.recipe).endswith("conv2 pruned 2:4 with error compensation on 50 training images")
    layers = sparsify_layers(build_graph(LENET5, before), IMAGES[:50, None])
    changed = {name: array for layer in layers for name, array in layer.arrays.items()}
    for name, array in {**before.arrays, **changed}.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    narrow, integers = tmp_path / "sparse16.h5", tmp_path / "sparse8.h5"
    assert main(["round", str(out), str(narrow), "--images", "50"]) == 0
    assert main(["quantise", str(narrow), str(integers), "--images", "50"]) == 0
    final = load_weights(integers)
    assert is_two_of_four(final.arrays["conv2"]) and final.quantised is not None
    assert is_two_of_four(final.quantised.filters) and final.storage == "float16"


def test_what_sparsify_refuses(tmp_path: Path, refuses: Refuses) -> None:
    source, mlp, out = trained(tmp_path / "a.h5", "lenet5"), trained(tmp_path / "b.h5", "mlp"), tmp_path / "out.h5"
    refuses(["sparsify", mlp, out], "b.h5 has no convolution to prune", main)
    assert main(["sparsify", str(source), str(out), "--images", "20"]) == 0
    refuses(["sparsify", out, tmp_path / "again.h5"], "out.h5 has no convolution to prune", main)
