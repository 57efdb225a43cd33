"""Test that the cache is private: kernels and tables that another user could have written are ignored."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.base.errors import UserError
from app.cuda import compiler
from app.cuda.compiler import compile_kernel
from app.files import cache
from app.kernels.problems import ConvProblem, Problem
from app.planning import tuning
from app.planning.tuning import TunedResult
from data_tools import fashion_mnist
from tests.support.shell import ROOT, Refuses

CARD = "Card 1"
OWN_FOLDER = "set LENET_CACHE_DIR to a folder of your own"
PROBLEM = ConvProblem(1, 28, 28, 20, 5)
RESULTS: dict[Problem, dict[str, TunedResult]] = {PROBLEM: {"direct": TunedResult({}, 0.5, 100)}}


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Set no umask: new files are writable for everybody unless the program restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the cache, which does not exist yet."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "parent" / "cache"))
    return tmp_path / "parent" / "cache"


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fake the compiler, with other machine code each time; return the list of sources that it was given."""
    asked: list[str] = []

    def compile_something(_: object, source: str, *__: object) -> tuple[bytes, str]:
        asked.append(source)
        return f"machine code {len(asked)}".encode(), ""

    monkeypatch.setattr(compiler, "_compile", compile_something)
    return asked


def compile_argmax() -> bytes:
    return compile_kernel(compiler.KERNEL_DIR / "pointwise" / "argmax_01_rows.cu", {}, "sm_80")


@pytest.fixture
def kernel(folder: Path, sources: list[str]) -> Path:
    """Return the path of a compiled kernel, the only file in the cache."""
    compile_argmax()
    (file,) = (folder / "kernels").iterdir()
    return file


def access_of_others(folder: Path) -> dict[str, int]:
    """Return path → rights of group and others, for the cache, its parent folder and all that it contains."""
    found = [folder.parent, folder, *folder.rglob("*")]
    return {str(path): path.stat().st_mode & 0o077 for path in found}


def test_the_cache_is_private_whatever_the_umask(no_umask: None, folder: Path, sources: list[str]) -> None:
    compile_argmax()
    tuning.store(CARD, RESULTS)
    assert len(access_of_others(folder)) == 6 and not any(access_of_others(folder).values()), access_of_others(folder)
    assert compile_argmax() == b"machine code 1" and tuning.load(CARD).entries


def test_fetching_data_keeps_the_cache_private(no_umask: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "_download_from_mirrors", lambda *_: [])
    monkeypatch.setattr(fashion_mnist, "_has_good_copy", lambda *_: False)
    assert fashion_mnist.fetch_split("test") == folder / "fashion-mnist"
    assert not any(access_of_others(folder).values())


def test_caches_that_others_can_read_are_used(
    folder: Path, sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    compile_argmax()
    tuning.store(CARD, RESULTS)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert compile_argmax() == b"machine code 1" and tuning.load(CARD).entries
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o020, 0o002])
@pytest.mark.parametrize("place", [".", "kernels", "file"])
def test_kernels_that_others_could_write_are_not_run(
    place: str, mode: int, folder: Path, kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is anything written there. One line says what to do; after that, the kernel is used again."""
    open_to_all = kernel if place == "file" else folder / place
    open_to_all.chmod(open_to_all.stat().st_mode | mode)
    before = kernel.read_bytes()
    assert [compile_argmax(), compile_argmax()] == [b"machine code 2", b"machine code 3"]
    assert kernel.read_bytes() == before and len(list((folder / "kernels").iterdir())) == 1
    err = capsys.readouterr().err
    told = f"note: going on without {folder / 'kernels'}: other users can write"
    assert err.count("\n") == 1 and err.startswith(told)
    command = err.partition("or run ")[2].partition(" if you")[0]
    assert command == f"chmod -R go-w {open_to_all}"
    subprocess.run(command.split(), check=True)
    assert compile_argmax() == b"machine code 1"


def test_a_pipe_in_place_of_a_kernel_is_an_error(kernel: Path) -> None:
    kernel.unlink()
    os.mkfifo(kernel)
    with pytest.raises(UserError, match=rf"{kernel.name}: it is not a regular file\): delete what is in the way, or"):
        compile_argmax()


def test_precompile_refuses_a_cache_that_is_not_trusted(folder: Path, sources: list[str], refuses: Refuses) -> None:
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels").chmod(0o777)
    wrong = "cannot store compiled kernels: other users can write to .*chmod -R go-w"
    refuses("precompile --arch sm_80 --precision fp32", wrong)
    assert not sources


def test_tables_that_others_could_write_are_ignored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning.store(CARD, RESULTS)
    folder.chmod(0o777)
    assert not tuning.load(CARD).entries
    assert capsys.readouterr().err.startswith(f"note: going on without {folder / 'tuning'}: other users can write to")
    with pytest.raises(UserError, match=r"^cannot store the results: other users can write to .* chmod -R go-w"):
        tuning.store(CARD, RESULTS)


def set_owners(monkeypatch: pytest.MonkeyPatch, us: int, owner: dict[Path, int]) -> None:
    """Make this process one of user ``us``, and ``us`` the owner of all files except those in ``owner``."""
    real = Path.stat

    def stat(path: Path, **options: Any) -> Any:
        found = real(path, **options)
        return SimpleNamespace(st_uid=owner.get(path, us), st_mode=found.st_mode)

    monkeypatch.setattr(os, "geteuid", lambda: us)
    monkeypatch.setattr(cache.Path, "stat", stat)


@pytest.mark.parametrize("us", [0, 1000])
@pytest.mark.parametrize("place", [".", "kernels", "kernels/file"])
def test_cache_of_another_user_is_untrusted(
    place: str, us: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if root has the user's HOME, or if another user made the folder in /tmp first."""
    (tmp_path / "kernels").mkdir()
    file = tmp_path / "kernels" / "file"
    file.touch()
    for owner, believed in ((us, True), (0, True), (1001, False)):
        with monkeypatch.context() as patch:
            set_owners(patch, us, {tmp_path / place: owner})
            reason = cache.why_untrusted(file)
        assert (reason is None) == believed
        assert believed or reason == f"{tmp_path / place} is another user's: {OWN_FOLDER}"


def test_a_link_is_judged_by_its_target(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "kernels").mkdir(parents=True)
    folder.parent.mkdir()
    folder.symlink_to(elsewhere)
    assert cache.why_untrusted(folder / "kernels" / "file") is None
    elsewhere.chmod(0o1777)  # as in /tmp, where anybody can create missing files
    reason = str(cache.why_untrusted(folder / "kernels" / "file"))
    assert reason == f"other users can write to {folder}: {OWN_FOLDER}"


def test_two_processes_may_create_a_folder_at_once(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from app.files import cache\n"
    script += "cache.create_private_folder(Path(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(tmp_path / "a" / "b" / "c")]
    racers = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [racer.wait() for racer in racers] == [0, 0]
    assert (tmp_path / "a" / "b" / "c").is_dir()
