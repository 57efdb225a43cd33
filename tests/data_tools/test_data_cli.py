"""Test ``python -m data_tools``: its output, files and exit codes, and one-line errors for bad input."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.interrupts import INTERRUPTED
from app.layers import Resize
from app.terminal.text import WIDTH
from data_tools import calibration, commands, enlarge, fashion_mnist
from data_tools.__main__ import main
from data_tools.idx import MAX_BYTES, read_idx, write_idx, write_idx_parts
from tests.support.shell import ROOT, Refuses, check_error, listing
from tests.support.tiny_fashion import FILES, IMAGES, NAMES, write

Stays = Callable[..., None]
SMALL = np.random.default_rng(5).integers(0, 256, (7, 9, 6), dtype=np.uint8)


@pytest.fixture
def system(cache: Path, tmp_path: Path) -> Path:
    """Return the system directory with good files; no other directory has any."""
    return write(tmp_path / "system")


@pytest.mark.parametrize("options", [[], ["--data-dir", "{}", "--split", "test"]], ids=["found", "named"])
def test_fetch_prints_where_the_files_are(options: list[str], system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", *(option.format(system) for option in options)]) == 0
    assert capsys.readouterr().out == f"test: {system}\n"


def test_verify_good_files(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"OK  {system / name}.gz" for name in NAMES]


def test_verify_names_bad_and_missing_files(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = system / f"{NAMES[0]}.gz"
    write_idx(bad, IMAGES[::-1].copy())
    assert main(["verify"]) == 2
    output = capsys.readouterr()
    assert output.out == f"OK  {system / NAMES[1]}.gz\n"
    assert output.err.startswith(f"error: {bad} is not the original") and output.err.count("\n") == 1
    bad.unlink()
    (system / f"{NAMES[1]}.gz").write_bytes(b"")
    assert main(["verify", "--data-dir", str(system)]) == 2
    output = capsys.readouterr()
    remedy = f"run: python -m data_tools fetch --data-dir {system} (and 1 more)"
    assert output.err == f"error: {bad.name} is not in {system}; {remedy}\n"


def test_info_prints_shapes_counts_and_hashes(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--data-dir", str(system)]) == 0
    output = capsys.readouterr().out
    mean = f"mean pixel {IMAGES.mean():.3f} of 255"
    for text in (str(system), "(40, 28, 28) uint8", mean, "Ankle boot", *(file.sha256 for file in FILES)):
        assert text in output
    counts = [int(line.split()[-1]) for line in output.splitlines()[4:14]]
    assert sum(counts) == 40


def test_an_interrupt_gives_a_one_line_error(system: Path, monkeypatch: pytest.MonkeyPatch, refuses: Refuses) -> None:
    monkeypatch.setitem(commands.COMMANDS, "info", (Mock(side_effect=KeyboardInterrupt), "x"))
    refuses("info", INTERRUPTED.removeprefix("error: "), main)


@pytest.mark.parametrize("command", ["", "info --split none", "other"])
def test_wrong_arguments_point_to_help(command: str, refuses: Refuses) -> None:
    refuses(command, r"--help\)", main)


@pytest.mark.parametrize("command", ["", *commands.COMMANDS, *calibration.COMMANDS, "resize", "bundle"])
def test_help_fits_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: ") and all(len(line) <= WIDTH for line in lines)


def test_python_m_data_tools_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "data_tools"]
    done = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and all(word in done.stdout for word in ("fetch", "verify", "info", "LENET_CACHE_DIR"))
    done = subprocess.run([*command, "info", "--data-dir", tmp_path], cwd=ROOT, capture_output=True, text=True)
    check_error(done.returncode, done.stdout, done.stderr, str(tmp_path))


# --- resize


def resize_images(images: np.ndarray, size: int) -> np.ndarray:
    """Return the images as the layer resizes them, (N, size, size)."""
    return Resize("resize", size, "edge").reference(images[:, None], {})[:, 0]


def run_resize(*arguments: object) -> int:
    return main(["resize", *map(str, arguments)])


@pytest.fixture
def refused(small: Path, refuses: Refuses) -> Stays:
    """Return a function that runs a resize that must be refused, and checks that no file changes."""

    def check(pattern: str, *arguments: object) -> None:
        before = listing(small.parent)
        refuses(["resize", *arguments], pattern, main)
        assert listing(small.parent) == before

    return check


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return the path of a file of seven images."""
    write_idx(tmp_path / "small.gz", SMALL)
    return tmp_path / "small.gz"


@pytest.mark.parametrize("name", ["large", "large.gz"])
def test_resizing(name: str, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes equal those of the layer whatever the chunk size; a name with .gz gives a gzipped file."""
    target = small.with_name(name)
    assert run_resize("--size", 13, small, target) == 0
    assert capsys.readouterr() == (f"{target}: 7 images of 13 x 13\n", "")
    np.testing.assert_array_equal(read_idx(target, 3), resize_images(SMALL, 13))
    before = target.read_bytes()
    assert before.startswith(b"\x1f\x8b") == name.endswith(".gz")
    monkeypatch.setattr(enlarge, "CHUNK", 2)
    target.unlink()
    assert run_resize("--size", 13, small, target) == 0
    assert target.read_bytes() == before


def test_several_files_keep_their_names(small: Path, tmp_path: Path) -> None:
    write_idx(tmp_path / "other", SMALL[:2])
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run_resize(small, tmp_path / "other", folder, "--size", 4) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["other", "small.gz"]
    np.testing.assert_array_equal(read_idx(folder / "small.gz", 3), resize_images(SMALL, 4))
    np.testing.assert_array_equal(read_idx(folder / "other", 3), resize_images(SMALL[:2], 4))


def test_a_split_is_resized(system: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert run_resize("--size", 70, "--split", "test", tmp_path / "test70") == 0
    assert run_resize("--split", "test", "--data-dir", system, "--size", 70, tmp_path / "folder") == 0
    for path in (tmp_path / "test70", tmp_path / "folder" / f"{NAMES[0]}.gz"):
        np.testing.assert_array_equal(read_idx(path, 3), resize_images(IMAGES, 70))


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_failed_resizing_leaves_no_file(
    failure: BaseException, small: Path, monkeypatch: pytest.MonkeyPatch, refused: Stays
) -> None:
    reference = Mock(side_effect=[np.zeros((2, 1, 13, 13), np.uint8), failure])
    monkeypatch.setattr(enlarge, "CHUNK", 2)
    monkeypatch.setattr(Resize, "reference", reference)
    refused("(interrupted|No space left)", "--size", 13, small, small.with_name("large"))
    assert reference.call_count == 2


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("--size 1025 {small} {new}", r"--size 1025 is not between"),
        ("--size x {small} {new}", "invalid int value: 'x'"),
        ("{small} {new}", "required: --size"),
        ("--size 9", "required: FILE"),
        ("--size 9 {small}", r"nothing to resize: name a file before .*small.gz, or add --split test"),
        ("--size 9 --data-dir {folder} {small} {new}", "--data-dir is for --split"),
        ("--size 9 {folder}/none {new}", "none does not exist; check the name"),
        ("--size 9 {folder} {new}", "is a directory; name a file in it"),
        ("--size 9 {small} {folder}/none/new", "cannot write .*none/new: No such file or directory; choose a path"),
        ("--size 9 {small} {small} {new}", "new is not a folder, but there are 2 files: name a folder"),
        ("--size 9 {small} {small}", "small.gz already exists: name another file"),
        ("--size 9 {small} {folder}", "small.gz already exists: name another file"),
        ("--size 9 {small} {small} {other}", "two of the files would become .*small.gz: resize them one by one"),
    ],
)
def test_bad_options_give_one_line_and_no_file(arguments: str, pattern: str, small: Path, refused: Stays) -> None:
    folder = small.parent
    (folder / "other").mkdir()
    filled = arguments.format(small=small, new=folder / "new", folder=folder, other=folder / "other")
    refused(pattern, *filled.split())


@pytest.mark.parametrize("target", ["", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"])
def test_files_of_the_split_are_not_overwritten(
    target: str, small: Path, monkeypatch: pytest.MonkeyPatch, refused: Stays
) -> None:
    folder = small.parent
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"the original")
    found = fashion_mnist.Split(SMALL, np.zeros(len(SMALL), np.uint8), folder)
    monkeypatch.setattr(fashion_mnist, "open_split", lambda *_: found)
    refused("ubyte.* already exists: name another", "--size", 9, "--split", "test", folder / target)


@pytest.mark.parametrize("how", ["dangling link", "hard link to an input"])
def test_existing_files_are_not_overwritten(how: str, small: Path, refused: Stays) -> None:
    first, second, out = small.with_name("first.gz"), small.with_name("second.gz"), small.with_name("out")
    out.mkdir()
    write_idx(first, SMALL)
    write_idx(second, SMALL)
    if how == "dangling link":
        (out / "second.gz").symlink_to("none")
    else:
        (out / "second.gz").hardlink_to(first)
    refused(".gz already exists: name another file or folder, or remove it first", "--size", 9, first, second, out)


def test_results_beyond_the_limit_are_refused(small: Path, monkeypatch: pytest.MonkeyPatch, refused: Stays) -> None:
    monkeypatch.setattr(enlarge, "read_images", lambda _: np.empty((MAX_BYTES // 1024**2 + 1, 1, 1, 1), np.uint8))
    wrong = "2,049 images of 1024 x 1024 are more than .*choose a smaller --size"
    refused(wrong, "--size", 1024, small, small.with_name("new"))


def test_parts_must_fill_the_shape(tmp_path: Path) -> None:
    for parts in ([SMALL[:3]], [SMALL, SMALL]):
        with pytest.raises(ValueError, match="bytes short of the shape"):
            write_idx_parts(tmp_path / "new", SMALL.shape, parts)
    with pytest.raises(ValueError, match="not float64"):
        write_idx_parts(tmp_path / "new", SMALL.shape, [SMALL.astype(float)])
    assert not list(tmp_path.iterdir())
