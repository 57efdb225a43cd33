"""Run a kernel's case on the current GPU, with outputs filled with 0xFF and guard areas around all arrays."""

from pathlib import Path

import cupy
import numpy as np

from app.cuda.memory import device_array
from app.kernels.launch import Kernel
from app.kernels.problems import Problem
from app.lab.checking.cases import Case, Fault
from app.lab.user_kernel.row import open_user_kernel

GUARD = 256  # elements around an array that hold NaN, and that no kernel may write


def run_case(case: Case, arch: str) -> list[np.ndarray]:
    """Run the kernel on the case's inputs, then on those of ``rerun_case``; return the flat outputs of both runs.

    Outputs are 0xFF bytes before the first run, and its results before the second. Raises Fault if the kernel writes
    outside its outputs.
    """
    kernel = Kernel(case.row, case.problem, arch)
    inputs = [None if array is None else _allocate_with_guards(array.size, array.dtype.name) for array in case.inputs()]
    outputs = [
        _allocate_with_guards(argument.per_image * case.images, argument.dtype)
        for argument in kernel.arguments()[len(inputs) :]
    ]
    launch = kernel.bind([None if each is None else each[0] for each in (*inputs, *outputs)], case.images)
    found = []
    for given in (case.inputs(), case.rerun_case.inputs()):
        filled = [
            (pair, array.ravel()) for pair, array in zip(inputs, given, strict=True) if pair and array is not None
        ]
        for (array, _), content in filled:
            array.set(content)
        cupy.cuda.Device().synchronize()
        launch(cupy.cuda.Stream.null.ptr, case.images)
        cupy.cuda.Stream.null.synchronize()
        found += [y.get() for y, _ in outputs]
        if any(_guards_changed(whole) for _, whole in (*outputs, *(pair for pair, _ in filled))):
            raise Fault("it writes before the beginning or behind the end of an array")
        if any(array.get().tobytes() != content.tobytes() for (array, _), content in filled):
            raise Fault("it changes its images or parameters")
    return found


def _allocate_with_guards(elements: int, dtype: str) -> tuple[cupy.ndarray, cupy.ndarray]:
    """Return an array of 0xFF bytes, and the larger array that contains it with guard bytes on both sides."""
    whole = device_array(elements + 2 * GUARD, dtype)
    whole.data.memset(0xFF, whole.nbytes)
    return whole[GUARD:-GUARD], whole


def _guards_changed(whole: cupy.ndarray) -> bool:
    edges = (whole[:GUARD].get(), whole[-GUARD:].get())
    return any((edge.view(np.uint8) != 0xFF).any() for edge in edges)


def check_user_case(path: Path, like: str | None, problem: Problem, images: int, seed: int, arch: str) -> str | None:
    """Return a user's kernel's first error or Fault as text, or None. like: the registry row whose launch it uses."""
    with open_user_kernel(path, like) as row:
        case = Case(row, problem, images, seed)
        try:
            return case.describe_error_of_two_runs(run_case(case, arch))
        except Fault as fault:
            return str(fault)
