"""Why there is no GPU, cause by cause, with a driver library that the test makes up."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from app import device
from app.errors import UserError

CUPY_CUDA = pytest.importorskip("cupy").cuda.runtime.runtimeGetVersion() // 1000 * 1000


class Driver:
    """Answers like libcuda."""

    def __init__(self, init: int = 0, count: int = 1, version: int = 99_000) -> None:
        self.init, self.count, self.version = init, count, version

    def cuInit(self, _: int) -> int:  # noqa: N802
        return self.init

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.version
        return 0


def install(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)


def no_nvrtc() -> None:
    raise UserError("NVRTC, the run-time compiler, cannot be loaded (libnvrtc.so): run make run")


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (None, r"no NVIDIA driver library \(libcuda.so.1\) is installed"),
        (Driver(init=100), "the NVIDIA driver sees no device"),
        (Driver(count=0), "the NVIDIA driver sees no device"),
        (Driver(init=999), r"the NVIDIA driver does not start \(cuInit returned 999\)"),
        (Driver(version=CUPY_CUDA - 1000), f"driver is too old: it supports CUDA .*, CuPy needs {CUPY_CUDA // 1000}"),
    ],
)
def test_each_cause_has_its_line(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, reason: str) -> None:
    install(monkeypatch, driver)
    found = device.why_no_gpu()
    assert found is not None and "\n" not in found
    with pytest.raises(UserError, match=f"--device cuda: .*{reason}.*--device cpu"):
        device.choose("cuda")
    assert device.choose("auto") == ("cpu", found)
    assert device.choose("cpu") == ("cpu", None)


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver())
    monkeypatch.setattr(device, "nvrtc", no_nvrtc)
    assert "NVRTC" in str(device.why_no_gpu())


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver())
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda _: None)
    assert device.why_no_gpu() == "CuPy is not installed (make run installs it)"


def test_what_the_gpu_reports_is_the_users_to_put_right() -> None:
    reported = type("CUDARuntimeError", (RuntimeError,), {})
    with (
        # No option in the remedy: bench, sweep and profile have no --device.
        pytest.raises(UserError, match=r"reported cudaErrorECCUncorrectable: free its memory or restart the program$"),
        device.gpu_errors(),
    ):
        raise reported("cudaErrorECCUncorrectable")
    with pytest.raises(ValueError, match="a bug"), device.gpu_errors():
        raise ValueError("a bug")
