"""Test that the import of the largest accepted file takes less than 1 GB, and that larger files are refused unread."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.files.checks import BadValueError
from app.interchange import source
from app.interchange.source import MAX_FILE_BYTES, ImportOptions, read_source_file
from app.layers import Argmax, Flatten, Linear, Relu
from app.network.network import PIXEL_SCALE, Network
from app.network.toml import network_toml
from app.tools import import_
from tests.interchange.test_keras import bare, conv, dense
from tests.support.foreign_files import npz_file, onnx_of_others, safetensors_file
from tests.support.keras_files import configuration, keras_hdf5, keras_zip
from tests.support.onnx_steps import FLAT, gemm, model_of

ALLOWED = 1 << 30
ENDINGS = (".onnx", ".keras", ".h5", ".npz", ".safetensors")
MEASURE = r"""
import json, os, re, sys
from app.cli import main
for commands in json.loads(sys.argv[1]):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    for command in commands:
        assert main(command) == 0
        print("peak", int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]) << 10, flush=True)
    os._exit(0)
"""


def write_file(place: Path, name: str, units: int) -> list[str]:
    """Write a file with 784 weights for each unit of a hidden layer; return the command that imports it."""
    layers = (Flatten("flatten"), Linear("fc1", units), Relu("relu1"), Linear("fc2", 10), Argmax("argmax"))
    network = Network("wide", "", (1, 28, 28), layers)
    rng = np.random.default_rng(0)
    arrays = {"fc1": rng.standard_normal((784, units), np.float32), "fc2": rng.standard_normal((units, 10), np.float32)}
    file, options = place / name, []
    ending = file.suffix
    if ending in (".keras", ".h5"):
        model = [bare("Flatten"), dense(784, units, activation="relu"), dense(units, 10)]
        file.write_bytes((keras_zip if ending == ".keras" else keras_hdf5)(model, configuration(model, (28, 28, 1))))
    elif ending == ".onnx":
        file.write_bytes(onnx_of_others(network, arrays, PIXEL_SCALE).SerializeToString())
    else:
        (place / f"{name}.toml").write_text(network_toml(network))
        theirs = {f"{name}.weight": np.ascontiguousarray(array.T) for name, array in arrays.items()}
        file.write_bytes({".npz": npz_file, ".safetensors": safetensors_file}[ending](theirs))
        options = ["--network", str(place / f"{name}.toml")]
    return ["import", str(file), *options, "--out", str(place / "out.h5"), "--overwrite"]


def peaks(*commands: list[list[str]]) -> list[int]:
    """Return the peak memory of a process in bytes, as Linux counts it, after each list of commands.

    Each list runs in a separate fork. (The count of getrusage would begin with that of the parent.)
    """
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(commands)], capture_output=True, text=True, check=True, timeout=300
    )
    return [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak ")]


def test_the_largest_file_takes_less_than_1_gb(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak follows from a small file and one of a twelfth of the limit; docs/import.md has the limit's figures."""
    monkeypatch.setenv("PYTHONPATH", str(Path(import_.__file__).parents[2]))
    sizes = {"small": 100, "large": MAX_FILE_BYTES // 12 // 4 // 784}
    found = peaks(*([write_file(place, name + ending, units) for name, units in sizes.items()] for ending in ENDINGS))
    for ending, small, large in zip(ENDINGS, found[::2], found[1::2], strict=True):
        share = (place / f"large{ending}").stat().st_size / MAX_FILE_BYTES
        assert small < large < small + (ALLOWED - small) * share, ending


@pytest.mark.parametrize("ending", [*ENDINGS, ".pt", ".bin", ".params"])
def test_a_larger_file_is_refused_before_reading(ending: str, place: Path) -> None:
    path = place / f"m{ending}"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(UserError, match=f"more than the {MAX_FILE_BYTES:,} that are read"):
        read_source_file(path, ImportOptions())


def test_the_limit_counts_numbers_as_float32(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "m.onnx").write_bytes(model_of([FLAT, gemm(192)]).SerializeToString())
    arrays = read_source_file(place / "m.onnx", ImportOptions())[1].arrays
    monkeypatch.setattr(source, "MAX_FILE_BYTES", 1000)
    with pytest.raises(BadValueError, match="holds 3,860 bytes as float32; at most 1,000 are read: store less in it"):
        source.check_numbers(arrays)


def test_windows_that_would_fill_memory_are_refused(place: Path) -> None:
    model = [conv(7, 1, 2), bare("GlobalAveragePooling2D"), dense(2, 4)]
    (place / "m.keras").write_bytes(keras_zip(model, configuration(model, (1000, 1000, 1))))
    with pytest.raises(
        UserError, match="has windows of 48,413,764 numbers an image in conv1, more than the 33,554,432"
    ):
        import_.read_foreign_file(place / "m.keras", ImportOptions())


@pytest.mark.parametrize(("shape", "count"), [((1, 28, 28), 64), ((1, 500, 500), 16), ((3, 1024, 1024), 1)])
def test_large_activations_reduce_images(shape: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_, "IMAGES", 64)
    layers = (Flatten("flatten"), Linear("fc1", 3), Argmax("argmax"))
    assert import_._compared_image_count(Network("wide", "", shape, layers)) == count
