"""Test that picture files are found in folders and lists, and read as 8-bit grey or RGB, or refused in one line."""

import io
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.base.errors import UserError
from app.images.pictures import finding
from app.images.pictures.finding import UNREADABLE_ENDINGS, _split_file_names, find_pictures
from app.images.pictures.reading import UnreadablePicture, read_picture
from tests.support.pictures import BOMBS, GREY, GROUND, HEIGHT, KINDS, RGB, WIDTH, L, cut, png, saved


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_picture_is_read(name: str, tmp_path: Path) -> None:
    make, ground, frames = KINDS[name]
    path = tmp_path / name
    path.write_bytes(make())
    image = read_picture(path)
    assert image.mode in ("L", "RGB") and image.size == (WIDTH, HEIGHT) and image.info == {"frames": frames}
    expected = np.where(GREY == GROUND, ground, GREY).astype(int)
    if name.startswith("bits"):
        expected = np.asarray(L.convert("1")).astype(int) * 255
    error = np.abs(np.asarray(image.convert("L")).astype(int) - expected)
    # At edges, JPEG is off by more; a palette of 32 colours merges some.
    assert np.median(error) <= 1 and np.quantile(error, 0.95) <= (8 if name.endswith(("jpg", "gif")) else 3)


def test_large_photos_are_decoded_at_a_fraction(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(saved(RGB.resize((4096, 2048)), "JPEG"))
    assert read_picture(tmp_path / "a.jpg").size == (1024, 512)


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bomb_is_refused_before_decoding(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(BOMBS[name])
    reason = "has [0-9,]{13,} pixels, more than the 100,000,000 that are read"
    if name.endswith("webp"):
        reason += "|is damaged"  # older versions of Pillow leave it to the library to refuse the size
    tracemalloc.start()
    try:
        with pytest.raises(UnreadablePicture, match=rf"{name} ({reason})"):
            read_picture(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_limit_of_pixels_is_an_argument(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(saved(L, "PNG"))
    assert read_picture(tmp_path / "a.png", WIDTH * HEIGHT).size == (WIDTH, HEIGHT)
    with pytest.raises(UnreadablePicture, match="has 80 × 60 pixels, more than the 4,799 that are read: make it small"):
        read_picture(tmp_path / "a.png", WIDTH * HEIGHT - 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty: copy it again"),
        (b"hello\n", "is no picture but a text file: convert it"),
        (b"%PDF-1.4", "is no picture but a PDF document: convert it"),
        (bytes(range(40)), "is no picture that can be read: convert it to PNG or JPEG"),
        (b"\0\0\0\x18ftypheic" + bytes(40), "is a HEIC picture, damaged or of an unsupported kind: save it again as"),
        (b"II*\0" + bytes(40), "is a TIFF picture, damaged or of an unsupported kind: save it again as PNG or JPEG"),
        (png(0, 5, 8, 2), "is a PNG picture, damaged or of an unsupported kind"),
        (b"Pf 2 2 -1\n" + bytes(16), "has pixels of 32-bit floating point: save it with 8 or 16 bits"),
        *((cut(RGB, kind), "is damaged .*: copy or save it again") for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP")),
    ],
)
def test_content_that_is_no_picture_is_named(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "new\nline.png"
    path.write_bytes(content)
    with pytest.raises(UnreadablePicture, match=rf"/new\\nline\.png {reason}") as caught:
        read_picture(path)
    assert str(caught.value).isprintable()


def test_folder_and_missing_file_are_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "is a directory"), (tmp_path / "a\nb", r"a\\nb does not exist")):
        with pytest.raises(UnreadablePicture, match=reason):
            read_picture(path)


def test_memory_error_is_reported_for_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(saved(L, "PNG"))

    def raise_memory_error(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image, "open", raise_memory_error)
    with pytest.raises(UnreadablePicture, match=r"a\.png needs more memory than there is"):
        read_picture(tmp_path / "a.png")


def test_warnings_of_pillow_are_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Read two odd pictures: a palette with bytes of transparency, and truncated EXIF data."""
    file = io.BytesIO()
    RGB.quantize(32).save(file, "PNG", transparency=bytes([0, 128] * 16))
    (tmp_path / "a.png").write_bytes(file.getvalue())
    (tmp_path / "b.jpg").write_bytes(saved(RGB, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x09\0\x12\x01"))
    assert [read_picture(tmp_path / name).size for name in ("a.png", "b.jpg")] == [RGB.size, RGB.size]
    assert capfd.readouterr() == ("", "")


# --- finding picture files


ODD = ("new\nline.png", "Größe 日本.JPG", os.fsdecode(b"\xff\xfe.png"))


def create_files(folder: Path, *names: str) -> list[Path]:
    """Create empty files, as finding looks at names only; return their paths."""
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_a_folder_gives_its_pictures_in_natural_order(tmp_path: Path) -> None:
    wanted = create_files(tmp_path, "2.png", "10.PNG", "A9.jpeg", "a10.jpg", "s/1.webp", "s/t/b.gif", "s10/x.bmp")
    create_files(tmp_path, ".hidden.png", ".git/x.png", "notes.txt", "table.csv", "s/Thumbs.db")
    assert find_pictures([tmp_path]) == wanted
    assert find_pictures([str(wanted[3]), tmp_path / "s"]) == [wanted[3], *wanted[4:6]]


def test_unreadable_formats_are_found_so_that_reading_reports_them(tmp_path: Path) -> None:
    wanted = create_files(tmp_path, *(f"photo{ending}" for ending in sorted(UNREADABLE_ENDINGS)))
    assert sorted(find_pictures([tmp_path])) == wanted


def test_names_of_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = create_files(tmp_path / "p", *ODD)
    assert sorted(find_pictures([tmp_path / "p"])) == sorted(wanted)
    zeros = b"\0".join(os.fsencode(path) for path in wanted)
    (tmp_path / "list.txt").write_bytes(zeros)
    assert find_pictures([tmp_path / "list.txt"]) == wanted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(zeros)))
    assert find_pictures(["-"]) == wanted


@pytest.mark.parametrize("content", [b"a b\r\n\n c\nlast", b"GIF89a.gif\0b\nc.png\0", b"\n", b""])
@pytest.mark.parametrize("length", [2, 3, 50])
def test_names_do_not_depend_on_how_the_input_is_split(content: bytes, length: int) -> None:
    pieces = [content[at : at + length] for at in range(0, len(content), length)]
    assert [*_split_file_names(pieces, "")] == [*_split_file_names([content], "")]


def test_a_list_names_files_and_folders_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create_files(tmp_path, "s/1.png", "s/2.png", "other")
    Path("lists").mkdir()
    Path("lists/of.TXT").write_text("other\r\n\n  \nmissing.png\r\ns\n")
    assert find_pictures(["lists/of.TXT"]) == [Path(name) for name in ("other", "missing.png", "s/1.png", "s/2.png")]


def test_too_long_names_fail_only_when_read(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("x" * 5000 + "\n" + "y" * 300 + "/1.png\n")
    for path in find_pictures([tmp_path / "list.txt"]):
        with pytest.raises(UnreadablePicture, match="File name too long"):
            read_picture(path)


@pytest.mark.parametrize("stdin", [None, io.StringIO()])
def test_closed_standard_input_is_refused(stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UserError, match="cannot read a list from standard input: pipe one in"):
        find_pictures(["-"])


def test_picture_in_place_of_a_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list whose first name begins like the content of a picture is accepted."""
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


def test_errors_of_folders_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_files(tmp_path, "empty\n/notes.md")
    with pytest.raises(UserError, match=r"empty\\n holds no pictures \(\.png, .*: name another folder$"):
        find_pictures([tmp_path / "empty\n"])
    with pytest.raises(UserError, match=r"list\.txt does not exist"):
        find_pictures([tmp_path / "list.txt"])

    def deny(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", deny)
    with pytest.raises(UserError, match=r"cannot read the folder .*: Permission denied; check its permissions$"):
        find_pictures([tmp_path])
