"""Decide on which architectures tensor cores are worthwhile, for the rows of several operations."""

from app.cuda.compiler import architecture_number
from app.kernels.problems import ConvProblem, LinearProblem

FAST_TF32 = (80, 90, 100, 103)  # architectures whose tensor cores multiply tfloat32 several times as fast


def tf32_split_is_worthwhile(problem: ConvProblem | LinearProblem, arch: str) -> bool:
    """Return whether splitting float32 into two tfloat32 beats float32 on CUDA cores; True for other types.

    Splitting is slower on desktop GPUs, because their tensor cores multiply tfloat32 no faster than their CUDA cores
    float32: 35.6 TFLOP/s each on an RTX 3090, 82.6 on a 4090, 104.8 on a 5090 (NVIDIA's white papers).
    """
    return problem.dtype != "float16x2" or architecture_number(arch) in FAST_TF32
