"""Test that following one launch takes few files: a trace finds exactly the files that the document lists."""

import re
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.kernels.problems import Problem
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import convolution_pair, network_convolutions, row_of, typed

ROOT = Path(__file__).parents[2]
BEFORE = {"app/engine/gpu.py", "app/engine/buffers.py"}  # they make kernels and bind them; need a card
COMMON = {"app/kernels/launch.py", "app/kernels/variant.py", "app/kernels/problems.py", "app/base/precision.py"}
MOST_FILES = 8


def _array(elements: int, dtype: str) -> Any:
    """What a launch asks of an array on the device."""
    flags, device, data = SimpleNamespace(c_contiguous=True), SimpleNamespace(id=0), SimpleNamespace(ptr=4096)
    return SimpleNamespace(size=elements, dtype=np.dtype(dtype), flags=flags, device=device, data=data)


def files_of_a_launch(operation: str, name: str, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The files under app/ of which a function runs from a ``Kernel`` to the driver's call.

    The machine is replaced: compiler, loaded module, driver, device.
    """
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from app.kernels import launch

    launched: list[tuple[Any, ...]] = []
    module = SimpleNamespace(get_function=lambda entry: SimpleNamespace(ptr=entry))
    driver = SimpleNamespace(launchKernel=lambda *a: launched.append(a), funcSetAttribute=lambda *_: None)
    device = SimpleNamespace(attributes={"MultiProcessorCount": 132})
    runtime = SimpleNamespace(getDevice=lambda: 0)
    monkeypatch.setattr(launch, "compile_kernel", lambda *_, **__: b"")
    monkeypatch.setattr(launch, "loaded", lambda _: module)
    monkeypatch.setattr(launch, "driver", driver)
    monkeypatch.setattr(launch, "cupy", SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device, runtime=runtime)))
    row = row_of(operation, name)
    _, parameters = host_arrays(problem, 1)
    ran: set[str] = set()

    def trace(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "app"):
            ran.add(path.relative_to(ROOT).as_posix())

    sys.setprofile(trace)
    try:
        kernel = launch.Kernel(row, problem, "sm_90a")
        kernel.pack(parameters)
        arrays = [
            None if argument.optional else _array(argument.fixed + 5 * argument.per_image, argument.dtype)
            for argument in kernel.arguments()
        ]
        kernel.bind(arrays, 5)(77, 5)
    finally:
        sys.setprofile(None)
    assert [call[0] for call in launched] == [row.entry]
    return ran


def test_the_document_lists_the_files_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Follow one launch\n(.*?)(?:^## |\Z)", text, re.DOTALL | re.MULTILINE)
    listed = {link.removeprefix("../") for link in re.findall(r"\]\(([^)]+\.py)\)", section)}
    single = files_of_a_launch("conv", "register-patch", network_convolutions(fused=True)[0], monkeypatch)
    assert single == COMMON | {"app/kernels/conv/rows/register_patch.py"}
    for name, dtype in (("mma", "float16x2"), ("wgmma", "float16"), ("wgmma-split", "float16x2")):
        pair = files_of_a_launch("conv_pair", name, typed(convolution_pair(), dtype), monkeypatch)
        assert pair == COMMON | {"app/kernels/fused/conv_pair.py", "app/kernels/fused/scaling.py"}
        assert listed == BEFORE | single | pair
        assert max(len(BEFORE | single), len(BEFORE | pair)) <= MOST_FILES
    assert all((ROOT / path).is_file() for path in listed)
