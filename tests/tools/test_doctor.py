"""Test ``main.py doctor``: with everything, with nothing, and with a card; every missing thing has its remedy."""

import importlib.metadata
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from app.base.errors import EXTRAS, UserError, pip_install_command
from app.cli import main
from app.cuda import device
from app.terminal.text import WIDTH
from app.tools import doctor, machine
from tests.main_job.test_power import Fake
from tests.support.outside import Outside
from tests.support.peers_for_tests import CARD
from tests.support.schemas import mistakes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``doctor`` with a short path to the cache; returns its text and its findings by name."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))

    def run() -> tuple[str, dict[str, dict[str, Any]]]:
        assert main(["doctor"]) == 0
        text = capsys.readouterr().out
        assert main(["doctor", "--json", "-"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert not mistakes(document)
        findings = document["findings"]
        assert all(one["missing"] == bool(one["remedy"]) == bool(one["needed_for"]) for one in findings)
        words = [word for one in findings for word in str(one["value"]).split()]
        room = max(WIDTH, 20 + max(map(len, words)))  # paths are not broken
        assert all(len(line) <= room for line in text.splitlines()), text
        return text, {one["name"]: one for one in findings}

    return run


def test_what_is_here(found: Any, tmp_path: Path, outside: Outside) -> None:
    text, findings = found()
    assert findings["Python"]["value"].endswith(sys.executable) and "lenet5-inference" in findings["program"]["value"]
    assert not findings["numpy"]["missing"] and not findings["weights"]["missing"]
    assert findings["test images"]["missing"] and "data_tools fetch --split test" in " ".join(text.split())
    assert list(tmp_path.iterdir()) == [] and outside.taken() == []
    assert findings["LENET_CACHE_DIR"]["value"] == str(tmp_path / "cache")


@pytest.mark.parametrize(
    ("told_not_to", "folder", "remedy"),
    [(True, "bytecode", "unset PYTHONDONTWRITEBYTECODE"), (False, "file", "set PYTHONPYCACHEPREFIX"), (True, None, "")],
)
def test_bytecode(
    told_not_to: bool, folder: str | None, remedy: str, found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "dont_write_bytecode", told_not_to)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / (folder or "kept")))
    if folder is None:
        kept = Path(importlib.util.cache_from_source(machine.__file__))
        kept.parent.mkdir(parents=True)
        kept.touch()
    _, findings = found()
    assert findings["bytecode"]["remedy"].startswith(remedy) and findings["bytecode"]["missing"] == bool(remedy)


def test_without_anything(found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package, no driver, no compiler, a cache that others can write to."""

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    def no_compiler() -> None:
        raise UserError("NVRTC, the run-time compiler, cannot be loaded (gone): run make run")

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setattr(importlib.metadata, "files", missing)
    monkeypatch.setattr(doctor, "find_nvrtc", no_compiler)
    monkeypatch.setattr(doctor, "_driver_versions", lambda: None)
    monkeypatch.setattr(doctor, "RUNTIMES", ())
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(device, "why_no_gpu", lambda: "no NVIDIA driver library (libcuda.so.1) is installed")
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    (tmp_path / "cache" / "kernels").chmod(0o777)
    text, findings = found()
    needed = {"numpy", "h5py", "tqdm", "requests", "cupy", *EXTRAS, "driver", "card", "NVRTC", "cache"}
    assert needed <= {name for name, one in findings.items() if one["missing"]}
    assert findings["NVRTC"]["remedy"] == "run make run" and "chmod" in findings["cache"]["remedy"]
    assert pip_install_command("pictures") in " ".join(text.split())


@pytest.mark.parametrize("library", [Fake(), None])
def test_with_a_card(library: Any, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(
        memGetInfo=lambda: (60 << 30, 80 << 30),
        getDeviceCount=lambda: 8,
        getDevice=lambda: 0,
        deviceGetPCIBusId=lambda _: "0000:1b:00.0",
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(device, "why_no_gpu", lambda: None)
    monkeypatch.setattr(device, "describe_gpu", lambda: CARD)
    monkeypatch.setattr(doctor, "_driver_versions", lambda: "580.1, CUDA 13.0")
    _, findings = found()
    assert findings["card"]["value"].startswith("Some Card (sm_90a, 132 SMs), 64.4 GB of 85.9 GB free, one of 8")
    if library is None:
        assert findings["clocks"]["remedy"] == pip_install_command("power")
    else:
        told = "SM 1,755 MHz now, at most 1,980 MHz, 300 W, limit 700 W, 45 degrees C"
        assert findings["clocks"]["value"] == told


def test_extras_are_those_of_the_project() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {extra: list(packages) for extra, packages in EXTRAS.items()} == {
        extra: packages for extra, packages in declared.items() if extra not in ("test", "dev", "keras")
    }
    assert machine.NEEDED_FOR.keys() == EXTRAS.keys()


def test_a_remedy_is_a_command_that_pip_understands() -> None:
    """The packages themselves, not an extra of this program: no index need hold it, and there may be no tree."""
    for extra in EXTRAS:
        pip, command, *packages = shlex.split(pip_install_command(extra))
        assert (pip, command) == ("pip", "install") and packages
        assert all(Requirement(package).specifier for package in packages)


def test_make_run_installs_what_its_recipes_need() -> None:
    """README's first pictures are classified by what ``make run`` has installed."""
    done = subprocess.run(["make", "-n", "-B", "-C", ROOT, "run"], capture_output=True, text=True, check=True)
    assert re.search(r"install .*-e '\.\[(?=[^]]*\bcuda\b)(?=[^]]*\bpictures\b)", done.stdout), done.stdout


@pytest.mark.gpu
def test_on_the_card(found: Any) -> None:
    _, findings = found()
    assert not any(findings[name]["missing"] for name in ("driver", "card", "NVRTC"))
    assert "SMs" in findings["card"]["value"] and "CUDA" in findings["driver"]["value"]
