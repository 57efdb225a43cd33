"""What the libraries that this program loads would leave in a user's folders: nothing.

ONNX Runtime reports to its maker unless a variable forbids it, and keeps a database and an identifier for that.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.interchange.named_arrays import Description
from app.interchange.onnx_export import onnx_model
from app.network.definitions import LENET5
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.shell import ROOT

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
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
    if program == "cluster":
        pytest.importorskip("distributed")
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
