"""Every kind of picture is read to 8-bit grey or colours, or refused in one line, before it costs memory."""

import io
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.base.errors import UserError
from app.images.pictures.reading import UnreadablePicture, read_picture
from tests.support.pictures import BOMBS, GREY, GROUND, HEIGHT, KINDS, RGB, WIDTH, L, cut, png, saved


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_picture(name: str, tmp_path: Path) -> None:
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
def test_a_bomb_is_refused_before_it_is_decoded(name: str, tmp_path: Path) -> None:
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


def test_the_limit_is_the_callers(tmp_path: Path) -> None:
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
def test_what_is_no_picture(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "new\nline.png"
    path.write_bytes(content)
    with pytest.raises(UnreadablePicture, match=rf"/new\\nline\.png {reason}") as caught:
        read_picture(path)
    assert str(caught.value).isprintable()


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "is a directory"), (tmp_path / "a\nb", r"a\\nb does not exist")):
        with pytest.raises(UnreadablePicture, match=reason):
            read_picture(path)


def test_a_limit_of_memory_is_the_pictures_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(saved(L, "PNG"))

    def short(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image, "open", short)
    with pytest.raises(UnreadablePicture, match=r"a\.png needs more memory than there is"):
        read_picture(tmp_path / "a.png")


def test_pillow_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"needs Pillow: pip install 'Pillow>=[\d.]+'$") as caught:
        read_picture(tmp_path / "a.png")
    assert not isinstance(caught.value, UnreadablePicture)


def test_warnings_of_pillow_reach_nobody(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Palette with transparency in bytes, and EXIF data cut off: both are odd, and both are read."""
    file = io.BytesIO()
    RGB.quantize(32).save(file, "PNG", transparency=bytes([0, 128] * 16))
    (tmp_path / "a.png").write_bytes(file.getvalue())
    (tmp_path / "b.jpg").write_bytes(saved(RGB, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x09\0\x12\x01"))
    assert [read_picture(tmp_path / name).size for name in ("a.png", "b.jpg")] == [RGB.size, RGB.size]
    assert capfd.readouterr() == ("", "")
