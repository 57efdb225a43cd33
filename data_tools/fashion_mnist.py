"""Find, verify and fetch the files of Fashion-MNIST.

The data set has 10 classes of 28×28 grey images (Xiao, Rasul and Vollgraf, 2017,
https://github.com/zalandoresearch/fashion-mnist). The program checks the SHA-256 of a file's whole content before it
uses the file.
"""

import math
import os
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from app.base.errors import UserError, escape_unprintable, print_to_stderr
from app.base.frozen import Frozen
from app.files.cache import cache_dir, create_private_folder
from app.files.reading import may_exist
from app.files.writing import replace_atomically, temporary_path_beside
from data_tools.idx import Allocate, allocate_pageable, content_sha256, read_idx

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


class DataFile(Frozen):
    """An IDX file of Fashion-MNIST. sha256: of the uncompressed content: mirrors may compress it in different ways."""

    name: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Return the size of the uncompressed file."""
        return 4 + 4 * len(self.shape) + math.prod(self.shape)


def _data_files_of_split(prefix: str, count: int, images: str, labels: str) -> tuple[DataFile, DataFile]:
    return (
        DataFile(f"{prefix}-images-idx3-ubyte", (count, 28, 28), images),
        DataFile(f"{prefix}-labels-idx1-ubyte", (count,), labels),
    )


SPLITS = {  # name → files of the images and of the labels
    "test": _data_files_of_split(
        "t10k",
        10_000,
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "train": _data_files_of_split(
        "train",
        60_000,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
}
MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
DEBIAN_PACKAGE = "dataset-fashion-mnist"
PACKAGE_PATH = "usr/share/datasets/fashion-mnist"
SYSTEM_DIR = Path("/", PACKAGE_PATH)
DIR_VARIABLE = "FASHION_MNIST_DIR"


class Split(NamedTuple):
    """The verified content of a split: images (N, 28, 28) uint8, labels (N,) uint8, and the files' directory."""

    images: np.ndarray
    labels: np.ndarray
    directory: Path


def start_reading_split(split: str, data_dir: Path | None = None) -> None:
    """Start to read an existing split in another thread; a later ``open_split`` waits for it and returns the result."""
    directory = find_split_directory(split, data_dir)
    if directory is not None:
        with suppress(RuntimeError):  # the system starts no more threads
            _ahead[split, directory] = ThreadPoolExecutor(1).submit(_read_split, split, directory)


def find_split_directory(split: str, data_dir: Path | None = None) -> Path | None:
    """Return the first of ``search_dirs`` that contains the split's files; None if none does. It checks no content."""
    directories = search_dirs(data_dir)
    return next((one for one in directories if all(existing_copies(file, one) for file in SPLITS[split])), None)


def open_split(split: str, data_dir: Path | None = None, allocate: Allocate | None = None) -> Split:
    """Return ``split``, "test" or "train", from the first of ``search_dirs`` that has it; fetch it if none does.

    data_dir: the only directory to search. allocate: returns memory for the images. A bad file is skipped, with a
    warning, unless ``data_dir`` or ``$FASHION_MNIST_DIR`` names its directory. Raises UserError if the data is missing,
    wrong or cannot be fetched.
    """
    if data_dir is not None:
        return _take_or_read_split(split, data_dir, allocate)
    for directory in search_dirs(None):
        pointed_to = directory == _environment_dir()
        if all(existing_copies(file, directory) for file in SPLITS[split]):
            try:
                return _take_or_read_split(split, directory, allocate)
            except UserError as error:
                if pointed_to:
                    raise
                print_to_stderr(f"warning: ignoring a bad file: {error}")
        elif pointed_to:
            print_to_stderr(f"warning: {DIR_VARIABLE}={directory} lacks the {split} split; looking elsewhere")
    return _read_split(split, fetch_split(split), allocate)


_ahead: dict[tuple[str, Path], Future[Split]] = {}  # splits that another thread reads, by name and folder


def _environment_dir() -> Path | None:
    variable = os.environ.get(DIR_VARIABLE)
    return Path(variable) if variable else None


def search_dirs(data_dir: Path | None) -> tuple[Path, ...]:
    """Return the directories to search: ``data_dir`` if given; else $FASHION_MNIST_DIR, the cache and SYSTEM_DIR."""
    if data_dir is not None:
        return (data_dir,)
    variable = _environment_dir()
    return (*([variable] if variable else []), cache_dir() / "fashion-mnist", SYSTEM_DIR)


def existing_copies(file: DataFile, directory: Path) -> list[Path]:
    """Return the paths of the copies of ``file`` in ``directory``, gzipped or plain, without checking their content."""
    return [path for path in (directory / f"{file.name}.gz", directory / file.name) if may_exist(path)]


def read_verified_file(path: Path, file: DataFile, allocate: Allocate | None = None) -> np.ndarray:
    """Return the array in the file ``path``. Raises UserError unless its content has the SHA-256 of ``file``."""
    array = read_idx(path, len(file.shape), file.shape[0], allocate or allocate_pageable)
    if array.shape != file.shape or content_sha256(array) != file.sha256:
        raise UserError(f"{path} is not the original {file.name} (its SHA-256 differs); get a fresh copy")
    return array


def _read_copy(file: DataFile, directory: Path, allocate: Allocate | None = None) -> np.ndarray:
    """Return the first copy of ``file`` in ``directory`` with the right SHA-256. Raises UserError if there is none."""
    failures = []
    for path in existing_copies(file, directory):
        try:
            return read_verified_file(path, file, allocate)
        except UserError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    remedy = f"put it there, or run: python -m data_tools fetch --data-dir {directory}"
    raise UserError(f"{file.name}.gz is not in {directory}, the directory given for Fashion-MNIST; {remedy}")


def _take_or_read_split(split: str, directory: Path, allocate: Allocate | None) -> Split:
    """Return the split from ``start_reading_split`` if that has read it; otherwise read it."""
    ahead = _ahead.pop((split, directory), None)
    if ahead is None or ahead.exception() is not None:
        return _read_split(split, directory, allocate)
    found = ahead.result()
    if allocate is None:
        return found
    images = allocate(found.images.nbytes).reshape(found.images.shape)
    np.copyto(images, found.images)
    return found._replace(images=images)


def _read_split(split: str, directory: Path, allocate: Allocate | None = None) -> Split:
    images, labels = SPLITS[split]
    return Split(_read_copy(images, directory, allocate), _read_copy(labels, directory), directory)


def recognise_split(images: np.ndarray, labels: np.ndarray | None) -> str | None:
    """Return the split that has exactly these uint8 images (N, 28, 28) and, if given, labels (N,); otherwise None."""
    for split, files in SPLITS.items():
        given = [(file, array) for file, array in zip(files, (images, labels), strict=True) if array is not None]
        if all(array.shape == file.shape and content_sha256(array) == file.sha256 for file, array in given):
            return split
    return None


def fetch_split(split: str, data_dir: Path | None = None) -> Path:
    """Download missing files of the split into ``data_dir`` (default: the cache); return the directory.

    Missing or bad files come from a mirror or, if no mirror works, from the Debian package. Several processes may call
    this at once. Raises UserError, of several lines, if no source works.
    """
    directory = (data_dir or cache_dir() / "fashion-mnist").absolute()
    missing = [file for file in SPLITS[split] if not _has_good_copy(file, directory)]
    if not missing:
        return directory
    try:
        if data_dir is None:
            create_private_folder(directory)  # like the rest of the cache, which also holds kernels
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        remedy = "set LENET_CACHE_DIR, or fetch's --data-dir, to a directory that you can write to"
        raise UserError(f"cannot store data in {directory}: {error.strerror}; {remedy}") from error
    print_to_stderr(f"fetching the {split} split of Fashion-MNIST into {directory}")
    failures: list[str] = []
    for source in (_download_from_mirrors, _copy_from_debian):
        if missing:
            missing = source(missing, directory, failures)
    if missing:
        lines = [
            "cannot get Fashion-MNIST: no source worked",
            *(f"  {failure}" for failure in failures),
            f"Put these files into {directory}, or name the directory that contains them with {DIR_VARIABLE}",
            "(gzipped or not, then without .gz; size and SHA-256 are those of the uncompressed content):",
            *(f"  {file.name}.gz  {file.nbytes} bytes  {file.sha256}" for file in missing),
        ]
        raise UserError(*lines)
    return directory


def _has_good_copy(file: DataFile, directory: Path) -> bool:
    try:
        _read_copy(file, directory)
    except UserError:
        return False
    return True


def _download_from_mirrors(files: list[DataFile], directory: Path, failures: list[str]) -> list[DataFile]:
    """Download ``files``; return those that no mirror had. Append the reasons to ``failures``.

    A mirror that failed is not asked for another file.
    """
    from data_tools import download

    probes = {mirror + files[0].name + ".gz": mirror for mirror in MIRRORS}
    silent = download.find_unreachable_urls(list(probes))
    failures += [f"{url}: {reason}" for url, reason in silent.items()]
    mirrors = [mirror for url, mirror in probes.items() if url not in silent]
    missing = list(files)
    for file in files:
        for mirror in list(mirrors):
            url = f"{mirror}{file.name}.gz"
            try:
                with replace_atomically(directory / f"{file.name}.gz") as temporary:
                    # 1,024 bytes more, because gzip can make data larger.
                    download.download_file(url, temporary, file.nbytes + 1024)
                    try:
                        read_verified_file(temporary, file)
                    except UserError as error:
                        what = str(error).replace(escape_unprintable(str(temporary)), "what it sent")
                        raise download.DownloadError(what) from error
            except download.DownloadError as error:
                failures.append(f"{url}: {error}")
                mirrors.remove(mirror)
            else:
                missing.remove(file)
                break
    return missing


def _copy_from_debian(files: list[DataFile], directory: Path, failures: list[str]) -> list[DataFile]:
    """Copy ``files`` and the other split from the Debian package; return those it lacks, append why to ``failures``."""
    from data_tools import download

    print_to_stderr(f"no mirror worked; getting the Debian package {DEBIAN_PACKAGE} with apt-get")
    stored = []
    scratch = temporary_path_beside(directory / "scratch")  # a later run removes the folder of a killed process
    try:
        scratch.mkdir()
        tree = download.unpack_debian_package(DEBIAN_PACKAGE, scratch)
        for file in (file for pair in SPLITS.values() for file in pair):
            for path in existing_copies(file, tree / PACKAGE_PATH):
                # Store the other split, too, but replace none of its files.
                if file not in files and existing_copies(file, directory):
                    continue
                with suppress(UserError):
                    read_verified_file(path, file)
                    path.replace(directory / path.name)
                    stored.append(file)
    except (download.DebianError, OSError) as error:
        failures.append(f"Debian package {DEBIAN_PACKAGE}: {error}")
        return files
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    missing = [file for file in files if file not in stored]
    failures += [f"Debian package {DEBIAN_PACKAGE}: no good copy of {file.name}" for file in missing]
    return missing
