"""Test the harness: samples and parts of the tests, number of processes, no network and no files of the user."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.files.cache import cache_dir
from app.interchange.named_arrays import Description
from app.interchange.onnx_export import onnx_model
from app.kernels.registry import variants
from app.network.definitions import LENET5
from data_tools.idx import write_idx
from tests import conftest
from tests.support import sampling
from tests.support.kernel_cases import OPERATIONS, Case, small_cases, tuned_cases
from tests.support.networks_for_tests import random_graph, random_images
from tests.support.outside import Outside, secluded
from tests.support.sampling import WHOLE, chosen, part_of, sampled, worker_count
from tests.support.shell import ROOT

PLUGIN = """import warnings
import pytest

def pytest_configure(config):
    warnings.warn(pytest.PytestWarning("of no use here"))
"""
TESTS = """import warnings

def test_good():
    pass

def test_warns():
    warnings.warn("mend this", DeprecationWarning)
"""


def fake_item(name: str, mark: str = "gpu", **params: object) -> Any:
    """Return a fake of pytest's item, with the attributes that sampling reads."""
    return SimpleNamespace(
        nodeid=name, callspec=SimpleNamespace(params=params), get_closest_marker=lambda name: name == mark or None
    )


@pytest.fixture(scope="module")
def grid() -> list[Any]:
    """Return an item for each case in the whole grid of GPU tests, which takes a second."""
    return [fake_item(f"test_grid[{at}]", case=case) for at, case in enumerate((*small_cases(), *tuned_cases()))]


def cases_of(items: list[Any]) -> list[Case]:
    return [found.callspec.params["case"] for found in items]


def problem_fact(name: str, case: Case) -> object:
    """Return a field of the case's problem; None if the problem lacks it."""
    return getattr(case.problem, name, None)


def facts_of(items: list[Any], fact: Callable[[Case], object]) -> set[tuple[str, object]]:
    """Return (kernel, value of ``fact``) of all items."""
    return {(case.row.source, fact(case)) for case in cases_of(items)}


@pytest.mark.parametrize("seed", [1, 2])
def test_every_kernel_has_all_types_epilogues_and_parameters_in_a_sample(seed: int, grid: list[Any]) -> None:
    kept = chosen(grid, seed, (1, 1))
    assert len(grid) / 4 <= len(kept) < len(grid) / 2
    assert {case.row.source for case in cases_of(kept)} == {row.source for name in OPERATIONS for row in variants(name)}
    for name in ("dtype", "input_dtype", "output_dtype", "bias", "activation", "pool_is_max", "pool_ceil", "exact"):
        fact = partial(problem_fact, name)
        assert facts_of(kept, fact) == facts_of(grid, fact), name
    tuned = [found for found in grid if found.callspec.params["case"].parameters]
    assert facts_of(chosen(tuned, seed, (1, 1)), attrgetter("parameters")) == facts_of(tuned, attrgetter("parameters"))


def test_a_sample_depends_on_the_seed_alone(grid: list[Any]) -> None:
    one = {*sampled(grid, 1)}
    assert {*sampled(grid[::-1], 1)} == one != {*sampled(grid, 2)}
    assert [found.nodeid for found in chosen(grid, 1, (1, 1))] == [f.nodeid for f in grid if f.nodeid in one]


def test_small_tests_and_cpu_tests_are_not_sampled() -> None:
    few = [fake_item(f"test_few[{at}]", at=at) for at in range(WHOLE)]
    cpu = [fake_item(f"test_cpu[{at}]", mark="", at=at) for at in range(500)]
    many = [fake_item(f"test_many[{at}]", at=at) for at in range(500)]
    assert chosen([*few, *cpu, *many], 1, (1, 1))[: len(few) + len(cpu)] == [*few, *cpu]
    assert len({*sampled(many, 1)}) == 125
    assert chosen(many, None, (1, 1)) == many
    slow = [fake_item(f"test_slow[{at}]", mark="grid", at=at) for at in range(40)]
    assert len({*sampled(slow, 1)}) == 5


def test_parts_cover_everything_once(grid: list[Any]) -> None:
    parts = [chosen(grid, None, (at, 3)) for at in (1, 2, 3)]
    assert sorted(found.nodeid for part in parts for found in part) == sorted(found.nodeid for found in grid)
    assert all(0.3 < len(part) / len(grid) < 0.37 for part in parts)


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "1/0", "-1/4", "a/b", ""])
def test_wrong_parts_are_refused(text: str) -> None:
    assert part_of("4/4") == (4, 4)
    with pytest.raises(ValueError, match="is no part: give 2/4"):
        part_of(text)


@pytest.mark.parametrize(
    ("gpu_gib", "host_gib", "cores", "count"),
    [(80, 128, 16, 16), (80, 128, 64, 20), (8, 128, 16, 2), (2, 16, 8, 1), (80, 16, 16, 5), (None, 4, 3, 4)],
)
def test_processes_fit_in_memory(
    gpu_gib: int | None, host_gib: int, cores: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "why_no_gpu", lambda: "none" if gpu_gib is None else None)
    monkeypatch.setattr(sampling, "describe_gpu", lambda: {"memory_bytes": (gpu_gib or 0) << 30})
    monkeypatch.setattr(sampling, "core_count", lambda: cores)
    monkeypatch.setattr(sampling.os, "sysconf", {"SC_PHYS_PAGES": host_gib << 18, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert worker_count() == count


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user does."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    paths = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**own, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
    )


def test_the_seed_is_shown_and_stands_in_the_readme() -> None:
    shown = conftest.pytest_report_header(SimpleNamespace(getoption={"sample": 5}.get))  # type: ignore[arg-type]
    assert shown is not None and "sample: seed 5 " in shown
    (seed,) = set(re.findall(r"--sample \$\(or \$\(SEED\),(\d+)\)", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert f"the seed {seed};" in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


def test_warnings_of_plugins_are_no_errors_and_those_of_tests_are(tmp_path: Path) -> None:
    """Plugins such as pytest-benchmark and pytest-asyncio warn while pytest starts, here and in workers."""
    (tmp_path / "pytest_warns.py").write_text(PLUGIN, encoding="utf-8")
    (tmp_path / "test_own.py").write_text(TESTS, encoding="utf-8")
    done = run_pytest(tmp_path, "-p", "pytest_warns", "-n", "1", "-c", "pyproject.toml", str(tmp_path / "test_own.py"))
    assert done.returncode == 1 and "INTERNALERROR" not in done.stdout + done.stderr, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout and "DeprecationWarning: mend this" in done.stdout


FETCHES = {
    "a request": "import requests; requests.get('http://example.com/x', timeout=5)",
    "a request by TLS": "import requests\ntry: requests.get('https://example.com/x', timeout=5)\nexcept OSError: pass",
    "the standard library": "import urllib.request as u\ntry: u.urlopen('http://example.com')\nexcept OSError: pass",
    "apt-get": "import subprocess; subprocess.run(['apt-get', 'download', 'x'])",
}


@pytest.mark.parametrize("how", FETCHES)
def test_a_child_process_that_fetches_is_noticed(how: str, outside: Outside) -> None:
    with pytest.raises(AssertionError, match="tests fetch nothing"), secluded(outside):
        subprocess.run([sys.executable, "-c", FETCHES[how]], check=True, timeout=60)


@pytest.mark.parametrize("address", ["192.0.2.1", "example.com"])
def test_fetching_by_this_process_is_noticed(address: str, outside: Outside) -> None:
    def fetch() -> None:
        with pytest.raises(PermissionError):
            socket.create_connection((address, 80), timeout=5)

    with pytest.raises(AssertionError, match=f"tests fetch nothing.*{address}"), secluded(outside):
        fetch()


def test_local_servers_are_reached(outside: Outside) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, secluded(outside):
        socket.create_connection(server.getsockname()).close()


def test_files_of_the_user_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "FASHION_MNIST_DIR" not in os.environ
    assert list(Path.home().iterdir()) == [] and cache_dir() == Path.home() / ".cache" / "lenet5-inference"


TAKEN = ("ORT_DISABLE_TELEMETRY", "LENET_CPU_ENGINE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
MAIN = str(ROOT / "main.py")
LIBRARY = """
import numpy as np
from app.engine.classifier import Classifier
with Classifier(device="cpu") as classifier:
    classifier(np.zeros((3, 1, 28, 28), np.uint8))
import onnxruntime
"""
CLUSTER = "import app.cluster.runner, onnxruntime; print(onnxruntime.get_device())"
PROGRAMS = {
    "import": (MAIN, "import", "model.onnx", "--out", "new.h5"),
    "run": (MAIN, "--device", "cpu", "--data", "images", "--labels", "none"),
    "predict": (MAIN, "predict", "images.npy", "--device", "cpu", "--out", "labels.csv"),
    "fuzz": ("-m", "tests.fuzz", "--cases", "9", "--target", "onnx"),
    "library": ("-c", LIBRARY),
    "cluster": ("-c", CLUSTER),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_home_and_temporary_folder_stay_empty(program: str, tmp_path: Path) -> None:
    for needed in ("onnx", "onnxruntime", *["distributed"] * (program == "cluster")):
        pytest.importorskip(needed)
    work, home, temporary = (tmp_path / name for name in ("work", "home", "temporary"))
    for folder in (work, home, temporary):
        folder.mkdir()
    graph = random_graph(LENET5)
    model = onnx_model(Description(LENET5, graph.input_scale, None), graph.parameters)
    (work / "model.onnx").write_bytes(model.SerializeToString())
    images = random_images(LENET5, 3)
    write_idx(work / "images", images[:, 0])
    np.save(work / "images.npy", images)
    environment = {name: value for name, value in os.environ.items() if name not in TAKEN}
    environment |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *PROGRAMS[program]]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [*home.rglob("*"), *temporary.rglob("*")] == []
