"""Run ``main.py doctor``: print facts about the machine for a bug report, and what is missing for which feature."""

import ctypes
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from app.base.errors import UserError, pip_install_command
from app.base.interrupts import exit_on_interrupt
from app.commands.doctor import DoctorRequest
from app.cuda import device, nvml
from app.cuda.compiler import find_nvrtc
from app.records.operate import Doctor, Finding
from app.terminal.output import publish_report
from app.terminal.text import INDENT, fields, format_bytes, paragraph
from app.tools.machine import environment_findings, make_finding, package_findings, storage_findings, system_findings

AREA: Final = "GPU"
HEADER = "cuda_fp16.h"
RUNTIMES = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")
DRIVER_REMEDY = "install NVIDIA's driver for CUDA 12 or later; the CPU works without it"


def doctor(request: DoctorRequest) -> int:
    """Examine the machine and print the findings. Return 0. Raises UserError."""
    with exit_on_interrupt():
        found = [
            one
            for part in (system_findings, package_findings, gpu_findings, storage_findings, environment_findings)
            for one in part()
        ]
    document: Doctor = {"schema": "lenet5-inference/doctor/1", "findings": found}
    publish_report(document, as_text, request.output)
    return 0


def as_text(document: Doctor, width: int) -> str:
    """Return the findings as text: a block for each area, then each missing thing with its remedy."""
    lines: list[str] = []
    for area, found in groupby(document["findings"], key=itemgetter("area")):
        lines += [area, *fields([(one["name"], one["value"]) for one in found], width)]
    missing = [one for one in document["findings"] if one["missing"]]
    lines += ["", "missing" if missing else "nothing is missing"]
    for one in missing:
        told = f"{one['area']}, {one['name']}: for {one['needed_for']}: {one['remedy']}"
        lines += paragraph(told, width, INDENT, 2 * INDENT)
    return "\n".join(lines)


def gpu_findings() -> Iterator[Finding]:
    """Yield findings on driver, card, run-time compiler, headers and clocks. Works without a GPU and without CuPy."""
    driver = _driver_versions()
    yield (
        make_finding(AREA, "driver", driver)
        if driver
        else make_finding(AREA, "driver", "is missing", "the GPU", DRIVER_REMEDY)
    )
    reason = device.why_no_gpu()
    if reason is None:
        with device.translate_gpu_errors():
            yield from _card_findings()
    else:
        remedy = DRIVER_REMEDY if driver is None else "check nvidia-smi, CUDA_VISIBLE_DEVICES and the packages above"
        yield make_finding(AREA, "card", f"none can be used: {reason}", "the GPU", remedy)
    yield _compiler_finding()
    yield _headers_finding()


def _driver_versions() -> str | None:
    """Return the version of the driver and its newest CUDA as text; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    cuda = ctypes.c_int()
    known = library.cuDriverGetVersion(ctypes.byref(cuda)) == 0
    told = f"CUDA {cuda.value // 1000}.{cuda.value % 1000 // 10}" if known else "does not tell its CUDA"
    return f"{device.kernel_driver_version() or 'version unknown'}, {told}"


def _card_findings() -> Iterator[Finding]:
    import cupy

    about = device.describe_gpu()
    free, whole = cupy.cuda.runtime.memGetInfo()
    memory = f"{format_bytes(free)} of {format_bytes(whole)} free"
    cards = cupy.cuda.runtime.getDeviceCount()
    told = f"{about['name']} ({about['architecture']}, {about['multiprocessors']} SMs), {memory}, one of {cards}"
    yield make_finding(AREA, "card", told)
    try:
        with nvml.open_nvml(nvml.current_bus_id) as watched:
            yield make_finding(AREA, "clocks", _clock_text(watched))
    except nvml.UnavailableError as why:
        remedy = nvml.REMEDY if nvml.REMEDY in str(why) else "ask nvidia-smi instead"
        yield make_finding(AREA, "clocks", f"unknown: {why}", "--power, and clocks in doctor", remedy)


def _clock_text(watched: nvml.NvmlDevice) -> str:
    told = (
        ("SM {:,} MHz now", watched.sm_clock_mhz(), 1),
        ("at most {:,} MHz", watched.highest_sm_clock_mhz(), 1),
        ("{:.0f} W", watched.power_mw(), 1000),
        ("limit {:.0f} W", watched.power_limit_mw(), 1000),
        ("{} degrees C", watched.temperature_c(), 1),
    )
    return ", ".join(text.format(value // unit) for text, value, unit in told if value is not None) or "not told"


def _compiler_finding() -> Finding:
    try:
        library = find_nvrtc()
    except UserError as error:
        reason, _, remedy = str(error).rpartition(": ")
        return make_finding(AREA, "NVRTC", f"is missing: {reason}", "compiling kernels for the GPU", remedy)
    return make_finding(AREA, "NVRTC", f"{'.'.join(map(str, library.version))}, {library.path}")


def _headers_finding() -> Finding:
    """Return the finding on CUDA's headers, which only CuPy's own kernels (in ``bench``'s checks) include."""
    found = next(_header_paths(), None)
    if found is None:
        needed, remedy = "bench and training on the GPU (CuPy's own kernels)", pip_install_command("cuda")
        return make_finding(AREA, "CUDA headers", "are missing", needed, remedy)
    return make_finding(AREA, "CUDA headers", str(found.parent))


def _header_paths() -> Iterator[Path]:
    """Yield the paths at which the file HEADER exists, in installed packages and CUDA toolkits."""
    for name in RUNTIMES:
        with suppress(importlib.metadata.PackageNotFoundError):
            files = importlib.metadata.files(name) or ()
            yield from (Path(str(file.locate())) for file in files if file.name == HEADER)
    for root in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root and (path := Path(root, "include", HEADER)).exists():
            yield path
