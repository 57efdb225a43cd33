"""Find picture files in folders, in lists of files, and among the names that a user gave."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from app.base.errors import UserError
from app.files.formats import START_BYTES, recognise
from app.files.hdf5 import printable
from app.files.reading import read_file

LIST = ".txt"
MAX_LIST_BYTES = 64 << 20
BINARY = re.compile(rb"[\x01-\x08\x0e-\x1f]")  # pictures begin with such bytes, file names hardly ever
# Endings of the files that are taken from a folder.
READ = (".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".pbm")
# Pictures that cannot be read. They are found, so that reading reports them.
UNREAD = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2")


def find_pictures(paths: Iterable[Path | str]) -> list[Path]:
    """Return the picture files that these paths name, in the order given; a file named twice comes twice.

    A folder stands for the pictures in it and its subfolders, by their endings: in natural order (2 before 10), without
    hidden files and folders. A .txt file lists files and folders, one a line, or separated by zero bytes (``find
    -print0``); ``-`` is such a list on standard input. Relative names in a list start from the working directory. Any
    other name is taken as a picture, whether it exists or not: reading it reports what is wrong.

    Raises UserError for a list or a folder that cannot be read, and for a folder without pictures.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if str(path) == "-":
            found += _listed(_standard_input(), "standard input")
        elif path.suffix.lower() == LIST and not _is_folder(path):
            found += _listed(read_file(path, MAX_LIST_BYTES), printable(str(path)))
        else:
            found += _pictures(path)
    return found


def _standard_input() -> bytes:
    try:
        content = sys.stdin.buffer.read(MAX_LIST_BYTES + 1)
    except (AttributeError, OSError) as error:  # it is closed, or a folder
        raise UserError("cannot read a list from standard input: pipe one in, or name a file") from error
    if len(content) > MAX_LIST_BYTES:
        raise UserError(f"standard input has more than the {MAX_LIST_BYTES:,} bytes that are read: split the list")
    return content


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, or in a closed folder: reading it reports the error
        return False


def _listed(content: bytes, where: str) -> Iterator[Path]:
    """Yield the pictures that a list names. Raises UserError, naming ``where``, if the content is a picture itself."""
    start = content[:START_BYTES]
    kind = recognise(start) or ""
    if kind.endswith(" picture") and BINARY.search(start):
        raise UserError(f"{where} is {kind}, not a list of files: name the picture itself")
    separator = b"\0" if b"\0" in content else b"\n"
    for line in content.split(separator):
        name = os.fsdecode(line if separator == b"\0" else line.removesuffix(b"\r"))
        if name.strip():
            yield from _pictures(Path(name))


def _pictures(path: Path) -> Iterator[Path]:
    """Yield the path itself, or the pictures in and below the folder."""
    if not _is_folder(path):
        yield path
        return
    count = 0
    for folder, folders, names in os.walk(path, onerror=_raise):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_natural)
        for name in sorted((name for name in names if _is_picture(name)), key=_natural):
            count += 1
            yield Path(folder, name)
    if not count:
        raise UserError(f"{printable(str(path))} holds no pictures ({', '.join(READ)}): name another folder")


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith((*READ, *UNREAD))


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key: numbers by value, letters without case; the name itself decides between equals."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return [(int(part) if at % 2 else 0, "" if at % 2 else part) for at, part in enumerate(parts)], name


def _raise(error: OSError) -> None:
    where = printable(str(error.filename))
    raise UserError(f"cannot read the folder {where}: {error.strerror}; check its permissions") from error
