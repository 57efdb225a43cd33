"""Find picture files in folders, in lists of files, and among the names that a user gave."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import cast

from app.base.errors import UserError
from app.files.hdf5 import printable_line
from app.files.reading import START_BYTES, read_file, recognise_file_kind

LIST_ENDING = ".txt"
MAX_LIST_BYTES = 64 << 20
STANDARD_INPUT = "standard input"
BINARY = re.compile(rb"[\x01-\x08\x0e-\x1f]")  # bytes at the beginning of pictures, but hardly ever in file names
# Endings of the files that are taken from a folder.
READABLE_ENDINGS = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".pbm")
# Pictures that cannot be read. They are found, so that reading reports them.
UNREADABLE_ENDINGS = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2")


def find_pictures(paths: Iterable[Path | str]) -> list[Path]:
    """Return the picture files that the paths name, in their order; a file named twice is returned twice.

    A folder stands for the pictures in it and its subfolders, recognised by suffix: in natural order (2 before 10),
    without hidden files and folders. A .txt file lists files and folders, one a line, or separated by zero bytes
    (``find -print0``); ``-`` is such a list on standard input. Relative names in a list start from the working
    directory. Any other path counts as a picture, even if it does not exist: reading it reports the fault.

    Raises UserError for a list or a folder that cannot be read, and for a folder without pictures.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if str(path) == "-":
            found += _find_listed_pictures([b"".join(_read_stdin_chunks(MAX_LIST_BYTES))], STANDARD_INPUT)
        elif path.suffix.lower() == LIST_ENDING and not _is_folder(path):
            found += _find_listed_pictures([read_file(path, MAX_LIST_BYTES)], printable_line(str(path)))
        else:
            found += _find_in_folder(path)
    return found


def stream_stdin_names() -> Iterator[str]:
    """Yield each file name on standard input when its end, a newline or a zero byte, arrives. Raises UserError."""
    return _split_file_names(_read_stdin_chunks(sys.maxsize), STANDARD_INPUT)


def _read_stdin_chunks(most: int) -> Iterator[bytes]:
    """Yield the bytes of standard input as they arrive. Raises UserError, also if there are more than ``most``."""
    count = 0
    try:
        while piece := cast(BufferedReader, sys.stdin.buffer).read1():
            count += len(piece)
            if count > most:
                raise UserError(f"standard input has more than the {most:,} bytes that are read: split the list")
            yield piece
    except (AttributeError, OSError) as error:  # it is closed, or a folder
        raise UserError("cannot read a list from standard input: pipe one in, or name a file") from error


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, or in a closed folder: reading it reports the error
        return False


def _find_listed_pictures(pieces: Iterable[bytes], where: str) -> Iterator[Path]:
    """Yield the pictures that a list names, and those in folders that it names. where: name of the list in errors."""
    for name in _split_file_names(pieces, where):
        yield from _find_in_folder(Path(name))


def _split_file_names(pieces: Iterable[bytes], where: str) -> Iterator[str]:
    """Yield the names in a list. Raises UserError, which names ``where``, if the content is a picture instead.

    pieces: the content, in pieces of any length. Names end at zero bytes if one occurs in the first
    piece that contains a zero byte or a newline, otherwise at newlines.
    """
    left, separator = b"", None
    for piece in pieces:
        left += piece
        if separator is None:
            kind = recognise_file_kind(left[:START_BYTES]) or ""
            if kind.endswith(" picture") and BINARY.search(left[:START_BYTES]):
                raise UserError(f"{where} is {kind}, not a list of files: name the picture itself")
            separator = next((end for end in (b"\0", b"\n") if end in left), None)
        *lines, left = left.split(separator) if separator else [left]
        yield from _decode_file_names(lines, separator)
    yield from _decode_file_names([left], separator)


def _decode_file_names(lines: Iterable[bytes], separator: bytes | None) -> Iterator[str]:
    for line in lines:
        name = os.fsdecode(line if separator == b"\0" else line.removesuffix(b"\r"))
        if name.strip():
            yield name


def _find_in_folder(path: Path) -> Iterator[Path]:
    """Yield the path itself, or, if it is a folder, the pictures in it and its subfolders. Raises UserError."""
    if not _is_folder(path):
        yield path
        return
    count = 0
    for folder, folders, names in os.walk(path, onerror=_raise_folder_error):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_natural_sort_key)
        for name in sorted((name for name in names if _is_picture(name)), key=_natural_sort_key):
            count += 1
            yield Path(folder, name)
    if not count:
        raise UserError(
            f"{printable_line(str(path))} holds no pictures ({', '.join(READABLE_ENDINGS)}): name another folder"
        )


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith((*READABLE_ENDINGS, *UNREADABLE_ENDINGS))


def _natural_sort_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key that orders numbers by value and ignores case; equal keys are ordered by the name itself."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return [(int(part) if at % 2 else 0, "" if at % 2 else part) for at, part in enumerate(parts)], name


def _raise_folder_error(error: OSError) -> None:
    where = printable_line(str(error.filename))
    raise UserError(f"cannot read the folder {where}: {error.strerror}; check its permissions") from error
