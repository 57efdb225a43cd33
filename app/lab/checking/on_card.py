"""Run a case on the current card, with outputs filled with 0xFF and guard areas after them."""

from pathlib import Path

import cupy
import numpy as np

from app.cuda.memory import device_array, upload
from app.kernels.launch import Kernel
from app.kernels.problems import Problem
from app.lab.checking.cases import Case, Fault
from app.lab.user_kernel.row import opened_kernel

GUARD = 256  # elements behind an output that no kernel may write


def run_case(case: Case, arch: str) -> list[np.ndarray]:
    """Return the flat outputs; bytes that the kernel did not write are 0xFF. Raise Fault if it wrote a guard area."""
    kernel = Kernel(case.row, case.problem, arch)
    arrays = [
        None if array is None else upload(array) for array in (case.input_images.ravel(), *case.packed_parameters())
    ]
    outputs = []
    for argument in kernel.arguments()[len(arrays) :]:
        outputs.append(device_array(argument.per_image * case.images + GUARD, argument.dtype))
        outputs[-1].data.memset(0xFF, outputs[-1].nbytes)
    launch = kernel.bind([*arrays, *outputs], case.images)
    launch(cupy.cuda.Stream.null.ptr, case.images)
    cupy.cuda.Stream.null.synchronize()
    found = [output.get() for output in outputs]
    if any((output[-GUARD:].view(np.uint8) != 0xFF).any() for output in found):
        raise Fault("it writes behind the end of its output")
    return [output[:-GUARD] for output in found]


def check_user_case(path: Path, like: str | None, problem: Problem, images: int, seed: int, arch: str) -> str | None:
    """Return the first error of a user's kernel for a problem, or None. Raises as ``run_case``, but no Fault."""
    with opened_kernel(path, like) as row:
        case = Case(row, problem, images, seed)
        try:
            return case.describe_first_error(run_case(case, arch))
        except Fault as fault:
            return str(fault)
