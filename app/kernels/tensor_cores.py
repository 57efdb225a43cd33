"""Where tensor cores pay: what rows of several operations ask of an architecture."""

from app.cuda.compiler import architecture_number
from app.kernels.problems import ConvProblem, LinearProblem

FAST_TF32 = (80, 90, 100, 103)  # architectures whose tensor cores multiply tfloat32 several times as fast


def split_pays(problem: ConvProblem | LinearProblem, arch: str) -> bool:
    """Return whether products of two tfloat32 pay: not where tensor cores multiply one as slowly as CUDA cores float32.

    So do cards for desktops: 35.6 TFLOP/s each on an RTX 3090, 82.6 on a 4090, 104.8 on a 5090 (NVIDIA's white papers).
    """
    return problem.dtype != "float16x2" or architecture_number(arch) in FAST_TF32
