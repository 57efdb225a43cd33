"""Test broken or missing input files: exit code 2, one line with cause and remedy, and no new files.

Tests of data_tools, files and network have more broken files for each reader.
"""

import gzip
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from app.cli import main
from app.files import shipped
from app.network.definitions import LENET5
from data_tools.idx import write_idx
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.shell import Refuses, in_a_shell, listing, write_good_files

TRUNCATED = shipped.find_shipped_weights("lenet5").read_bytes()[:200_000]
IMAGES = random_images(LENET5, 3)  # N, C, H, W
IDX = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 28, 28)) + IMAGES.tobytes()
X = (IMAGES / 255).astype(np.float32).transpose(0, 2, 3, 1)
Y = np.eye(10)[[1, 2, 3]]


class Case(NamedTuple):
    """A command, a pattern for its error, and a function that makes the file ``bad``, which the command reads."""

    command: str
    pattern: str
    make: Callable[[Path], object] = lambda path: None


def raw_file(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def idx_file(array: np.ndarray) -> Callable[[Path], object]:
    return lambda path: write_idx(path, array)


def hdf5_file(**arrays: object) -> Callable[[Path], object]:
    """Return a function that writes an HDF5 file with these datasets or links."""
    return lambda path: write_hdf5(path, arrays)


def weights_file(**changes: object) -> Callable[[Path], object]:
    """Return a function that writes weights of lenet5, of which these arrays are replaced."""
    return hdf5_file(**{**random_graph(LENET5, bias=False).parameters, **changes})


def unknown_network(path: Path) -> None:
    write_hdf5(path, random_graph(LENET5, bias=False).parameters, network="resnet")


WEIGHTS = "--device cpu --weights bad --data {good}/images --labels none"
DATA = "--device cpu --data bad --labels {good}/labels"
HDF5 = "--device cpu --data bad"
LABELS = "--device cpu --data {good}/images --labels bad"
UNLABELLED = "--device cpu --data {good}/images --labels none"
CASES = {
    "missing weights": Case(WEIGHTS, "bad does not exist; check the name"),
    "weights directory": Case(WEIGHTS, "bad is a directory; name a file in it", Path.mkdir),
    "truncated weights": Case(WEIGHTS, "truncated file.*fresh copy", raw_file(TRUNCATED)),
    "weights of another shape": Case(
        WEIGHTS,
        r"conv2 is \(3,3,32,64\), network lenet5 needs \(5,5,32,64\); use weights made for this network",
        weights_file(conv2=np.zeros((3, 3, 32, 64), np.float32)),
    ),
    "weights of an unknown network": Case(
        "graph --weights bad", "'resnet', which is not listed, and does not define it", unknown_network
    ),
    "missing images": Case(DATA, "bad does not exist; check the name"),
    "images directory": Case(DATA, "bad is a directory; name a file in it", Path.mkdir),
    "truncated gzip": Case(DATA, "bad is a truncated gzip file; get a fresh copy", raw_file(gzip.compress(IDX)[:-400])),
    "narrow images": Case(
        DATA, r"images of shape \(1, 27, 28\) .*reads \(1, 28, 28\): resize", idx_file(np.zeros((3, 27, 28), np.uint8))
    ),
    "no x": Case(HDF5, "bad contains y, but no dataset x; store the images as x", hdf5_file(y=Y)),
    "colour x": Case(
        HDF5, r"shape \(3, 28, 28\) .*: name images with as many channels", hdf5_file(x=np.repeat(X, 3, axis=3), y=Y)
    ),
    "too few in y": Case(HDF5, "2 labels but .*3 images; name files that belong together", hdf5_file(x=X, y=Y[:2])),
    "no y to count": Case(
        f"{HDF5} --min-accuracy 0.5", "--min-accuracy needs labels: name those of bad with --labels", hdf5_file(x=X)
    ),
    "missing labels": Case(LABELS, "bad does not exist; check the name"),
    "labels directory": Case(LABELS, "bad is a directory; name a file in it", Path.mkdir),
    "too few labels": Case(LABELS, "bad has 2 labels but .* 3 images; name files", idx_file(np.zeros(2, np.uint8))),
    "label 10": Case(
        LABELS, "label 10, but the network has classes 0 to 9: .*--labels none", idx_file(np.full(3, 10, np.uint8))
    ),
    "labels alone": Case("--labels {good}/labels --device cpu", "--labels FILE needs --data FILE"),
    "no labels to count": Case(
        "--data {good}/images --device cpu --min-accuracy 1", "--min-accuracy needs labels: name"
    ),
    "batch beyond the data": Case(f"{UNLABELLED} --batch 4", "--batch 4 is more than the 3 images .*: add --cycle"),
    "directory without data": Case(
        "--data-dir bad --device cpu", "t10k-images.*gz is not in bad.*python -m data_tools fetch", Path.mkdir
    ),
    "file for a directory": Case(
        "--data-dir {good}/images --device cpu", "t10k-images.* is not in .*python -m data_tools fetch"
    ),
    "unknown network": Case("--network vgg --device cpu", "unknown network 'vgg': choose one of lenet5"),
    "report in a missing folder": Case("--json bad/report", "--json bad/report .*No such.*name a file in a folder"),
    "report onto a folder": Case("--json bad", "--json bad .*not a regular file; name a file in", Path.mkdir),
    "report below a file": Case("--json {good}/images/r", "--json .*Not a directory; name a file in"),
    # A report must not replace a device such as /dev/null.
    "report onto a pipe": Case("--json bad", "--json bad .*not a regular file; .*or - for standard output", os.mkfifo),
    "report of a long name": Case(f"--json {'a' * 300}", "File name too long; name a file in"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("good")
    write_good_files(directory)
    return directory


@pytest.mark.parametrize(("name", "program"), [*((name, main) for name in CASES), ("truncated weights", in_a_shell)])
def test_bad_input(name: str, program: Callable[[list[str]], int], workdir: Path, good: Path, refuses: Refuses) -> None:
    case = CASES[name]
    case.make(Path("bad"))
    before = listing(workdir), listing(good)
    refuses(shlex.split(case.command.format(good=good)), case.pattern, program)
    assert (listing(workdir), listing(good)) == before


def test_bad_files_named_by_a_variable(workdir: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    """Files that the user names are not skipped for another source."""
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (workdir / name).write_bytes(b"not images")
    monkeypatch.setenv("FASHION_MNIST_DIR", str(workdir))
    refuses("--device cpu", "t10k-images-idx3-ubyte")


@pytest.mark.usefixtures("cache")
def test_unusable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "file" / "cache"))
    refuses("--device cpu", "cannot store data in .*/file/cache/fashion-mnist: Not a directory; set LENET_CACHE_DIR")
