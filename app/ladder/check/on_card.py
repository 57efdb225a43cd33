"""Run a case on the current card, with outputs filled with 0xFF and guard areas after them."""

import cupy
import numpy as np

from app.cuda.memory import device_array, upload
from app.kernels.launch import Kernel
from app.ladder.check.cases import Case
from app.ladder.emulation.program import Fault

GUARD = 256  # elements behind an output that no kernel may write


def run_case(case: Case, arch: str) -> list[np.ndarray]:
    """Return the flat outputs, 0xFF where nothing was written. Raises Fault if the kernel wrote to a guard area."""
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
