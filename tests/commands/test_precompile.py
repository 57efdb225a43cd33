"""Test ``main.py precompile``: it compiles exactly the main job's kernels, once; mistakes are one line."""

import re
from pathlib import Path

import pytest

from app.base.precision import PRECISIONS
from app.cli import main
from app.cuda import compiler
from app.network.definitions import LENET5
from app.planning.matching import Choices
from app.planning.plan import plan
from app.tools.precompile import needed_builds
from tests.support.cpu_bits import ORIGINAL
from tests.support.networks_for_tests import random_graph
from tests.support.shell import Refuses, write_good_files

SUMMARY = re.compile(r"(\d+) kernels of \w+ in ([\w, ]+) for (\w+): (\d+) were in the cache, (\d+) compiled; \d+\.\d s")
Requests = list[tuple[str, tuple[str, ...]]]  # file and options of each kernel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache; return the folder to which compiled kernels are written."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compile_requests(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Use a compiler that only records its requests, and an empty cache; return the list of requests."""
    requests: Requests = []

    def compile_nothing(_: object, source: str, __: object, flags: tuple[str, ...]) -> tuple[bytes, str]:
        requests.append((source, flags))
        return b"machine code", ""

    monkeypatch.setattr(compiler, "_compile", compile_nothing)
    return requests


def run_summary(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str, int, int]:
    """Run the command without warnings; return kernels, precisions, architecture, and those cached and compiled."""
    assert main(["precompile", *options]) == 0
    out, err = capsys.readouterr()
    found = SUMMARY.fullmatch(" ".join(out.split()))
    assert found and err == "", (out, err)
    return int(found[1]), found[2], found[3], int(found[4]), int(found[5])


def test_an_empty_cache_is_filled_once(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real compiler runs, without a GPU. Kernels of this network, which has no convolutions, compile fast."""
    options = ("--arch", "sm_80", "--precision", "fp32", "--network", "mlp")
    total, precisions, arch, cached, compiled = run_summary(capsys, *options)
    assert (precisions, arch, cached, compiled) == ("fp32", "sm_80", 0, total)
    files = list(cache.iterdir())
    assert len(files) == total and all(b"\x7fELF" in file.read_bytes() for file in files)

    def compile_again(*_: object) -> None:
        raise AssertionError("compiled again")

    real = compiler._compile
    monkeypatch.setattr(compiler, "_compile", compile_again)
    assert run_summary(capsys, *options)[3:] == (total, 0)
    monkeypatch.setattr(compiler, "_compile", real)
    files[0].write_bytes(files[0].read_bytes()[:100])  # damaged
    assert run_summary(capsys, *options)[3:] == (total - 1, 1)


def test_a_network_needs_no_weights(compile_requests: Requests, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["precompile", "--arch", "sm_90a", "--network", str(ORIGINAL)]) == 0
    assert compile_requests and capsys.readouterr().err.startswith(
        "note: no weights of network lenet5_original are shipped"
    )


def test_the_plain_run_has_one_plan(compile_requests: Requests, capsys: pytest.CaptureFixture[str]) -> None:
    """Expect no kernels of another precision."""
    execution = plan(random_graph(LENET5), "sm_90a", Choices("auto"))
    total, precisions, *_ = run_summary(capsys, "--arch", "sm_90a")
    assert precisions == "auto" and total == len(compile_requests) == len(set(needed_builds(execution)))


def test_fused_kernels_and_convolutions_alone(compile_requests: Requests, cache: Path) -> None:
    """Expect a build for each launch, for each kernel for few images, and for each convolution that is timed alone."""
    execution = plan(random_graph(LENET5), "sm_90a", Choices())
    builds = list(needed_builds(execution))
    assert len(builds) == len(execution.nodes) + sum(len(node.few) for node in execution.nodes) + 2
    assert len(set(builds)) == len(builds)
    assert main(["precompile", "--arch", "sm_90a", "--precision", "fp32"]) == 0
    assert len(compile_requests) == len(builds) == len(list(cache.iterdir()))
    assert {source for source, _ in compile_requests} == {path.name for path, _ in builds}
    assert all("--gpu-architecture=sm_90a" in flags for _, flags in compile_requests)


def test_other_options_are_other_kernels(compile_requests: Requests, capsys: pytest.CaptureFixture[str]) -> None:
    fp32 = ["--precision", "fp32"]
    run_summary(capsys, "--arch", "sm_90a", *fp32)
    for other in ([*fp32, "--conv", "direct"], [*fp32, "--no-fuse"], ["--precision", "fp16"]):
        assert run_summary(capsys, "--arch", "sm_90a", *other)[4] > 0
    assert "conv_02_direct.cu" in {source for source, _ in compile_requests}


def test_every_precision(compile_requests: Requests, capsys: pytest.CaptureFixture[str]) -> None:
    total, precisions, *_ = run_summary(capsys, "--arch", "sm_90a", "--all")
    named = precisions.split(", ")
    assert {"fp32", "tf32", "fp16"} <= set(named) <= set(PRECISIONS)
    for precision in named:
        assert run_summary(capsys, "--arch", "sm_90a", "--precision", precision)[4] == 0
    assert len(compile_requests) == total


def test_precisions_that_the_architecture_lacks_are_left_out(
    compile_requests: Requests, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["precompile", "--arch", "sm_75", "--all"]) == 0
    out, err = capsys.readouterr()
    found = SUMMARY.fullmatch(" ".join(out.split()))
    assert found and "tf32" not in found[2] and "fp32" in found[2]
    left_out = [line.split()[1] for line in err.splitlines() if re.match(r"note: \w+ is left out: .*sm_75", line)]
    assert "tf32" in left_out and len(left_out) == len(err.splitlines()) == len(PRECISIONS) - len(found[2].split(", "))


def test_a_cache_that_cannot_be_written(
    compile_requests: Requests, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("LENET_CACHE_DIR", str(file / "below"))
    refuses("precompile --arch sm_90a", rf"cannot write the kernel cache {re.escape(str(file))}.*LENET_CACHE_DIR")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_main_job_then_compiles_nothing(
    precision: str, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_good_files(tmp_path)
    assert main(["precompile", "--precision", precision]) == 0
    before = sorted(cache.iterdir())
    own = ("--data", str(tmp_path / "images"), "--labels", "none", "--repeat", "1")
    assert main(["--device", "cuda", "--precision", precision, *own]) == 0
    assert sorted(cache.iterdir()) == before
    capsys.readouterr()
    assert main(["precompile", "--precision", precision]) == 0
    assert " 0 compiled" in capsys.readouterr().out
