"""``python -m tests.planted TECHNIQUE``: launch a kernel with a planted error, as any other kernel is launched."""

import sys
from pathlib import Path

from app.cuda.device import describe_gpu
from app.kernels.plain_problems import ActivationProblem
from app.kernels.pointwise.pointwise import ROWS
from app.kernels.variant import Variant

STEPS = {"out_of_bounds": 90, "race": 91, "uninitialised": 92}


def planted(technique: str) -> Variant:
    """The row of a kernel in this folder."""
    (plain,) = (row for row in ROWS if row.operation == "activation")
    own = {"step": STEPS[technique], "technique": technique, "folder": Path(__file__).parent}
    return Variant(**{**vars(plain), **own})


def main(technique: str) -> None:
    """Launch it on three images of 77 elements, in arrays of just that size."""
    import cupy
    import numpy as np

    from app.cuda.memory import device_array, upload
    from app.kernels.launch import Kernel

    kernel = Kernel(planted(technique), ActivationProblem(77, "relu"), describe_gpu()["architecture"])
    x, y = upload(np.ones(3 * 77, np.float32)), device_array(3 * 77, "float32")
    kernel.bind([x, y], 3)(cupy.cuda.Stream.null.ptr, 3)
    cupy.cuda.Stream.null.synchronize()
    print(technique, y.get().sum())


if __name__ == "__main__":
    main(sys.argv[1])
