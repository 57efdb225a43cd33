"""Call cuBLAS for the registry rows that use it, on the stream of the launch."""

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np

from app.base.errors import UserError, pip_install_command
from app.cuda.events import stream_from_pointer
from app.cuda.graphs import DEVICE_WIDE
from app.kernels.variant import LibraryGemm


def make_gemm_step(action: LibraryGemm, pointers: Mapping[str, ctypes.c_void_p]) -> Callable[[int, int], None]:
    """Return a function of a stream pointer and a number of images that enqueues a cuBLAS product.

    pointers: device addresses by argument name, read at each call. Raises UserError if cuBLAS is not installed.
    """
    handle = CublasHandle()
    a, b, c = (pointers[name] for name in (action.a, action.b, action.c))
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def enqueue_gemm(stream: int, images: int) -> None:
        m, n, k = action.sizes(images)
        # The binding uses CuPy's current stream, not the handle's.
        with stream_from_pointer(stream):
            # cuBLAS is column-major: it computes cᵀ = bᵀ aᵀ.
            handle.library.sgemm(
                *(handle.value, handle.library.CUBLAS_OP_N, handle.library.CUBLAS_OP_N, n, m, k),
                *(one.ctypes.data, b.value, n, a.value, k, zero.ctypes.data, c.value, n),
            )

    return enqueue_gemm


class CublasHandle:
    """CuPy's cuBLAS binding (``library``) and a handle (``value``); one per launch, so streams share no workspace.

    Creating or destroying a handle waits for the device. Raises UserError if cuBLAS is not installed.
    """

    def __init__(self) -> None:
        try:
            from cupy_backends.cuda.libs import cublas

            self.library = cublas
            with DEVICE_WIDE:
                self.value = cublas.create()
        except Exception as error:  # CuPy reports a missing library in several ways
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"cuBLAS cannot be loaded ({reason}): {pip_install_command('bench')}") from None

    def __del__(self) -> None:
        with suppress(Exception), DEVICE_WIDE:  # the handle, or at exit the library, may be gone
            self.library.destroy(self.value)
