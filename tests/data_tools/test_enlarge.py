"""Test ``python -m data_tools resize``: the files that it writes, and the inputs that it refuses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.layers import Resize
from data_tools import enlarge, fashion_mnist
from data_tools.__main__ import main
from data_tools.idx import MAX_BYTES, read_idx, write_idx, write_idx_parts
from tests.support.shell import Refuses, listing
from tests.support.tiny_fashion import IMAGES, NAMES, write

Stays = Callable[..., None]
SMALL = np.random.default_rng(5).integers(0, 256, (7, 9, 6), dtype=np.uint8)


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """(N, size, size), by the layer."""
    return Resize("resize", size).reference(images[:, None], {})[:, 0]


def command(*arguments: object) -> int:
    return main(["resize", *map(str, arguments)])


@pytest.fixture
def stays(small: Path, refuses: Refuses) -> Stays:
    """Runs the command, which must be refused and change nothing beside the small file."""

    def check(pattern: str, *arguments: object) -> None:
        before = listing(small.parent)
        refuses(["resize", *arguments], pattern, main)
        assert listing(small.parent) == before

    return check


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file of seven images."""
    write_idx(tmp_path / "small.gz", SMALL)
    return tmp_path / "small.gz"


@pytest.mark.parametrize("name", ["large", "large.gz"])
def test_a_file(name: str, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the layer's bits, however the images are cut; gzipped by its name, to the same bytes each time."""
    target = small.with_name(name)
    assert command("--size", 13, small, target) == 0
    assert capsys.readouterr() == (f"{target}: 7 images of 13 x 13\n", "")
    np.testing.assert_array_equal(read_idx(target, 3), resized(SMALL, 13))
    before = target.read_bytes()
    assert before.startswith(b"\x1f\x8b") == name.endswith(".gz")
    monkeypatch.setattr(enlarge, "CHUNK", 2)
    target.unlink()
    assert command("--size", 13, small, target) == 0
    assert target.read_bytes() == before


def test_several_files_keep_their_names(small: Path, tmp_path: Path) -> None:
    write_idx(tmp_path / "other", SMALL[:2])
    folder = tmp_path / "folder"
    folder.mkdir()
    assert command(small, tmp_path / "other", folder, "--size", 4) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["other", "small.gz"]
    np.testing.assert_array_equal(read_idx(folder / "small.gz", 3), resized(SMALL, 4))
    np.testing.assert_array_equal(read_idx(folder / "other", 3), resized(SMALL[:2], 4))


@pytest.mark.usefixtures("cache")
def test_a_split(tmp_path: Path) -> None:
    write(tmp_path / "system")
    (tmp_path / "folder").mkdir()
    assert command("--size", 70, "--split", "test", tmp_path / "test70") == 0
    assert command("--split", "test", "--data-dir", tmp_path / "system", "--size", 70, tmp_path / "folder") == 0
    for path in (tmp_path / "test70", tmp_path / "folder" / f"{NAMES[0]}.gz"):
        np.testing.assert_array_equal(read_idx(path, 3), resized(IMAGES, 70))


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_is_left_half_written(
    failure: BaseException, small: Path, monkeypatch: pytest.MonkeyPatch, stays: Stays
) -> None:
    reference, calls = Resize.reference, []

    def failing(self: Resize, x: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
        calls.append(x)
        if len(calls) == 3:
            raise failure
        return reference(self, x, parameters)

    monkeypatch.setattr(enlarge, "CHUNK", 2)
    monkeypatch.setattr(Resize, "reference", failing)
    stays("(interrupted|No space left)", "--size", 13, small, small.with_name("large"))
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("--size 0 {small} {new}", r"--size 0 is not between 1 and 1,024"),
        ("--size 1025 {small} {new}", r"--size 1025 is not between"),
        ("--size x {small} {new}", "invalid int value: 'x'"),
        ("{small} {new}", "required: --size"),
        ("--size 9", "required: FILE"),
        ("--size 9 {small}", r"nothing to resize: name a file before .*small.gz, or say --split test"),
        ("--size 9 --split test {small} {new}", r"--split test and .*small.gz: name one or the other"),
        ("--size 9 --data-dir {folder} {small} {new}", "--data-dir is for --split"),
        ("--size 9 {folder}/none {new}", "none does not exist; check the name"),
        ("--size 9 {folder} {new}", "is a directory; name a file in it"),
        ("--size 9 {small} {folder}/none/new", "cannot write .*none/new: No such file or directory; choose a place"),
        ("--size 9 {small} {small} {new}", "new is not a folder, but there are 2 files: name a folder"),
        ("--size 9 {small} {small}", "small.gz is there already: name another file"),
        ("--size 9 {small} {folder}", "small.gz is there already: name another file"),
        ("--size 9 {small} {small} {other}", "two of the files would become .*small.gz: resize them one by one"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(arguments: str, pattern: str, small: Path, stays: Stays) -> None:
    folder = small.parent
    (folder / "other").mkdir()
    filled = arguments.format(small=small, new=folder / "new", folder=folder, other=folder / "other")
    stays(pattern, *filled.split())


@pytest.mark.parametrize("target", ["", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"])
def test_the_split_itself_is_not_written_over(
    target: str, small: Path, monkeypatch: pytest.MonkeyPatch, stays: Stays
) -> None:
    folder = small.parent
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"the original")
    found = fashion_mnist.Split(SMALL, np.zeros(len(SMALL), np.uint8), folder)
    monkeypatch.setattr(fashion_mnist, "open_split", lambda *_: found)
    stays("ubyte.* is there already: name another", "--size", 9, "--split", "test", folder / target)


@pytest.mark.parametrize("how", ["file", "link", "dangling link", "hard link to an input"])
def test_nothing_that_is_there_is_written_over(how: str, small: Path, stays: Stays) -> None:
    """Whatever it is: an input of this run, or the target of another."""
    first, second, out = small.with_name("first.gz"), small.with_name("second.gz"), small.with_name("out")
    out.mkdir()
    write_idx(first, SMALL)
    write_idx(second, SMALL)
    target = out / "second.gz"
    if how == "file":
        target.touch(0o600)
    elif how in ("link", "dangling link"):
        target.symlink_to(first if how == "link" else "none")
    elif how == "hard link to an input":
        target.hardlink_to(first)
    stays(".gz is there already: name another file or folder, or remove it first", "--size", 9, first, second, out)


def test_an_input_that_an_earlier_target_would_become(small: Path, stays: Stays) -> None:
    out, link = small.with_name("out"), small.with_name("link")
    out.mkdir()
    link.symlink_to(out / small.name)
    stays("link does not exist", "--size", 9, small, link, out)


def test_more_than_a_file_may_hold(small: Path, monkeypatch: pytest.MonkeyPatch, stays: Stays) -> None:
    monkeypatch.setattr(enlarge, "read_idx", lambda *_: np.empty((MAX_BYTES // 1024**2 + 1, 1, 1), np.uint8))
    wrong = "2,049 images of 1024 x 1024 are more than .*choose a smaller --size"
    stays(wrong, "--size", 1024, small, small.with_name("new"))


def test_parts_must_make_the_whole(tmp_path: Path) -> None:
    for parts in ([SMALL[:3]], [SMALL, SMALL]):
        with pytest.raises(ValueError, match="bytes short of the shape"):
            write_idx_parts(tmp_path / "new", SMALL.shape, parts)
    with pytest.raises(ValueError, match="not float64"):
        write_idx_parts(tmp_path / "new", SMALL.shape, [SMALL.astype(float)])
    assert not list(tmp_path.iterdir())
