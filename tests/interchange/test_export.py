"""``export``: three formats, the same bytes each time, that ``import`` reads back; nothing is half-written."""

from pathlib import Path

import numpy as np
import pytest

from app.cli import main
from app.network.definitions import LENET5, NETWORKS
from app.network.network import Network
from app.network.weights import load_weights, save_weights
from tests.support.networks_for_tests import ODD, random_graph
from tests.support.shell import Refuses

ENDINGS = (".onnx", ".safetensors", ".npz")


def needs_package_of(ending: str) -> None:
    package = {".onnx": "onnx", ".safetensors": "safetensors"}.get(ending)
    if package:
        pytest.importorskip(package)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("network", [*NETWORKS.values(), ODD], ids=lambda network: network.name)
def test_import_gives_the_exported_file_back(network: Network, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    needs_package_of(ending)
    graph = random_graph(network)
    classes = [f"kind {at}" for at in range(graph.classes)]
    save_weights(Path("a.h5"), graph.parameters, network=network, classes=classes, input_scale=1 / 3)
    assert main(["export", "a.h5", "--out", f"b{ending}"]) == 0
    told, content = capsys.readouterr().out, Path(f"b{ending}").read_bytes()
    assert main(["export", "a.h5", "--out", f"b{ending}", "--overwrite"]) == 0
    assert Path(f"b{ending}").read_bytes() == content
    assert main(["import", f"b{ending}", "--out", "c.h5"]) == 0
    found, before = load_weights(Path("c.h5")), load_weights(Path("a.h5"))
    assert found.definition == network and found.classes == tuple(classes) and found.input_scale == 1 / 3
    assert found.arrays.keys() == before.arrays.keys()
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    assert ("fc1_bias" in told and "fc1.bias" in told) or ending == ".npz"
    if ending == ".onnx":
        assert "ONNX Runtime" in " ".join(capsys.readouterr().out.split())


def test_pytorch_s_names_have_its_layout() -> None:
    load = pytest.importorskip("safetensors.numpy").load_file
    graph = random_graph(LENET5)
    save_weights(Path("a.h5"), graph.parameters, network=LENET5)
    assert main(["export", "a.h5", "--out", "b.safetensors"]) == 0
    theirs = load("b.safetensors")
    assert theirs["conv2.weight"].shape == (64, 32, 5, 5) and theirs["fc1.weight"].shape == (128, 1024)
    rows = theirs["fc1.weight"].reshape(128, 64, 4, 4)  # features in C, H, W order
    np.testing.assert_array_equal(rows.transpose(2, 3, 1, 0).reshape(1024, 128), graph.parameters["fc1"])


def test_npz_has_the_names_of_weights_files() -> None:
    assert main(["export", "--network", "lenet5", "--out", "b.npz"]) == 0
    with np.load("b.npz", allow_pickle=False) as found:
        assert {*found} == {"conv1", "conv2", "fc1", "fc2", "lenet5-inference"}
        assert 'name = \\"lenet5\\"' in found["lenet5-inference"].item().decode()


def test_nothing_is_replaced_without_overwrite(refuses: Refuses, place: Path) -> None:
    (place / "b.npz").write_bytes(b"mine")
    refuses(["export", "--network", "lenet5", "--out", "b.npz"], "b.npz exists: name another --out")
    assert (place / "b.npz").read_bytes() == b"mine"
    assert main(["export", "--network", "lenet5", "--out", "b.npz", "--overwrite"]) == 0
    assert (place / "b.npz").read_bytes() != b"mine"


def test_wrong_requests_are_one_line(refuses: Refuses, place: Path) -> None:
    refuses(["export", "--out", "b.npz"], "nothing to export is named")
    refuses(["export", "--network", "lenet5", "--out", "b.h5"], "b.h5 has no known ending")
    refuses(["export", "none.h5", "--out", "b.npz"], "none.h5 does not exist")
    refuses(["export", "--network", "lenet5", "--out", "no/b.npz"], "no/b.npz cannot be written")
    assert not [*place.iterdir()]
