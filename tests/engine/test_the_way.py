"""How far it is from a command to a launch: frames, files and modules that a reader has to follow."""

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

MOST_FRAMES = 12  # from the command line's function to the one that launches
MOST_FILES = 6  # from a call of ``Classifier`` to there
MOST_MODULES = 75  # that the main job loads in a warm run of the defaults, packages' own files aside
IMAGES = random_images(LENET5, 300)


def ours(frame: Any) -> list[tuple[str, str]]:
    """File and function of the application's frames, the innermost first."""
    found = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(ROOT / "app")):
            found.append((name, frame.f_code.co_name))
        frame = frame.f_back
    return found


def watched_launches(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """The frames of every launch on a fake card, as they come."""
    from cupy.cuda import runtime
    from cupy_backends.cuda.api import driver

    from app.cuda import launch_attributes

    stacks: list[list[tuple[str, str]]] = []

    def watching(launched: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            stacks.append(ours(sys._getframe(1)))
            launched(*arguments)

        return call

    monkeypatch.setattr(driver, "launchKernel", watching(driver.launchKernel))
    monkeypatch.setattr(launch_attributes, "launch_kernel_ex", watching(launch_attributes.launch_kernel_ex))
    monkeypatch.setattr(runtime, "graphLaunch", watching(runtime.graphLaunch))
    return stacks


def watched_chunks(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """The frames of every chunk that NumPy computes: those of its thread, and of the thread that waits for it."""
    stacks: list[list[tuple[str, str]]] = []
    real = Graph.forward

    def forward(*arguments: Any) -> Any:
        waiting = sys._current_frames()[threading.main_thread().ident or 0]
        stacks.append([*ours(sys._getframe(1)), *ours(waiting), ("graph.py", "forward")])
        return real(*arguments)

    monkeypatch.setattr(Graph, "forward", forward)
    monkeypatch.setenv("LENET_CPU_ENGINE", "numpy")
    return stacks


def command(device: str, folder: Path) -> list[str]:
    write_idx(folder / "images", IMAGES[:, 0])
    return ["--device", device, "--data", str(folder / "images"), "--labels", "none", "--repeat", "1"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_from_the_command_to_a_launch(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    import cupy

    from tests.support.fake_card import fake_card

    with fake_card(), monkeypatch.context() as patch:  # undone before the card, whose calls it replaces
        stacks = watched_launches(patch)
        code = main([*command("cuda", tmp_path), "--precision", precision])
        assert code == 1, "a card that computes nothing fails the accuracy check, and has no other fault"
        assert "enqueue" in [name for _, name in stacks[0]]
        assert len(stacks[0]) <= MOST_FRAMES, stacks[0]
        with Classifier(device="cuda", precision=precision) as classifier:
            for images, options in ((IMAGES, {}), (cupy.ndarray((7, 28, 28), np.uint8), {"on_card": True})):
                stacks.clear()
                classifier(images, **options)
                assert stacks and all(len({file for file, _ in stack}) <= MOST_FILES for stack in stacks), stacks


def test_from_the_command_to_a_chunk_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = watched_chunks(monkeypatch)
    assert main(command("cpu", tmp_path)) == 0
    assert "stream" in [name for _, name in stacks[-1]]
    assert len(stacks[-1]) <= MOST_FRAMES, stacks[-1]
    with Classifier(device="cpu") as classifier:
        stacks.clear()
        classifier(IMAGES[0])
    assert stacks and all(len({file for file, _ in stack}) <= MOST_FILES for stack in stacks), stacks


# The program before the main job, and what the main job must and must not load.
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


@pytest.mark.parametrize(("device", "place"), [("cpu", ON_CPU), ("cuda", ON_GPU)])
def test_the_main_job_loads_few_modules(device: str, place: tuple[str, set[str], set[str]], tmp_path: Path) -> None:
    before, needed, needless = place
    if device == "cuda":
        pytest.importorskip("cupy", reason="CuPy is not installed")
    program = (
        f"import sys\n{before}from app.cli import main\nmain(sys.argv[1:])\n"
        "loaded = {name: module for name, module in sys.modules.items() if name.startswith(('app.', 'data_tools.'))}\n"
        "print(*(name for name, module in loaded.items() if not hasattr(module, '__path__')), file=sys.stderr)"
    )
    done = python(program, *command(device, tmp_path), env=os.environ | {"LENET_CPU_ENGINE": "numpy"}, check=True)
    loaded = done.stderr.splitlines()[-1].split()
    assert needed <= {*loaded} and not needless & {*loaded}
    assert len(loaded) <= MOST_MODULES, sorted(loaded)
