"""Test that a kernel launch passes through few files: exactly those that docs/architecture.md lists."""

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
BEFORE = {"app/engine/gpu.py", "app/engine/buffers.py"}  # they create and bind kernels, which needs a GPU
COMMON = {"app/kernels/launch.py", "app/kernels/variant.py", "app/kernels/problems.py", "app/base/precision.py"}
MOST_FILES = 8


def trace_launch(operation: str, name: str, problem: Problem) -> set[str]:
    """Return the files under app/ that run from creating a ``Kernel`` to the driver's launch call, on a fake GPU."""
    row, (_, parameters) = row_of(operation, name), host_arrays(problem, 1)
    ran: set[str] = set()

    def record_file(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "app") and path.name != "frozen.py":  # it makes instances
            ran.add(path.relative_to(ROOT).as_posix())

    with fake_card() as card:
        sys.setprofile(record_file)
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


def test_architecture_document_lists_the_files_that_run() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Follow one launch\n(.*?)(?:^## |\Z)", text, re.DOTALL | re.MULTILINE)
    listed = {link.removeprefix("../") for link in re.findall(r"\]\(([^)]+\.py)\)", section)}
    single = trace_launch("conv", "register-patch", network_convolutions(fused=True)[0])
    assert single == COMMON | {"app/kernels/conv/rows/register_patch.py"}
    for name, dtype in (("mma", "float16x2"), ("wgmma", "float16"), ("wgmma-split", "float16x2")):
        pair = trace_launch("conv_pair", name, typed(convolution_pair(), dtype))
        assert pair == COMMON | {"app/kernels/fused/conv_pair.py", "app/kernels/scaling.py"}
        assert listed == BEFORE | single | pair
        assert max(len(BEFORE | single), len(BEFORE | pair)) <= MOST_FILES
    assert all((ROOT / path).is_file() for path in listed)


def test_a_launch_in_chunks_resets_its_pointers() -> None:
    """The next launch begins at the first image again, also if an error ended the launch in chunks."""
    row, problem = row_of("conv", "direct"), network_convolutions(fused=True)[0]
    with fake_card() as card:
        kernel = launch.Kernel(row, problem, "sm_90a")
        arrays = [cupy.empty(one.fixed + 50 * one.per_image, one.dtype) for one in kernel.arguments()]
        bound = kernel.bind(arrays, 50)
        step, size = bound._steps, kernel.arguments()[0].per_image * arrays[0].itemsize
        bound._chunk = 20

        def first_images_of_launches(images: int) -> list[int]:
            card.calls.clear()
            bound(0, images)
            return [call[-3][2] // size for call in card.calls]

        def fail_at_last_piece(_: int, count: int) -> None:
            assert count != 10  # the last piece of 50

        for _ in range(2):
            assert [first_images_of_launches(images) for images in (50, 20, 21, 7)] == [[0, 20, 40], [0], [0, 20], [0]]
            bound._steps = [fail_at_last_piece]
            with pytest.raises(AssertionError):
                bound(0, 50)
            bound._steps = step
            assert first_images_of_launches(5) == [0]
