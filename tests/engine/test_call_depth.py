"""Limit what a reader must follow from a command to a kernel launch: stack frames, files and modules."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.engine.classifier import Classifier
from app.network.definitions import LENET5
from app.network.graph import Graph
from data_tools.idx import write_idx
from tests.support.networks_for_tests import random_images
from tests.support.shell import ROOT, python

MOST_FRAMES = 12  # on the stack of a launch, from app.cli.main on
MOST_FILES = 6  # on the stack of a launch that ``Classifier`` makes
MOST_MODULES = 75  # that the main job loads by default with a full kernel cache, except __init__.py files
IMAGES = random_images(LENET5, 300)


def app_frames(frame: Any) -> list[tuple[str, str]]:
    """Return file and function of the application's frames, the innermost first."""
    found = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(ROOT / "app")):
            found.append((name, frame.f_code.co_name))
        frame = frame.f_back
    return found


def record_launches(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """Return a list to which every later launch on the simulated GPU appends its application frames."""
    from cupy.cuda import runtime
    from cupy_backends.cuda.api import driver

    from app.cuda import launch_attributes

    stacks: list[list[tuple[str, str]]] = []

    def record_stack(launched: Callable[..., None]) -> Callable[..., None]:
        def record_and_call(*arguments: Any) -> None:
            stacks.append(app_frames(sys._getframe(1)))
            launched(*arguments)

        return record_and_call

    monkeypatch.setattr(driver, "launchKernel", record_stack(driver.launchKernel))
    monkeypatch.setattr(launch_attributes, "launch_kernel_ex", record_stack(launch_attributes.launch_kernel_ex))
    monkeypatch.setattr(runtime, "graphLaunch", record_stack(runtime.graphLaunch))
    return stacks


def record_chunks(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """Return a list to which each chunk that NumPy computes appends the frames of its thread and the main thread."""
    stacks: list[list[tuple[str, str]]] = []
    real = Graph.forward

    def forward(*arguments: Any) -> Any:
        waiting = sys._current_frames()[threading.main_thread().ident or 0]
        stacks.append([*app_frames(sys._getframe(1)), *app_frames(waiting), ("graph.py", "forward")])
        return real(*arguments)

    monkeypatch.setattr(Graph, "forward", forward)
    monkeypatch.setenv("LENET_CPU_ENGINE", "numpy")
    return stacks


def prepare_main_job(device: str, folder: Path) -> list[str]:
    write_idx(folder / "images", IMAGES[:, 0])
    return ["--device", device, "--data", str(folder / "images"), "--labels", "none", "--repeat", "1"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_stack_from_the_command_to_a_launch(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    import cupy

    from tests.support.fake_card import fake_card

    with fake_card(), monkeypatch.context() as patch:  # undone first: it replaces functions of the simulated GPU
        stacks = record_launches(patch)
        patch.setattr("app.main_job.power.check_nvml_available", lambda: None)
        patch.setattr("app.main_job.power.measure_current_gpu", lambda run, _: (run(), None)[1])
        code = main([*prepare_main_job("cuda", tmp_path), "--precision", precision, "--power"])
        assert code == 1, "a card that computes nothing fails the accuracy check, and has no other fault"
        assert "enqueue" in [name for _, name in stacks[0]]
        assert len(stacks[0]) <= MOST_FRAMES, stacks[0]
        with Classifier(device="cuda", precision=precision) as classifier:
            for images, options in ((IMAGES, {}), (cupy.ndarray((7, 28, 28), np.uint8), {"on_card": True})):
                stacks.clear()
                classifier(images, **options)
                assert stacks and all(len({file for file, _ in stack}) <= MOST_FILES for stack in stacks), stacks


def test_stack_from_the_command_to_a_chunk_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = record_chunks(monkeypatch)
    assert main(prepare_main_job("cpu", tmp_path)) == 0
    assert "stream" in [name for _, name in stacks[-1]]
    assert len(stacks[-1]) <= MOST_FRAMES, stacks[-1]
    with Classifier(device="cpu") as classifier:
        stacks.clear()
        classifier(IMAGES[0])
    assert stacks and all(len({file for file, _ in stack}) <= MOST_FILES for stack in stacks), stacks


# Code that runs before the main job, modules that the main job must load, and modules that it must not load.
ON_CPU = ("", {"app.engine.cpu"}, {"app.kernels.registry"})
ON_GPU = (
    "from tests.support.fake_card import fake_card\nfake = fake_card()\nfake.__enter__()\n",
    {"app.engine.gpu", "app.kernels.registry"},
    {
        "app.cuda.compiler_process",
        "app.files.child_process",
        "app.kernels.conv.rows.direct",
        "app.kernels.fused.any_pair",
    },
)


@pytest.mark.parametrize(("device", "case"), [("cpu", ON_CPU), ("cuda", ON_GPU)])
def test_the_main_job_loads_few_modules(device: str, case: tuple[str, set[str], set[str]], tmp_path: Path) -> None:
    before, needed, needless = case
    if device == "cuda":
        pytest.importorskip("cupy", reason="CuPy is not installed")
    program = (
        f"import sys\n{before}from app.cli import main\nmain(sys.argv[1:])\n"
        "loaded = {name: module for name, module in sys.modules.items() if name.startswith(('app.', 'data_tools.'))}\n"
        "print(*(name for name, module in loaded.items() if not hasattr(module, '__path__')), file=sys.stderr)"
    )
    done = python(
        program, *prepare_main_job(device, tmp_path), env=os.environ | {"LENET_CPU_ENGINE": "numpy"}, check=True
    )
    loaded = done.stderr.splitlines()[-1].split()
    assert needed <= {*loaded} and not needless & {*loaded}
    assert len(loaded) <= MOST_MODULES, sorted(loaded)
