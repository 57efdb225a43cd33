"""HDF5: weights, data, checkpoints and references, damaged as bytes and with checksums that are right again."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest import mock

import h5py
import numpy as np

from app.files import shipped
from app.network.definitions import MLP
from app.network.graph import find_network
from app.network.reference import Reference, load_reference, save_reference
from app.network.toml import network_toml
from app.network.weights import Weights, load_weights, save_weights
from app.training.checkpoint import EpochResult, load_checkpoint, save_checkpoint
from app.training.loop import initial_progress
from app.training.model import make_training_model
from data_tools.dataset import load_files
from tests.fuzz.harness import Pair, Target
from tests.fuzz.mutate import damaged, repaired
from tests.support.training_for_tests import some_settings

RNG = np.random.default_rng(2)
ARRAYS = {"fc1": RNG.normal(size=(6, 4)).astype(np.float32), "fc1_bias": np.ones(4, np.float32)}
X = RNG.integers(0, 256, (3, 5, 6, 1), np.uint8)


def image(arrays: dict[str, np.ndarray], libver: str, **options: object) -> bytes:
    """An HDF5 file: ``earliest`` has no checksums, ``latest`` has them everywhere."""
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver=libver) as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return stream.getvalue()


def images(arrays: dict[str, np.ndarray]) -> list[bytes]:
    """Good files of old and new format, stored whole, in chunks, and in compressed chunks."""
    packed = {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}
    return [image(arrays, libver, **options) for libver in ("earliest", "latest") for options in ({}, packed)]


def generator(goods: list[bytes]) -> Callable[[Random], bytes]:
    """Damaged ones; half of those whose metadata have checksums get the right ones again."""

    def generate(rng: Random) -> bytes:
        data = damaged(rng, rng.choice(goods))
        return repaired(data) if rng.random() < 0.5 else data

    return generate


def check_weights(found: Weights) -> None:
    for name, array in found.arrays.items():
        assert array.dtype == np.float32 and array.size and np.isfinite(array).all() and array.flags.c_contiguous
        assert array.ndim == 1 if name.endswith("_bias") else array.ndim in (2, 4)
    assert found.arrays and found.network.isidentifier()
    assert found.input_scale is None or 0 < found.input_scale < np.inf
    assert all(0 <= correct <= count for count, correct in found.expected_correct.items())


def make_weights(folder: Path) -> Pair:
    """Weights from elsewhere."""
    return generator(images(ARRAYS)), lambda path: check_weights(load_weights(path))


def make_own_weights(folder: Path) -> Pair:
    """Weights as ``train`` writes them."""
    path = folder / "weights.h5"
    save_weights(path, ARRAYS, network=MLP, classes="abcd", recipe="epochs 1", expected_correct={100: 91})
    saved = load_weights(path)

    def read(path: Path) -> None:
        found = load_weights(path)
        check_weights(found)
        if found.vouched:  # what was hit is nothing that counts
            np.testing.assert_equal(vars(replace(found, path=saved.path, sha256=saved.sha256)), vars(saved))

    return generator([path.read_bytes()]), read


def make_data(folder: Path) -> Pair:
    """Images and labels of the user's own."""
    labels = ({"x": X, "y": np.eye(4)[[0, 1, 2]]}, {"x": X / np.float32(255), "y": np.array([[1], [2], [3]])})

    def read(path: Path) -> None:
        data = load_files(path, None)
        assert data.images.dtype in (np.uint8, np.float32) and data.images.ndim == 4 and data.images.size
        assert data.images.flags.c_contiguous and 0 <= data.images.min() <= data.images.max()
        assert data.images.dtype == np.uint8 or data.images.max() <= 1
        assert data.labels is None or (data.labels.dtype == np.uint8 and len(data.labels) == len(data.images))

    return generator([content for arrays in labels for content in images(arrays)]), read


def make_checkpoint(folder: Path) -> Pair:
    """A hash of the content is in the file: what loads is what was saved."""
    good = folder / "good.checkpoint"
    network = find_network("mlp_1")
    settings = some_settings(network=network.name, definition=network_toml(network))
    model = make_training_model(network, settings.biases)
    history = (EpochResult(1.0, 0.5, 1.0, 0.5, 1.0),)
    save_checkpoint(good, settings, replace(initial_progress(model, settings), best_epoch=1, history=history))
    saved = load_checkpoint(good)

    def read(path: Path) -> None:
        found = load_checkpoint(path)
        assert found.settings == saved.settings
        np.testing.assert_equal(vars(found.progress), vars(saved.progress))

    return generator([good.read_bytes()]), read


def make_reference(folder: Path) -> Pair:
    """The stored reference of shipped weights, pinned by SHA256SUMS: any change is refused."""
    weights, sha256 = folder / "mlp_fashion.h5", "0" * 64
    weights.touch()
    path = shipped.reference_path(weights)
    labels = np.array([1, 2, 3], np.uint8)
    network = find_network("mlp")
    results = Reference(labels, np.array([0.5, 1.0, 2.0]), np.ones(3, np.float32))
    save_reference(path, results, sha256, network)
    shipped.record_checksum(path)
    good = path.read_bytes()
    sums = (folder / shipped.CHECKSUMS).read_text()
    (folder / shipped.CHECKSUMS).write_text(f"{sha256}  {weights.name}\n{sums}")
    origin = Weights(ARRAYS, "mlp", weights, sha256=sha256)

    def read(case: Path) -> None:
        content = case.read_bytes()
        path.write_bytes(content)
        with mock.patch.object(shipped, "FOLDER", folder):
            found = load_reference(origin, network)
        assert content == good and found is not None and np.array_equal(found.labels, labels)

    return generator([good]), read


TARGETS = (
    Target("weights", 500, make_weights),
    Target("own-weights", 300, make_own_weights),
    Target("data", 500, make_data),
    Target("checkpoint", 150, make_checkpoint),
    Target("reference", 600, make_reference),
)
