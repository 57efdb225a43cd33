"""Test shipped weights: how they are made, found and checked, and that damaged files are refused."""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.files import shipped
from app.layers import Tanh
from app.network import weights as module
from app.network.definitions import NETWORKS, Network
from app.network.graph import build_graph
from app.network.reference import compute_reference, load_reference, save_reference
from app.network.verdicts import Reference
from app.network.weights import load_weights, save_weights
from data_tools.__main__ import main as data_tools
from tests.support.bundle_for_tests import FILES, IMAGES, STORAGE, TRUTH
from tests.support.networks_for_tests import CONVOLVED, LATE, random_graph, random_images
from tests.support.shell import Refuses

Unchanged = Callable[..., None]


@pytest.fixture
def refused(release: Path, refuses: Refuses) -> Unchanged:
    """Return a function that checks that files are refused with a message, and that no shipped file changes."""

    def check(pattern: str, *files: Path) -> None:
        before = {path.name: path.read_bytes() for path in release.iterdir()}
        refuses(["bundle", *files], pattern, data_tools)
        assert {path.name: path.read_bytes() for path in release.iterdir()} == before

    return check


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("network", STORAGE)
def test_shipped_weights_and_references_are_right(network: str, release: Path, tmp_path: Path) -> None:
    weights = load_weights(shipped.find_shipped_weights(network))
    own = load_weights(tmp_path / f"{network}.h5")
    assert (weights.network, weights.storage, weights.recipe) == (network, STORAGE[network], "random")
    assert weights.definition == NETWORKS[network]
    for name, array in own.arrays.items():
        np.testing.assert_array_equal(weights.arrays[name], array, strict=True)
    reference = load_reference(weights, NETWORKS[network])
    assert reference is not None
    scores = build_graph(NETWORKS[network], weights).forward(IMAGES[:, None], np.float64)[0]
    np.testing.assert_array_equal(reference.labels, scores.argmax(axis=1))
    logits = np.sort(np.log(scores) if network == "mlp" else scores, axis=1)
    np.testing.assert_allclose(reference.margins, logits[:, -1] - logits[:, -2], rtol=1e-9, atol=1e-12)
    assert (reference.labels.dtype, reference.margins.dtype) == (np.uint8, np.float64)
    assert weights.expected_correct == {100: int((reference.labels[:100] == TRUTH[:100]).sum())}
    assert {path.name for path in release.iterdir()} == FILES
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=release, check=True)
    copy = Path(shutil.copy(shipped.find_shipped_weights(network), tmp_path / "copy.h5"))
    assert load_reference(load_weights(copy), NETWORKS[network]) is not None
    assert load_reference(own, NETWORKS[network]) is None


def test_shipping_again_gives_the_same_files(release: Path) -> None:
    before = {path.name: path.read_bytes() for path in release.iterdir()}
    assert data_tools(["bundle", str(shipped.find_shipped_weights("mlp"))]) == 0
    assert {path.name: path.read_bytes() for path in release.iterdir()} == before


def test_two_files_of_one_network_are_refused(refused: Unchanged, tmp_path: Path) -> None:
    refused("are both weights of mlp: name one of them", tmp_path / "mlp.h5", shipped.find_shipped_weights("mlp"))


@pytest.mark.parametrize("name", ["mlp_fashion.h5", "mlp_fashion_reference.h5", "SHA256SUMS"])
def test_nothing_is_written_through_a_link(name: str, release: Path, tmp_path: Path, refused: Unchanged) -> None:
    kept = (release / name).rename(tmp_path / "kept")
    (release / name).symlink_to(kept)
    before = kept.stat().st_mtime_ns
    refused(f"{name} is a link.*remove the link", tmp_path / "mlp.h5")
    assert kept.stat().st_mtime_ns == before


def test_margins_are_differences_of_logits() -> None:
    graph = random_graph(NETWORKS["mlp"])
    images = random_images(graph.network, 5)
    certain = {name: array * 1e4 if name.startswith("fc2") else array for name, array in graph.parameters.items()}
    certain_graph = build_graph(graph.network, module.Weights(certain, "mlp", Path("random")))
    assert (certain_graph.reference(images) == 0).any()
    found = compute_reference(certain_graph, images)
    assert np.isfinite(found.margins).all() and (found.margins > 700).any()


@pytest.mark.parametrize(
    ("network", "product", "saturating"),
    [(NETWORKS["lenet5"], "fc2", 0), (NETWORKS["mlp"], "fc2", 1), (LATE, "fc1", 1), (CONVOLVED, "conv1", 1)],
)
def test_magnitudes_are_sums_of_absolute_terms(network: Network, product: str, saturating: int) -> None:
    """They are those of the last product and its bias; a softmax or sigmoid adds 1."""
    graph = random_graph(network)
    images = random_images(network, 5)
    found = compute_reference(graph, images)
    at = next(at for at, step in enumerate(graph.steps) if step.layer.name == product)
    hidden = graph.input_of_step(at, images, np.float64).reshape(5, -1)
    if network is CONVOLVED:  # the window is the whole image
        weights = graph.parameters[product].transpose(2, 0, 1, 3).reshape(hidden.shape[1], -1)
    else:
        weights = graph.parameters[product]
    terms = np.abs(hidden[:, :, None] * weights.astype(np.float64)).sum(axis=1)
    expected = (terms + np.abs(graph.parameters[f"{product}_bias"])).max(axis=1) + saturating
    np.testing.assert_allclose(found.magnitudes, expected, rtol=1e-6)
    assert found.magnitudes.dtype == np.float32
    np.testing.assert_array_equal(found.labels, graph.forward(images, np.float64)[1])


# --- damaged and missing files


@pytest.mark.parametrize("alias", ["lenet5_fashion.h5", "link", "../weights/lenet5_fashion.h5"])
def test_damaged_weights_never_reach_hdf5(alias: str, release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_last_bit(shipped.find_shipped_weights("lenet5"))
    (release / "link").symlink_to(shipped.find_shipped_weights("lenet5"))
    monkeypatch.setattr(shipped, "read_verified_hdf5", lambda *_: pytest.fail("opened before its hash was checked"))
    with pytest.raises(UserError, match="does not match its checksum in SHA256SUMS"):
        load_weights(release / alias)


def test_damaged_references_are_refused(release: Path) -> None:
    weights = load_weights(shipped.find_shipped_weights("mlp"))
    path = shipped.reference_path(shipped.find_shipped_weights("mlp"))
    flip_last_bit(path)
    with pytest.raises(UserError, match="SHA256SUMS"):
        load_reference(weights, NETWORKS["mlp"])
    save_reference(path, Reference(np.zeros(3), np.ones(3), np.ones(3)), "0" * 64, NETWORKS["mlp"])
    shipped.record_checksum(path)
    with pytest.raises(UserError, match="other weights; run: python -m data_tools bundle"):
        load_reference(weights, NETWORKS["mlp"])
    path.unlink()
    with pytest.raises(UserError, match="does not exist"):
        load_reference(weights, NETWORKS["mlp"])


@pytest.mark.parametrize("sums", ["", "no checksum\n", None])
def test_weights_without_a_good_checksum_are_refused(sums: str | None, release: Path) -> None:
    (release / "SHA256SUMS").unlink()
    if sums is not None:
        (release / "SHA256SUMS").write_text(sums)
    with pytest.raises(UserError, match="SHA256SUMS"):
        load_weights(shipped.find_shipped_weights("lenet5"))


@pytest.mark.parametrize("case", ["no file", "no weights", "another network's", "own network"])
def test_unsuitable_files_are_not_shipped(case: str, refused: Unchanged, tmp_path: Path) -> None:
    bad = tmp_path / "bad.h5"
    if case == "no weights":
        bad.write_bytes(b"text")
    if case == "another network's":
        save_weights(bad, random_graph(NETWORKS["mlp"]).parameters, network=NETWORKS["fa19"])
    if case == "own network":
        tanh = tuple(Tanh(layer.name) if layer.kind == "sigmoid" else layer for layer in NETWORKS["mlp"].layers)
        own = replace(NETWORKS["mlp"], layers=tanh)
        save_weights(bad, random_graph(own).parameters, network=own)
    remedies = (
        "check the name|store its arrays|make it again|use weights made for|put its file into app/network/builtin"
    )
    refused(f"bad.h5.*({remedies})", bad)
