"""Choose the device that runs the network; if no GPU can be used, explain why in one line."""

import ctypes
import importlib.util
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from app.base.errors import UserError
from app.base.interrupts import exit_on_interrupt
from app.cuda.cards import describe_gpu_count, device_number, original_device_number, start_driver
from app.cuda.compiler import CUPY, architecture_name, describe_cupy_error, import_nvrtc

OLDEST_ARCHITECTURE = (7, 5)
_TEXTS = {
    "cuda": "{name} ({place}{architecture}, {multiprocessors} SMs), "
    "driver {driver} (CUDA {driver_cuda}), CUDA {cuda}, CuPy {cupy}",
    "cpu": "CPU: {name}, {threads} threads, NumPy {numpy}",
}
_ENGINE = ", ONNX Runtime {onnxruntime}"
_REMEDIES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("free memory of the GPU and of this machine, or do less at once", (2,)),  # 2: also for page-locked memory
    ("wait for the other program that has the GPU for itself, or choose another GPU", (46, 216)),
    ("check nvidia-smi and CUDA_VISIBLE_DEVICES", (100, 101)),
    ("run it again; if the error returns, restart the machine", (3, 4, 49, 127, 304, 999)),
    ("update the NVIDIA driver", (35, 36, 222, 225)),
    ("take the toolkit's folder of stubs out of LD_LIBRARY_PATH", (34,)),
    ("restart the machine, whose driver and driver library differ", (803,)),
    ("take the compatibility package's folder out of LD_LIBRARY_PATH, or update the NVIDIA driver", (804,)),
    ("install the NVIDIA driver again, whose libraries do not load", (302, 303)),
    ("install a licence for this virtual GPU", (102,)),
    ("start the service nvidia-fabricmanager, and wait until nvidia-smi shows the GPU ready", (802,)),
    ("restart the MPS server, or run without it", (805, 806, 807, 808, 809, 810)),
    ("run it again; if the error returns, the GPU's memory is faulty: reset the GPU, or take another", (214, 226)),
    ("run it again; if the error returns, the link between the GPUs is faulty: take one GPU", (220,)),
    ("choose a GPU that drives no display, or a smaller batch", (702,)),
)
REMEDY = {status: remedy for remedy, statuses in _REMEDIES for status in statuses}
"""CUDA error number, shared by driver and runtime → what the user can do about it.

All others are bugs: reads and writes out of bounds (700, 716, 719), impossible launches (1, 9, 701), machine code for
another GPU (98, 200, 209), captures (900 to 908).
"""


def why_no_gpu(lap: Callable[[str], object] = lambda _: None, number: int | None = None) -> str | None:
    """Return why no GPU can be used, in one line; None if one can. Without a driver the answer is immediate.

    lap: called after each slow step with its name: ``context`` (including the driver's start), ``cupy``,
    ``nvrtc``. number: number of the GPU that is needed; None for the current one.
    """
    try:
        count = start_driver()
    except UserError as error:
        return str(error)
    if number is not None and number >= count:
        return describe_gpu_count(count)
    lap("context")
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed (pip install {CUPY})"
    try:
        import cupy

        built = cupy.cuda.runtime.runtimeGetVersion() // 1000
    except Exception as error:  # CuPy raises various errors for missing or mismatched libraries
        return describe_cupy_error(error)
    lap("cupy")
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    if version.value // 1000 < built:
        return f"the NVIDIA driver is too old: it supports CUDA {version.value // 1000}, CuPy needs {built}"
    try:
        import_nvrtc()
    except UserError as error:
        return str(error)
    lap("nvrtc")
    try:  # either call creates a context: a full or exclusively used GPU refuses
        with nullcontext() if number is None else cupy.cuda.Device(number):
            major, minor = compute_capability()
            if (major, minor) < OLDEST_ARCHITECTURE:
                return (
                    f"the card's compute capability {major}.{minor} is below 7.5, the oldest that the kernels support"
                )
            cupy.cuda.runtime.free(0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"the card refuses a context: {error}"
    return None


def choose_device(requested: str, lap: Callable[[str], object] = lambda _: None) -> tuple[str, str | None]:
    """Return the device, with ``auto`` resolved to ``cuda`` or ``cpu``, and why ``auto`` chose the CPU (else None).

    lap: called after each slow step with its name, such as ``cupy``. Raises UserError if the requested GPU is missing.
    """
    if requested == "cpu":
        return "cpu", None
    reason = why_no_gpu(lap, device_number(requested))
    if reason is None:
        return ("cuda" if requested == "auto" else requested), None
    if requested != "auto":
        raise UserError(f"--device {requested}: {reason}; use --device cpu, or auto to use a GPU only if there is one")
    return "cpu", reason


def require_gpu(who: str) -> None:
    """Raise the UserError ``WHO needs an NVIDIA GPU: …`` if none can be used. Ctrl-C in the check ends the process."""
    with exit_on_interrupt():
        reason = why_no_gpu()
    if reason is not None:
        raise UserError(f"{who} needs an NVIDIA GPU: {reason}")


@contextmanager
def translate_gpu_errors() -> Iterator[None]:
    """Turn CUDA errors that the user can correct into UserErrors while the block runs; other errors pass unchanged.

    The function imports no CuPy.
    """
    try:
        yield
    except Exception as error:
        # By name: the classes are known only once CuPy is loaded, and this must not load it.
        name = type(error).__name__
        if name in ("DeviceMemoryError", "OutOfMemoryError"):
            raise UserError(f"the GPU has too little free memory ({error}): {REMEDY[2]}") from None
        remedy = REMEDY.get(getattr(error, "status", 0))
        if name not in ("CUDARuntimeError", "CUDADriverError") or remedy is None:
            raise
        raise UserError(f"the GPU reported {error}: {remedy}") from None


def is_fatal_cuda_error(error: BaseException) -> bool:
    """Return whether an error, or its cause, is a CUDA error after which all CUDA calls of this process fail."""
    cause: BaseException | None = error
    while cause is not None:
        # By name, as above. 2: too little memory, 100 and 101: no such device.
        if type(cause).__name__ in ("CUDARuntimeError", "CUDADriverError"):
            return getattr(cause, "status", 0) not in (2, 100, 101)
        cause = cause.__context__
    return False


def compute_capability() -> tuple[int, int]:
    """Return the current GPU's compute capability, such as (9, 0)."""
    import cupy

    text = cupy.cuda.Device().compute_capability
    return int(text[:-1]), int(text[-1])


def describe_gpu() -> dict[str, Any]:
    """Return what reports record of the current GPU, its driver and the CUDA libraries: names, numbers, versions."""
    import cupy

    current = cupy.cuda.runtime.getDevice()
    properties = cupy.cuda.runtime.getDeviceProperties(current)
    driver, runtime = cupy.cuda.runtime.driverGetVersion(), cupy.cuda.runtime.runtimeGetVersion()
    return {
        "kind": "cuda",
        "name": properties["name"].decode(),
        "number": original_device_number(current),
        "bus": cupy.cuda.runtime.deviceGetPCIBusId(current),
        "architecture": architecture_name(*compute_capability()),
        "multiprocessors": properties["multiProcessorCount"],
        "memory_bytes": properties["totalGlobalMem"],
        "driver": kernel_driver_version(),
        "driver_cuda": f"{driver // 1000}.{driver % 1000 // 10}",
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "cupy": cupy.__version__,
    }


def describe_cpu(threads: int) -> dict[str, Any]:
    """Return what reports record of the processor, such as its name. threads: number of threads that compute."""
    import numpy

    return {"kind": "cpu", "name": _cpu_model_name(), "threads": threads, "numpy": numpy.__version__}


def format_device(device: Mapping[str, Any]) -> str:
    """Return a device and its software in one line. device: from ``describe_gpu`` or ``describe_cpu``."""
    text = _TEXTS[device["kind"]] + _ENGINE * ("onnxruntime" in device)
    return text.format(**device, place=format_bus_address(device, ", "))


def format_bus_address(device: Mapping[str, Any], suffix: str = "") -> str:
    """Return the number and bus address of a GPU, ``cuda:0, PCI 0000:1b:00.0``, and ``suffix``; "" if not recorded.

    device: from ``describe_gpu``, or from an older document without number and address.
    """
    return f"cuda:{device['number']}, PCI {device['bus']}{suffix}" if "bus" in device else ""


def kernel_driver_version() -> str | None:
    """Return the version of the NVIDIA kernel driver, such as 580.159.04; None if the system does not report it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and word.count(".") >= 1), None)


def _cpu_model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
