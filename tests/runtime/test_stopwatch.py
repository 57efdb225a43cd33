"""What start-up costs, part by part, from the start of the process."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.runtime import startup
from app.runtime.startup import Stopwatch, own
from tests.support.shell import shell, write_good_files


def test_laps_add_up() -> None:
    watch = Stopwatch()
    assert watch.spent == {}  # the tests are not main.py
    for name in ("one", "other", "one"):
        time.sleep(0.01)
        watch.lap(name)
    assert list(watch.spent) == ["one", "other"]
    assert watch.spent["one"] >= 20 and watch.spent["other"] >= 10
    assert sum(watch.spent.values()) <= watch.elapsed < sum(watch.spent.values()) + 1000


def test_it_begins_where_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(STARTED=time.perf_counter() - 0.2))
    monkeypatch.setattr(startup, "_process_age", lambda: 0.5)
    watch = Stopwatch()
    assert watch.spent == pytest.approx({"start": 300, "import": 200}, abs=50)
    assert watch.elapsed >= 500
    monkeypatch.setattr(startup, "_process_age", lambda: 0.0)  # the system does not tell
    assert Stopwatch().spent["start"] == 0


def test_what_any_program_on_cupy_spends_is_not_our_own() -> None:
    assert own({"start": 1, "import": 2, "numpy": 4, "cupy": 8, "context": 16, "nvrtc": 32, "kernels": 64}) == 99


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """The parts are those that docs/report.md names, and together no more than the command took."""
    write_good_files(tmp_path)
    arguments = ("--device", "cpu", "--weights", "weights.h5", "--data", "images", "--labels", "none", "--json", "-")
    before = time.perf_counter()
    done = shell(*arguments, cwd=tmp_path)
    took = (time.perf_counter() - before) * 1e3
    report = json.loads(done.stdout)
    assert list(report["one_off_ms"]) == ["start", "import", "numpy", "weights", "context", "data"]
    assert all(ms >= 0 for ms in report["one_off_ms"].values())
    assert 0 < report["once_own_ms"] < report["once_ms"] < report["command_ms"] < took + 50
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8").partition("## Start-up")[2]
    assert all(f"`{name}`" in text for name in report["one_off_ms"])


@pytest.mark.parametrize("command", [("--help",), ("graph", "--help")])
def test_help_loads_nothing_heavy(command: tuple[str, ...]) -> None:
    done = shell(*command, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "app.cli" in loaded and not loaded & {"numpy", "cupy", "h5py", "tqdm", "requests"}


def test_the_main_job_loads_neither_the_downloader_nor_progress_bars_until_they_are_needed() -> None:
    code = "import sys, app.main_job; sys.exit(bool({'tqdm', 'requests', 'cupy'} & set(sys.modules)))"
    assert shell(prefix=(sys.executable, "-c", code)).returncode == 0
