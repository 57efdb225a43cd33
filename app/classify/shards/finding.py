"""Find the files of shards, and the files of labels beside them."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from app.base.errors import UserError
from app.files.reading import present, read_file

MAX_LIST_BYTES = 64 << 20
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"  # in the data set's names of files


def find_shards(arguments: Iterable[str]) -> list[Path]:
    """Return the files that the arguments name, in their order.

    An argument is a file, a pattern such as ``'day-*/part-?.npy'`` (its files in sorted order), or ``@LIST``: a text
    file with the path of one file in each line. Raises UserError for an argument that names nothing, and for a file
    that is named twice.
    """
    found = [path for argument in arguments for path in _named(argument)]
    seen: set[str] = set()
    for path in found:
        real = os.path.realpath(path)
        if real in seen:
            raise UserError(f"{path} is named twice: name each shard once")
        seen.add(real)
    return found


def _named(argument: str) -> list[Path]:
    if not argument:  # Path("") is this folder
        raise UserError("an empty SHARD names nothing: name a file")
    if argument.startswith("@"):
        lines = os.fsdecode(read_file(Path(argument[1:]), MAX_LIST_BYTES)).split("\n")
        listed = [Path(line.strip()) for line in lines if line.strip()]
        if not listed:
            raise UserError(f"{argument[1:]} names no shard: write the path of one in each line")
        return listed
    if present(Path(argument)) or not glob.has_magic(argument):
        return [Path(argument)]
    matching = glob.glob(argument, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    paths = [Path(path) for path in sorted(matching) if Path(path).is_file()]
    if not paths:
        raise UserError(f"{argument} matches no file; check the pattern")
    return paths


def labels_beside(path: Path) -> Path | None:
    """Return the file of labels beside an IDX file of images by the data set's names, plain or gzipped, if it exists.

    ``t10k-images-idx3-ubyte.gz`` has its labels in ``t10k-labels-idx1-ubyte.gz``.
    """
    if IMAGES not in path.name:
        return None
    name = path.name.replace(IMAGES, LABELS)
    other = name.removesuffix(".gz") if name.endswith(".gz") else f"{name}.gz"
    return next((path.with_name(each) for each in (name, other) if present(path.with_name(each))), None)
