"""Test that following one launch takes few files: a trace finds exactly the files that the document lists."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy

from app.kernels import launch
from app.kernels.problems import Problem
from tests.support.convolutions import network_convolutions
from tests.support.fake_card import fake_card
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import convolution_pair, row_of, typed

ROOT = Path(__file__).parents[2]
BEFORE = {"app/engine/gpu.py", "app/engine/buffers.py"}  # they make kernels and bind them; need a card
COMMON = {"app/kernels/launch.py", "app/kernels/variant.py", "app/kernels/problems.py", "app/base/precision.py"}
MOST_FILES = 8


def files_of_a_launch(operation: str, name: str, problem: Problem) -> set[str]:
    """The files under app/ of which a function runs from a ``Kernel`` to the driver's call, on a card that is none."""
    row, (_, parameters) = row_of(operation, name), host_arrays(problem, 1)
    ran: set[str] = set()

    def trace(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "app") and path.name != "frozen.py":  # it makes instances
            ran.add(path.relative_to(ROOT).as_posix())

    with fake_card() as card:
        sys.setprofile(trace)
        try:
            kernel = launch.Kernel(row, problem, "sm_90a")
            kernel.pack(parameters)
            arrays = [
                None if argument.optional else cupy.empty(argument.fixed + 5 * argument.per_image, argument.dtype)
                for argument in kernel.arguments()
            ]
            kernel.bind(arrays, 5)(77, 5)
        finally:
            sys.setprofile(None)
    assert [call[1] for call in card.calls if "launch" in call[0]] == [row.entry]
    return ran


def test_the_document_lists_the_files_that_run() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Follow one launch\n(.*?)(?:^## |\Z)", text, re.DOTALL | re.MULTILINE)
    listed = {link.removeprefix("../") for link in re.findall(r"\]\(([^)]+\.py)\)", section)}
    single = files_of_a_launch("conv", "register-patch", network_convolutions(fused=True)[0])
    assert single == COMMON | {"app/kernels/conv/rows/register_patch.py"}
    for name, dtype in (("mma", "float16x2"), ("wgmma", "float16"), ("wgmma-split", "float16x2")):
        pair = files_of_a_launch("conv_pair", name, typed(convolution_pair(), dtype))
        assert pair == COMMON | {"app/kernels/fused/conv_pair.py", "app/kernels/fused/scaling.py"}
        assert listed == BEFORE | single | pair
        assert max(len(BEFORE | single), len(BEFORE | pair)) <= MOST_FILES
    assert all((ROOT / path).is_file() for path in listed)
