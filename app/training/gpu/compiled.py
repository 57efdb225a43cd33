"""Compile and load the kernels of training."""

from collections.abc import Mapping

from app.cuda.compiler import compile_kernel
from app.kernels.launch import Function, loaded
from app.kernels.train.train import FOLDER


def training_kernel(name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> Function:
    """Compile train/train_NAME.cu with these compile-time constants and load it; raises as ``compile_kernel``."""
    module = loaded(compile_kernel(FOLDER / f"train_{name}.cu", dict(defines), arch))
    return Function(module, f"train_{name}", threads=threads)
