"""Read the current GPU's clocks, power, energy and temperature by NVIDIA's management library (NVML)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from app.base.errors import pip_install_command

REMEDY = pip_install_command("power")


class UnavailableError(Exception):
    """NVML cannot be used; the text is the reason in one line."""


class NvmlDevice:
    """The sensors of one GPU. Each method returns None if the GPU does not report the value."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def energy_mj(self) -> int | None:
        """Return the energy used since the driver was loaded, in millijoules."""
        return self._query("nvmlDeviceGetTotalEnergyConsumption")

    def power_mw(self) -> int | None:
        """Return the power draw in milliwatts; newer GPUs report the mean of the last second."""
        return self._query("nvmlDeviceGetPowerUsage")

    def power_limit_mw(self) -> int | None:
        """Return the enforced power limit in milliwatts."""
        return self._query("nvmlDeviceGetEnforcedPowerLimit")

    def sm_clock_mhz(self) -> int | None:
        """Return the SM clock in MHz."""
        return self._query("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM)

    def highest_sm_clock_mhz(self) -> int | None:
        """Return the highest possible SM clock in MHz."""
        return self._query("nvmlDeviceGetMaxClockInfo", self._library.NVML_CLOCK_SM)

    def temperature_c(self) -> int | None:
        """Return the GPU's temperature in degrees Celsius."""
        return self._query("nvmlDeviceGetTemperature", self._library.NVML_TEMPERATURE_GPU)

    def _query(self, function: str, *arguments: Any) -> int | None:
        with suppress(self._library.NVMLError):
            return int(getattr(self._library, function)(self._handle, *arguments))
        return None


@contextmanager
def open_nvml(bus_id: Callable[[], str]) -> Iterator[NvmlDevice]:
    """Yield the sensors of a GPU. bus_id: returns its PCI bus address, ``0000:1b:00.0``. Raises UnavailableError.

    The address identifies the GPU, because NVML and CUDA number GPUs differently.
    """
    try:
        import pynvml
    except ImportError:
        raise UnavailableError(f"needs nvidia-ml-py: {REMEDY}") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML does not start: {error}") from None
    try:
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id().encode())
        except pynvml.NVMLError as error:
            raise UnavailableError(f"NVML does not know the card: {error}") from None
        yield NvmlDevice(pynvml, handle)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def current_bus_id() -> str:
    """Return the current GPU's PCI bus address."""
    import cupy

    address: str = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice())
    return address
