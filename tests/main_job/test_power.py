"""Test the measurement of power and energy by a fake NVML: units, counter and samples, missing readings."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.cuda import nvml
from app.main_job import power
from app.records.report import Power
from app.terminal.text import WIDTH, paragraph
from tests.support.schemas import mistakes
from tests.support.shell import user_error
from tests.test_report import CPU, GPU, report, wide


class FakeError(Exception):
    """Stand-in for NVML's exception."""


class FakeNvml:
    """Stand-in for pynvml: a card of 300 W, whose energy counter changes every 20 ms. lacks: functions that fail."""

    NVMLError, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = FakeError, 1, 0

    def __init__(self, *lacks: str) -> None:
        self.seconds, self.lacks, self.called = 0.0, lacks, list[str]()

    def run(self) -> None:
        self.seconds += 0.003

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.called.append(name)
            if name in self.lacks:
                raise FakeError("Not Supported")
            return {
                "nvmlDeviceGetHandleByPciBusId": "handle",
                "nvmlDeviceGetTotalEnergyConsumption": 7_000_000 + int(self.seconds / 0.02) * 6_000,
                "nvmlDeviceGetPowerUsage": 300_000,
                "nvmlDeviceGetEnforcedPowerLimit": 700_000,
                "nvmlDeviceGetMaxClockInfo": 1_980,
                "nvmlDeviceGetTemperature": 45,
                "nvmlDeviceGetClockInfo": 1_980 if self.seconds > 0.5 else 1_755,
            }.get(name)

        return call


def measure_fake(fake: FakeNvml) -> Power | None:
    return power.measure_power(nvml.NvmlDevice(fake, "handle"), fake.run, 1000, clock=lambda: fake.seconds)


def test_energy_is_measured_between_changes_of_the_counter() -> None:
    """300 W and 1,000 images in 3 ms are 900 µJ for an image."""
    found = measure_fake(FakeNvml())
    assert found is not None and found["source"] == power.COUNTED
    assert power.SECONDS <= found["seconds"] < power.SECONDS + 0.1
    assert found["watts"] == pytest.approx(300, rel=0.005)
    assert found["microjoules_per_image"] == pytest.approx(900, rel=0.005)
    assert found["images"] == pytest.approx(found["seconds"] / 0.003 * 1000, abs=1000)
    assert found["joules"] == pytest.approx(300 * found["seconds"], rel=0.005)
    assert found["sm_clock_mhz"] == {"min": 1755, "median": 1980, "max": 1980}
    text = power.power_text(found)
    assert re.search(r"\b(299|300|301) W, (89[6-9]|90[0-4]) J per million images", text)
    assert "SM clock 1,980 MHz (1,755 to 1,980)" in text
    assert all(len(line) <= WIDTH for line in paragraph(text, WIDTH))


def test_the_report_has_power_and_energy_per_image() -> None:
    drawn = power.power_record(1.25, 2_000_000, 500.0, power.COUNTED, (1755, 1980, 1980))
    told = report(replace(GPU, power=drawn))
    assert not [fault for fault in mistakes(json.loads(json.dumps(told))) if "power" in fault]
    assert (told["power"]["watts"], told["power"]["microjoules_per_image"]) == (400.0, 250.0)
    assert "power              400 W, 250 J per million images, over 1.2 s of repeated runs" in wide(told)
    assert report(CPU)["power"] is None and "million images" not in wide(report(CPU))


def test_samples_of_power_replace_a_missing_counter() -> None:
    found = measure_fake(FakeNvml("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetClockInfo"))
    assert found is not None and found["source"] == power.INTEGRATED
    assert found["watts"] == 300 and found["microjoules_per_image"] == pytest.approx(900, rel=0.01)
    assert found["sm_clock_mhz"] is None and "SM clock" not in power.power_text(found)


def test_a_counter_that_never_changes_is_not_used() -> None:
    fake = FakeNvml()
    fake.__dict__["nvmlDeviceGetTotalEnergyConsumption"] = lambda handle: 7_000_000
    found = measure_fake(fake)
    assert found is not None and found["source"] == power.INTEGRATED


def test_without_any_reading_the_measurement_ends_at_once() -> None:
    fake = FakeNvml("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage")
    assert measure_fake(fake) is None and fake.seconds < 0.1


def test_nvml_is_opened_by_address_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    with nvml.open_nvml(lambda: "0000:1b:00.0") as card:
        assert (card.power_mw(), card.sm_clock_mhz()) == (300_000, 1755)
    assert fake.called[0] == "nvmlInit" and fake.called[-1] == "nvmlShutdown"


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (None, r"needs nvidia-ml-py: pip install 'nvidia-ml-py>="),
        (FakeNvml("nvmlInit"), "NVML does not start: Not Supported"),
        (FakeNvml("nvmlDeviceGetHandleByPciBusId"), "NVML does not know the card"),
    ],
)
def test_without_nvml_there_is_a_reason(library: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    with pytest.raises(nvml.UnavailableError, match=reason), nvml.open_nvml(lambda: "0000:1b:00.0"):
        raise AssertionError("opened")


def test_the_current_card_is_measured_or_the_option_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "current_bus_id", lambda: "0000:1b:00.0")
    monkeypatch.setattr(power, "SECONDS", 0.01)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    power.check_nvml_available()
    found = power.measure_current_gpu(lambda: None, 1000)
    assert found is not None and found["source"] == power.INTEGRATED and found["watts"] == pytest.approx(300)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for refused in (power.check_nvml_available, lambda: power.measure_current_gpu(lambda: None, 1000)):
        assert user_error(refused) == f"--power: needs nvidia-ml-py: {nvml.REMEDY}; or leave --power out"


@pytest.mark.gpu
def test_power_of_a_busy_gpu() -> None:
    """Expect plausible watts and clocks while the GPU multiplies matrices."""
    import cupy

    a = cupy.ones((2048, 2048), cupy.float32)

    def multiply() -> None:
        a @ a
        cupy.cuda.Device().synchronize()

    try:
        with nvml.open_nvml(nvml.current_bus_id) as card:
            found = power.measure_power(card, multiply, 1)
    except nvml.UnavailableError as reason:
        pytest.skip(str(reason))
    assert found is not None
    assert 20 < found["watts"] < 2000 and found["sm_clock_mhz"] and found["sm_clock_mhz"]["max"] > 200
