"""Nothing is fetched, nothing of the user's is found, and nothing is left in the user's folders.

ONNX Runtime reports to its maker unless a variable forbids it, and keeps a database and an identifier for that.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.files.cache import cache_dir
from app.interchange.named_arrays import Description
from app.interchange.onnx_export import onnx_model
from app.network.definitions import LENET5
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.outside import Outside, secluded
from tests.support.shell import ROOT

FETCHES = {
    "a request": "import requests; requests.get('http://example.com/x', timeout=5)",
    "a request by TLS": "import requests\ntry: requests.get('https://example.com/x', timeout=5)\nexcept OSError: pass",
    "the standard library": "import urllib.request as u\ntry: u.urlopen('http://example.com')\nexcept OSError: pass",
    "apt-get": "import subprocess; subprocess.run(['apt-get', 'download', 'x'])",
}


@pytest.mark.parametrize("how", FETCHES)
def test_a_process_of_a_test_is_noticed(how: str, outside: Outside) -> None:
    with pytest.raises(AssertionError, match="tests fetch nothing"), secluded(outside):
        subprocess.run([sys.executable, "-c", FETCHES[how]], check=True, timeout=60)


@pytest.mark.parametrize("address", ["192.0.2.1", "example.com"])
def test_this_process_is_noticed(address: str, outside: Outside) -> None:
    def fetch() -> None:
        with pytest.raises(PermissionError):
            socket.create_connection((address, 80), timeout=5)

    with pytest.raises(AssertionError, match=f"tests fetch nothing.*{address}"), secluded(outside):
        fetch()


def test_servers_of_a_test_are_reached(outside: Outside) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, secluded(outside):
        socket.create_connection(server.getsockname()).close()


def test_nothing_of_the_user_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "FASHION_MNIST_DIR" not in os.environ
    assert list(Path.home().iterdir()) == [] and cache_dir() == Path.home() / ".cache" / "lenet5-inference"


TAKEN = ("ORT_DISABLE_TELEMETRY", "LENET_CPU_ENGINE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
MAIN = str(ROOT / "main.py")
LIBRARY = """
import numpy as np
from app.engine.classifier import Classifier
with Classifier(device="cpu") as classifier:
    classifier(np.zeros((3, 1, 28, 28), np.uint8))
import onnxruntime
"""
CLUSTER = "import app.cluster.runner, onnxruntime; print(onnxruntime.get_device())"
PROGRAMS = {
    "import": (MAIN, "import", "model.onnx", "--out", "new.h5"),
    "run": (MAIN, "--device", "cpu", "--data", "images", "--labels", "none"),
    "predict": (MAIN, "predict", "images.npy", "--device", "cpu", "--out", "labels.csv"),
    "fuzz": ("-m", "tests.fuzz", "--cases", "40", "--target", "onnx"),
    "library": ("-c", LIBRARY),
    "cluster": ("-c", CLUSTER),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_home_and_temporary_folder_stay_empty(program: str, tmp_path: Path) -> None:
    for needed in ("onnx", "onnxruntime", *["distributed"] * (program == "cluster")):
        pytest.importorskip(needed)
    work, home, temporary = (tmp_path / name for name in ("work", "home", "temporary"))
    for folder in (work, home, temporary):
        folder.mkdir()
    graph = random_graph(LENET5)
    model = onnx_model(Description(LENET5, graph.input_scale, None), graph.parameters)
    (work / "model.onnx").write_bytes(model.SerializeToString())
    images = random_images(LENET5, 3)
    write_idx(work / "images", images[:, 0])
    np.save(work / "images.npy", images)
    environment = {name: value for name, value in os.environ.items() if name not in TAKEN}
    environment |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *PROGRAMS[program]]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [*home.rglob("*"), *temporary.rglob("*")] == []
