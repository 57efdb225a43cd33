"""Test docs/nano.py: its kernels emulated on the CPU, its check and its errors; on a GPU the whole file."""

import gzip
import json
import re
import subprocess
import sys
from ctypes import c_float
from pathlib import Path

import numpy as np
import pytest

from app.cuda.compiler import resource_report
from app.cuda.device import why_no_gpu
from app.network.graph import network_graph
from app.tools.resources import parse_assembler_log
from data_tools.idx import read_idx
from docs import nano
from tests.support.host_kernels import HostKernel, guarded
from tests.support.outside import FOLDER

FILE = Path(nano.__file__)
IMAGES = 37  # no multiple of a block's images
FLOAT32 = 64 * 2.0**-24  # allowed error of a sum ÷ the greatest value


def run_nano(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, FILE, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def write_images(folder: Path, count: int) -> Path:
    """Write ``count`` black images of class 0 as Fashion-MNIST's test files into the folder; return it."""
    for name, size in (("images-idx3", 16 + count * 784), ("labels-idx1", 8 + count)):
        (folder / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(bytes(size), 1))
    return folder


def test_nano_is_one_short_file_that_does_not_import_app() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= 250
    imports = set(re.findall(r"^ *(?:import|from) (\w+)", text, re.M))
    assert imports - sys.stdlib_module_names == {"cupy", "cupyx", "h5py", "numpy"}
    for room in re.findall(r"\b(?:app|data_tools)(?:/\w+(?:\.py)?)?", text.partition("In earnest")[2]):
        assert (FILE.parent.parent / room).exists(), room


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write the kernels of docs/nano.py to a .cu file; return its path."""
    (tmp_path / "nano.cu").write_text(nano.KERNELS)
    return tmp_path / "nano.cu"


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_nano_kernels_keep_all_sums_in_registers(source: Path, arch: str) -> None:
    found = parse_assembler_log(resource_report(source, {}, arch))
    assert sorted(found) == sorted(name for name, *_ in nano.LAYERS)
    assert not any(kernel.stack or kernel.spill_stores for kernel in found.values())


def test_every_nano_layer_equals_the_reference_on_the_cpu(source: Path) -> None:
    """Compare every element; outputs begin as NaN, and an access beyond an array ends the process."""
    images = read_idx(FOLDER / "t10k-images-idx3-ubyte.gz", 3)[:IMAGES]
    graph = network_graph("lenet5")
    steps = [3, 6, 9]  # their inputs are the outputs of the first three kernels
    maps, features, hidden = (graph.input_of_step(at, images[:, None], np.float64) for at in steps)
    features = features.transpose(0, 2, 3, 1)  # rows, columns, maps: the order of fc1's weights
    labels = graph.forward(images[:, None], np.float64)[1]
    read = guarded(images.reshape(IMAGES, -1))
    filters1, *weights = nano.load_weights()
    arguments: list[list[np.ndarray]] = [[], *([guarded(array)] for array in weights)]
    for at, wanted in enumerate((maps, features, hidden, labels)):
        name, threads, each = nano.LAYERS[at]
        size, dtype = nano.SIZES[at + 1]
        written = guarded(np.full((IMAGES, size), 255 if dtype == "u1" else np.nan, dtype))
        kernel = HostKernel(source, name, {}, threads)
        if name == "conv1":
            (c_float * filters1.size).in_dll(kernel.library, "filters1")[:] = filters1.ravel().tolist()
        kernel(None, (-(-IMAGES // each), 1, 1), read, *arguments[at], written, np.int32(IMAGES))
        wrong = np.abs(written - wanted.reshape(written.shape)).max()
        assert wrong <= (FLOAT32 * np.abs(wanted).max() if name != "fc2" else 0), name
        read = written


def test_judge_distinguishes_errors_from_near_ties() -> None:
    import h5py

    with h5py.File(nano.WEIGHTS / "lenet5_fashion_reference.h5") as file:
        reference, margins, magnitudes = (file[name][:] for name in ("labels", "margins", "magnitudes"))
    passed, verdict = nano.judge(reference, reference)
    assert passed and verdict == "10,000 of 10,000 labels equal the float64 reference's; 10,000 are correct"
    order = np.argsort(margins / magnitudes)
    for image, near in ((order[0], margins[order[0]] < FLOAT32 * magnitudes[order[0]]), (order[-1], False)):
        found = reference.copy()
        found[image] = (found[image] + 1) % 10
        passed, verdict = nano.judge(found, reference)
        assert passed == near
        assert f"9,999 of 10,000 labels equal the float64 reference's, 1 differ, {int(near)} of them" in verdict


def test_missing_or_broken_images_are_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path / "nowhere", write_images(tmp_path, 99), FOLDER):
        monkeypatch.setattr(sys, "argv", [str(FILE), str(folder)])
        with pytest.raises(SystemExit, match="2"):
            nano.main()
        out, err = capsys.readouterr()
        assert not out and re.fullmatch(r"error: no good test images in .*; run: python -m data_tools fetch\n", err)


def test_exit_code_is_1_for_wrong_labels_and_2_without_a_gpu(tmp_path: Path) -> None:
    """Label black images: the labels differ from the reference's, which are of the real test images."""
    done = run_nano(write_images(tmp_path, 10_000))
    if why_no_gpu() is None:
        assert done.returncode == 1 and done.stdout.startswith("FAILED: ") and not done.stderr
    else:
        assert done.returncode == 2 and not done.stdout
        assert re.fullmatch(r"error: no GPU that CuPy can use: .*; without one run: .*\n", done.stderr)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.fashion_mnist
def test_nano_labels_are_right_and_its_time_at_most_twice_that_of_main_py() -> None:
    """Compare with ``main.py --precision fp32``; both times are from host memory to host memory."""
    done = run_nano()
    assert done.returncode == 0, done.stderr
    assert "PASSED: 10,000 of 10,000 labels equal the float64 reference's; 9,336 are correct" in done.stdout
    words = [sys.executable, "main.py", "--precision", "fp32", "--json", "-"]
    ours = subprocess.run(words, cwd=FILE.parent.parent, capture_output=True, text=True, timeout=300, check=True)
    found = re.search(r"^end to end +([\d.]+) ms", done.stdout, re.M)
    assert found and float(found[1]) <= 2 * json.loads(ours.stdout)["end_to_end_ms"]["p50"]
