"""Test ``doctor`` with everything, with nothing and with a card; and which files ``cache`` lists and removes."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from app.base.errors import EXTRAS, UserError, pip_install_command
from app.cli import main
from app.cuda import device
from app.files.writing import STALE_SECONDS
from app.terminal.text import WIDTH, format_age, format_bytes
from app.tools import cache, doctor, machine
from tests.main_job.test_power import FakeNvml
from tests.support.outside import Outside
from tests.support.peers_for_tests import CARD
from tests.support.schemas import mistakes
from tests.support.shell import Refuses, listing

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs ``doctor`` with a short path of the cache; it returns text and findings by name."""
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
        room = max(WIDTH, 20 + max(map(len, words)))  # paths are not wrapped
        assert all(len(line) <= room for line in text.splitlines()), text
        return text, {one["name"]: one for one in findings}

    return run


def test_doctor_lists_what_exists(run_doctor: Any, tmp_path: Path, outside: Outside) -> None:
    text, findings = run_doctor()
    assert findings["Python"]["value"].endswith(sys.executable) and "lenet5-inference" in findings["program"]["value"]
    assert not findings["numpy"]["missing"] and not findings["weights"]["missing"]
    assert findings["test images"]["missing"] and "data_tools fetch --split test" in " ".join(text.split())
    assert list(tmp_path.iterdir()) == [] and outside.taken() == []
    assert findings["LENET_CACHE_DIR"]["value"] == str(tmp_path / "cache")


def test_a_cache_that_cannot_be_written_to(run_doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tools.machine.os.access", lambda place, mode: mode == os.F_OK)
    assert run_doctor()[1]["cache"]["remedy"] == "set LENET_CACHE_DIR to a folder of your own"


@pytest.mark.parametrize(
    ("forbidden", "folder", "remedy"),
    [(True, "bytecode", "unset PYTHONDONTWRITEBYTECODE"), (False, "file", "set PYTHONPYCACHEPREFIX"), (True, None, "")],
)
def test_bytecode_is_stored_or_missing(
    forbidden: bool, folder: str | None, remedy: str, run_doctor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / (folder or "kept")))
    if folder is None:
        kept = Path(importlib.util.cache_from_source(machine.__file__))
        kept.parent.mkdir(parents=True)
        kept.touch()
    _, findings = run_doctor()
    assert findings["bytecode"]["remedy"].startswith(remedy) and findings["bytecode"]["missing"] == bool(remedy)


def test_doctor_without_anything(run_doctor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no package, driver or compiler, and others can write to the cache."""

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
    text, findings = run_doctor()
    needed = {"numpy", "h5py", "tqdm", "requests", "cupy", *EXTRAS, "driver", "card", "NVRTC", "cache"}
    assert needed <= {name for name, one in findings.items() if one["missing"]}
    assert findings["NVRTC"]["remedy"] == "run make run" and "chmod" in findings["cache"]["remedy"]
    assert pip_install_command("pictures") in " ".join(text.split())


@pytest.mark.parametrize("library", [FakeNvml(), None])
def test_doctor_with_a_card(library: Any, run_doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    _, findings = run_doctor()
    assert findings["card"]["value"].startswith("Some Card (sm_90a, 132 SMs), 64.4 GB of 85.9 GB free, one of 8")
    if library is None:
        assert findings["clocks"]["remedy"] == pip_install_command("power")
    else:
        told = "SM 1,755 MHz now, at most 1,980 MHz, 300 W, limit 700 W, 45 degrees C"
        assert findings["clocks"]["value"] == told


def test_doctor_knows_every_extra() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {extra: list(packages) for extra, packages in EXTRAS.items()} == {
        extra: packages for extra, packages in declared.items() if extra not in ("test", "dev", "keras")
    }
    assert machine.NEEDED_FOR.keys() == EXTRAS.keys()


def test_remedies_for_extras_are_pip_commands() -> None:
    """It names packages, not an extra of this program, which may be on no index."""
    for extra in EXTRAS:
        pip, command, *packages = shlex.split(pip_install_command(extra))
        assert (pip, command) == ("pip", "install") and packages
        assert all(Requirement(package).specifier for package in packages)


def test_make_run_installs_what_its_recipes_need() -> None:
    """``make run`` installs what README's first commands need to classify pictures."""
    command = ["make", "-n", "-B", "run", "PYTHON=python3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"install .*-e '\.\[(?=[^]]*\bcuda\b)(?=[^]]*\bpictures\b)", done.stdout), done.stdout


@pytest.mark.gpu
def test_doctor_on_the_gpu(run_doctor: Any) -> None:
    _, findings = run_doctor()
    assert not any(findings[name]["missing"] for name in ("driver", "card", "NVRTC"))
    assert "SMs" in findings["card"]["value"] and "CUDA" in findings["driver"]["value"]


OURS = (f"kernels/{'0' * 64}.cubin", f"kernels/{'f' * 64}.cubin", "fashion-mnist/t10k-labels-idx1-ubyte.gz")
ENDED = 4_190_000  # a number that no process of Linux can have
ABANDONED = f"kernels/.lenet5-inference-{ENDED}-{'0' * 16}.part"
OTHERS = (
    "kernels/notes.txt",
    "kernels/1.cubin",
    "fashion-mnist/mine.gz",
    "tuning/some_card.json",
    "peers/some_card.json",
    "learn/progress.json",
    "mine",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache with files of all kinds, of 1,000 bytes each and an hour old, and with files of other programs."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    for name in (*OURS, ABANDONED, *OTHERS):
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (time.time() - STALE_SECONDS * 2,) * 2)
    (tmp_path / "outside").write_text("of the user")
    (tmp_path / "cache" / f"kernels/{'a' * 64}.cubin").symlink_to(tmp_path / "outside")
    return tmp_path / "cache"


def test_cache_lists_files_by_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = listing(folder)
    assert main(["cache", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert not mistakes(document)
    assert [(kind["kind"], kind["files"], kind["bytes"]) for kind in document["kinds"]] == [
        ("compiled kernels", 3, 3000),
        ("Fashion-MNIST", 1, 1000),
        ("tuning tables", 1, 1000),
        ("peer settings", 1, 1000),
        ("learn progress", 1, 1000),
    ]
    assert all(7190 < kind["newest_s"] <= kind["oldest_s"] < 7300 for kind in document["kinds"])
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "7 files, 7.0 kB in" in out and "compiled kernels      3  3.0 kB  2 h" in out
    assert max(len(line) for line in out.splitlines()[1:]) <= WIDTH
    assert listing(folder) == before


def test_cache_clear_removes_some_kinds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--clear"]) == 0
    assert "4 files, 4.0 kB removed from" in capsys.readouterr().out
    left = {name for name in listing(folder) if not (folder / name).is_dir()}
    assert left == {*OTHERS, f"kernels/{'a' * 64}.cubin"}
    assert (folder.parent / "outside").read_text() == "of the user"
    assert main(["cache", "--clear"]) == 0
    assert "0 files, 0 bytes removed from" in capsys.readouterr().out


def test_recent_unfinished_files_are_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.utime(folder / ABANDONED)
    assert main(["cache", "--clear"]) == 0
    assert (folder / ABANDONED).exists()


def test_files_may_vanish_while_they_are_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def removed_meanwhile(path: Path) -> bool:
        path.unlink()
        return bool(path.lstat())

    monkeypatch.setattr(cache, "is_abandoned", removed_meanwhile)
    assert main(["cache"]) == 0
    assert "6 files, 6.0 kB in" in capsys.readouterr().out


def test_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "none"))
    assert main(["cache"]) == main(["cache", "--clear"]) == 0
    assert "0 files, 0 bytes in" in capsys.readouterr().out and not (tmp_path / "none").exists()


def test_folders_that_others_can_write_are_not_cleared(folder: Path, refuses: Refuses) -> None:
    (folder / "kernels").chmod(0o777)
    before = listing(folder)
    refuses("cache --clear", "cannot clear the cache: other users can write to .*chmod")
    assert listing(folder) == before


def test_sizes_and_ages_have_units() -> None:
    assert [format_bytes(count) for count in (0, 999, 1000, 31.2e6, 4e9)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "31.2 MB", "4.0 GB")
    ]
    assert [format_age(seconds) for seconds in (5, 119, 120, 7200, 10 * 86_400)] == [
        *("5 s", "119 s", "2 min", "2 h", "10 days")
    ]
