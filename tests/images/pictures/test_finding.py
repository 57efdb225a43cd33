"""Picture files are found in folders and lists, in natural order, whatever their names."""

import io
import os
import sys
from pathlib import Path

import pytest

from app.base.errors import UserError
from app.images.pictures import finding
from app.images.pictures.finding import UNREAD, find_pictures
from app.images.pictures.reading import UnreadablePicture, read_picture

ODD = ("new\nline.png", "Größe 日本.JPG", os.fsdecode(b"\xff\xfe.png"))


def make(folder: Path, *names: str) -> list[Path]:
    """Empty files: finding looks at names only."""
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_a_folder_gives_its_pictures_in_natural_order(tmp_path: Path) -> None:
    wanted = make(tmp_path, "2.png", "10.PNG", "A9.jpeg", "a10.jpg", "s/1.webp", "s/t/b.gif", "s10/x.bmp")
    make(tmp_path, ".hidden.png", ".git/x.png", "notes.txt", "table.csv", "s/Thumbs.db")
    assert find_pictures([tmp_path]) == wanted
    assert find_pictures([str(wanted[3]), tmp_path / "s"]) == [wanted[3], *wanted[4:6]]


def test_pictures_that_cannot_be_read_are_not_left_out_in_silence(tmp_path: Path) -> None:
    wanted = make(tmp_path, *(f"photo{ending}" for ending in sorted(UNREAD)))
    assert sorted(find_pictures([tmp_path])) == wanted


def test_names_of_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = make(tmp_path / "p", *ODD)
    assert sorted(find_pictures([tmp_path / "p"])) == sorted(wanted)
    zeros = b"\0".join(os.fsencode(path) for path in wanted)
    (tmp_path / "list.txt").write_bytes(zeros)
    assert find_pictures([tmp_path / "list.txt"]) == wanted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(zeros)))
    assert find_pictures(["-"]) == wanted


def test_a_list_names_files_and_folders_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "s/1.png", "s/2.png", "other")
    Path("lists").mkdir()
    Path("lists/of.TXT").write_text("other\r\n\n  \nmissing.png\r\ns\n")
    assert find_pictures(["lists/of.TXT"]) == [Path(name) for name in ("other", "missing.png", "s/1.png", "s/2.png")]


def test_names_that_the_system_refuses_are_left_to_reading(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("x" * 5000 + "\n" + "y" * 300 + "/1.png\n")
    for path in find_pictures([tmp_path / "list.txt"]):
        with pytest.raises(UnreadablePicture, match="File name too long"):
            read_picture(path)


@pytest.mark.parametrize("closed", [None, io.StringIO()])
def test_standard_input_without_a_list(closed: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", closed)
    with pytest.raises(UserError, match="cannot read a list from standard input: pipe one in"):
        find_pictures(["-"])


def test_a_picture_is_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that begin like one are."""
    content = b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(UserError, match=r"standard input is a JPEG picture, not a list of files: name the picture"):
        find_pictures(["-"])
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"list.txt is a JPEG picture, not a list of files: name the picture"):
        find_pictures([tmp_path / "list.txt"])
    (tmp_path / "list.txt").write_bytes(b"GIF89a.gif\0b.png\0")
    assert find_pictures([tmp_path / "list.txt"]) == [Path("GIF89a.gif"), Path("b.png")]


def test_too_long_a_list_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MAX_LIST_BYTES", 9)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0123456789")))
    with pytest.raises(UserError, match="more than the 9 bytes that are read: split the list"):
        find_pictures(["-"])


def test_a_list_of_fifty_thousand_keeps_its_order(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(50_000, 0, -1)]
    (tmp_path / "list.txt").write_text("\n".join(names))
    assert [*map(str, find_pictures([tmp_path / "list.txt"]))] == names


def test_what_cannot_be_searched_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "empty\n/notes.md")
    with pytest.raises(UserError, match=r"empty\\n holds no pictures \(\.png, .*: name another folder$"):
        find_pictures([tmp_path / "empty\n"])
    with pytest.raises(UserError, match=r"list\.txt does not exist"):
        find_pictures([tmp_path / "list.txt"])

    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(UserError, match=r"cannot read the folder .*: Permission denied; check its permissions$"):
        find_pictures([tmp_path])
