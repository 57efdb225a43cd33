"""Test the reasons why no GPU can be used, with a simulated driver, and the remedies for CUDA errors."""

import ctypes
from typing import Any

import pytest

from app.base.errors import UserError
from app.cuda import device
from app.terminal.console import run_guarded

CUPY_CUDA = pytest.importorskip("cupy").cuda.runtime.runtimeGetVersion() // 1000 * 1000


class Driver:
    """A simulated driver library that gives fixed answers."""

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


def use_driver(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)


def raise_missing_nvrtc() -> None:
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
def test_each_driver_problem_has_a_reason(monkeypatch: pytest.MonkeyPatch, driver: Driver | None, reason: str) -> None:
    use_driver(monkeypatch, driver)
    found = device.why_no_gpu()
    assert found is not None and "\n" not in found
    with pytest.raises(UserError, match=f"--device cuda: .*{reason}.*--device cpu"):
        device.choose_device("cuda")
    assert device.choose_device("auto") == ("cpu", found)
    assert device.choose_device("cpu") == ("cpu", None)


def test_missing_nvrtc_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    use_driver(monkeypatch, Driver())
    monkeypatch.setattr(device, "import_nvrtc", raise_missing_nvrtc)
    assert "NVRTC" in str(device.why_no_gpu())


def test_missing_cupy_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    use_driver(monkeypatch, Driver())
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda _: None)
    assert device.why_no_gpu() == "CuPy is not installed (pip install cupy-cuda12x)"


@pytest.mark.parametrize("call", ["compute_capability", "context"])
def test_a_full_gpu_is_the_reason(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that creates the context fails with too little memory."""
    import cupy

    def fail(*_: Any) -> Any:
        raise cupy.cuda.runtime.CUDARuntimeError(2)

    use_driver(monkeypatch, Driver())
    monkeypatch.setattr(device, "import_nvrtc", lambda: None)
    monkeypatch.setattr(device, "compute_capability", fail if call == "compute_capability" else lambda: (9, 0))
    monkeypatch.setattr(cupy.cuda.runtime, "free", fail)
    assert str(device.why_no_gpu()).startswith("the card refuses a context: ")


def cuda_error(kind: str, status: int | None) -> Exception:
    """Return an error with the class name ``kind`` and CUDA's error number, as CuPy raises."""
    error = type(kind, (RuntimeError,), {})(f"cudaErrorSomething: number {status}")
    if status is not None:
        error.status = status
    return error


BUGS = (1, 9, 98, 200, 201, 209, 400, 500, 600, 700, 701, 710, 714, 715, 716, 717, 718, 719, 720, 721, *range(900, 909))
REPAIRABLE = {
    "free memory": (2,),
    "wait for the other program": (46, 216),
    "CUDA_VISIBLE_DEVICES": (100, 101),
    "run it again": (3, 4, 214, 220, 226, 304, 999),
    "update the NVIDIA driver": (35, 36, 222, 804),
    "LD_LIBRARY_PATH": (34, 804),
    "restart the machine": (803,),
    "fabricmanager": (802,),
    "MPS": tuple(range(805, 811)),
    "display": (702,),
}


@pytest.mark.parametrize("kind", ["CUDARuntimeError", "CUDADriverError"])
def test_correctable_cuda_errors_have_a_remedy(kind: str) -> None:
    for remedy, statuses in REPAIRABLE.items():
        for status in statuses:
            with pytest.raises(UserError, match=rf"^the GPU reported .*{status}: .*{remedy}") as caught:
                raise_within(cuda_error(kind, status))
            assert "\n" not in str(caught.value)
            assert "--" not in str(caught.value)  # no option: commands have different ones


@pytest.mark.parametrize("kind", ["CUDARuntimeError", "CUDADriverError"])
def test_other_cuda_errors_are_bugs(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def raise_error() -> int:
        raise_within(error)
        return 0

    for status in (*BUGS, None):
        error = cuda_error(kind, status)
        assert run_guarded(raise_error) == 3, status
        assert kind in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["DeviceMemoryError", "OutOfMemoryError"])
def test_too_little_gpu_memory_has_a_remedy(kind: str) -> None:
    with pytest.raises(UserError, match=r"too little free memory .*: free memory of the GPU"):
        raise_within(cuda_error(kind, None))


def test_errors_of_other_classes_pass_unchanged() -> None:
    for error in (ValueError("a bug"), cuda_error("SomeError", 2)):
        with pytest.raises(type(error)):
            raise_within(error)


def raise_within(error: Exception) -> None:
    with device.translate_gpu_errors():
        raise error
