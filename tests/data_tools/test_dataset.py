"""Test datasets from Fashion-MNIST and from the user's own IDX and HDF5 files."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.files.cache import cache_dir
from data_tools import dataset, fashion_mnist
from data_tools.dataset import load_fashion_mnist, load_files
from data_tools.fashion_mnist import CLASSES, open_split
from data_tools.idx import write_idx
from tests.support.hostile_hdf5 import write_hdf5
from tests.support.shell import user_error
from tests.support.tiny_fashion import IMAGES, LABELS, NAMES, check_loaded, write

RNG = np.random.default_rng(11)
PIXELS = RNG.integers(0, 256, (7, 5, 6, 3), np.uint8)  # N, H, W, C
NCHW = np.ascontiguousarray(PIXELS.transpose(0, 3, 1, 2))
TRUTH = np.array([3, 0, 9, 1, 1, 4, 2], np.uint8)
ONE_HOT = np.eye(10)[TRUTH]


def save_hdf5(directory: Path, **arrays: np.ndarray) -> Path:
    return write_hdf5(directory / "data.h5", arrays)


def save_idx(directory: Path, name: str, array: np.ndarray) -> Path:
    write_idx(directory / name, array)
    return directory / name


# --- where Fashion-MNIST is found


def test_environment_variables_set_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LENET_CACHE_DIR", "~/own")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.setenv("LENET_CACHE_DIR", "")
    assert cache_dir() == tmp_path / "xdg" / "lenet5-inference"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / ".cache" / "lenet5-inference"


def test_order_in_which_directories_are_searched(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, empty = write(tmp_path / "source"), tmp_path / "empty"
    empty.mkdir()
    np.testing.assert_array_equal(open_split("test", source).images, IMAGES)
    monkeypatch.setenv("FASHION_MNIST_DIR", str(source))
    check_loaded()
    with pytest.raises(UserError, match=rf"{NAMES[0]}.gz is not in {empty}"):
        open_split("test", empty)
    monkeypatch.setenv("FASHION_MNIST_DIR", str(empty))
    write(tmp_path / "system")
    check_loaded()
    assert f"FASHION_MNIST_DIR={empty} lacks the test split" in capsys.readouterr().err
    (empty / NAMES[0]).write_bytes(b"bad")
    (empty / NAMES[1]).write_bytes(b"bad")
    with pytest.raises(UserError, match=str(empty)):
        open_split("test")
    np.testing.assert_array_equal(open_split("test", source).images, IMAGES)


def test_the_cache_is_searched_before_the_system_directory(cache: Path, tmp_path: Path) -> None:
    write(tmp_path / "system")
    check_loaded()
    assert fashion_mnist.open_split("test").directory == tmp_path / "system" and not cache.exists()
    cache.parent.mkdir()
    write(cache)
    assert fashion_mnist.open_split("test").directory == cache


def test_a_bad_file_is_an_error_only_in_a_named_directory(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = save_idx(write(tmp_path / "system"), f"{NAMES[0]}.gz", IMAGES[::-1].copy())
    with pytest.raises(UserError, match=f"{bad} is not the original"):
        open_split("test", tmp_path / "system")
    with pytest.raises(UserError, match="no source worked"):
        open_split("test")
    assert capsys.readouterr().err.startswith(f"warning: ignoring a bad file: {bad} ")


def test_a_split_read_ahead_is_returned_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "source")
    fashion_mnist.start_reading_split("test", source)
    (ahead,) = fashion_mnist._ahead.values()
    ahead.result()
    with monkeypatch.context() as patch:
        patch.setattr(fashion_mnist, "_read_split", lambda *_: pytest.fail("read twice"))
        memory = np.zeros(IMAGES.nbytes, np.uint8)
        np.testing.assert_array_equal(open_split("test", source, lambda nbytes: memory[:nbytes]).images, IMAGES)
        assert memory.any()
    np.testing.assert_array_equal(open_split("test", source).images, IMAGES)


def test_faults_of_reading_ahead_are_reported_later(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fashion_mnist.start_reading_split("test")
    fashion_mnist.start_reading_split("test", tmp_path / "absent")
    assert not fashion_mnist._ahead
    bad = save_idx(write(tmp_path / "source"), f"{NAMES[0]}.gz", IMAGES[::-1].copy())
    fashion_mnist.start_reading_split("test", tmp_path / "source")
    with pytest.raises(UserError, match=f"{bad} is not the original"):
        open_split("test", tmp_path / "source")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_mnist_is_loaded_into_given_memory(suffix: str, cache: Path, tmp_path: Path) -> None:
    memory = np.zeros(IMAGES.size, np.uint8)
    data = load_fashion_mnist("test", write(tmp_path / "source", suffix), lambda nbytes: memory[:nbytes])
    np.testing.assert_array_equal(data.images, IMAGES[:, None])
    assert data.labels is not None and (data.labels == LABELS).all()
    assert data.images.flags.c_contiguous and np.shares_memory(data.images, memory)
    assert (data.classes, data.split) == (CLASSES, "test")
    assert data.source == f"Fashion-MNIST test split, {tmp_path / 'source'}"


# --- the user's own files


def test_idx_with_and_without_labels(tmp_path: Path) -> None:
    images, labels = save_idx(tmp_path, "images", PIXELS[..., 0].copy()), save_idx(tmp_path, "labels.gz", TRUTH)
    data = load_files(images, labels)
    np.testing.assert_array_equal(data.images, NCHW[:, :1])
    np.testing.assert_array_equal(data.labels, TRUTH)
    assert (data.classes, data.split, data.source) == (None, None, str(images))
    assert load_files(images, None).labels is None
    with pytest.raises(UserError, match=r"few has 6 labels but .*images has 7 images; name files that belong together"):
        load_files(images, save_idx(tmp_path, "few", TRUTH[:6]))


def test_idx_files_that_are_fashion_mnist_are_recognised(cache: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    images, labels = (source / f"{name}.gz" for name in NAMES)
    data = load_files(images, labels)
    assert (data.split, data.classes) == ("test", CLASSES)
    other = load_files(images, save_idx(tmp_path, "labels", LABELS[::-1].copy()))
    assert (other.split, other.classes) == (None, None)
    assert load_files(images, None).split == "test"


@pytest.mark.parametrize(
    "x",
    [
        PIXELS,
        PIXELS / 255.0,
        PIXELS.astype(np.float32) / np.float32(255),
        PIXELS.astype(np.float32) * np.float32(1 / 255),
        (PIXELS / 255.0).astype(">f4"),
        np.nextafter((PIXELS / 255.0).astype(np.float32), np.float32(0)),
    ],
    ids=["uint8", "float64", "float32", "times 1/255", "big-endian", "one rounding below"],
)
@pytest.mark.parametrize("y", [ONE_HOT, ONE_HOT.astype(np.uint8), TRUTH, TRUTH.astype(np.int64), TRUTH[:, None]])
def test_hdf5_floats_that_are_pixels_become_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, x: np.ndarray, y: np.ndarray
) -> None:
    monkeypatch.setattr(dataset, "CHUNK", 3)
    memory = np.zeros(PIXELS.size, np.uint8)
    data = load_files(save_hdf5(tmp_path, x=x, y=y), None, lambda nbytes: memory[:nbytes])
    assert data.images.dtype == np.uint8 and data.images.flags.c_contiguous and np.shares_memory(data.images, memory)
    np.testing.assert_array_equal(data.images, NCHW)
    assert data.labels is not None and data.labels.dtype == np.uint8
    np.testing.assert_array_equal(data.labels, TRUTH)


@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hdf5_floats_between_pixels_stay_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type, where: int
) -> None:
    monkeypatch.setattr(dataset, "CHUNK", 3)
    x: np.ndarray = (PIXELS / 255.0).astype(dtype)
    x[where, 2, 2, 0] = 0.5
    memory = np.zeros(4 * x.size, np.uint8)
    data = load_files(save_hdf5(tmp_path, x=x), None, lambda nbytes: memory[:nbytes])
    assert data.images.dtype == np.float32 and data.images.flags.c_contiguous and np.shares_memory(data.images, memory)
    np.testing.assert_array_equal(data.images, x.transpose(0, 3, 1, 2).astype(np.float32))
    assert data.labels is None


@pytest.mark.parametrize("label", [0, 1, 3])
def test_a_column_of_equal_labels_is_not_one_hot(label: int, tmp_path: Path) -> None:
    """A column of ones alone has the form of one-hot labels."""
    for dtype in (np.uint8, np.int32, np.int64):
        data = load_files(save_hdf5(tmp_path, x=PIXELS, y=np.full((7, 1), label, dtype)), None)
        np.testing.assert_array_equal(data.labels, np.full(7, label))


def test_a_labels_file_replaces_y(tmp_path: Path) -> None:
    data = load_files(save_hdf5(tmp_path, x=PIXELS, y=np.full(3, 1000)), save_idx(tmp_path, "labels", TRUTH))
    np.testing.assert_array_equal(data.labels, TRUTH)


def with_last_value(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.flat[-1] = value
    return array


X = PIXELS / 255.0
BAD_HDF5: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "no x": ({"images": X, "y": TRUTH}, "contains images, y, but no dataset x"),
    "rank of x": ({"x": X[..., 0]}, r"shape \(7, 5, 6\)"),
    "no images": ({"x": X[:0]}, "at least one image"),
    "type of x": ({"x": PIXELS.astype(np.int32)}, "x in .* is int32"),
    "NaN": ({"x": with_last_value(X, np.nan)}, "not finite"),
    "negative": ({"x": with_last_value(X, -0.5)}, "values in -0.5 … 1"),
    "0 to 255": ({"x": PIXELS.astype(np.float32)}, "values in 0 … 255; scale them"),
    "two ones": ({"x": X, "y": ONE_HOT + np.eye(10)[0]}, "not one-hot"),
    "halves": ({"x": X, "y": ONE_HOT / 2}, "not one-hot"),
    "NaN label": ({"x": X, "y": with_last_value(ONE_HOT, np.nan)}, "not one-hot"),
    "float labels in a column": ({"x": X, "y": np.ones((7, 1))}, r"is float64 \(7, 1\)"),
    "label 300 in a column": ({"x": X, "y": np.arange(294, 301)[:, None]}, "labels from 294 to 300"),
    "no columns": ({"x": X, "y": np.zeros((7, 0))}, r"is float64 \(7, 0\)"),
    "label above 255": ({"x": X, "y": np.arange(250, 257)}, "labels from 250 to 256"),
    "label 300 one-hot": ({"x": X, "y": np.eye(301)[[0, 1, 2, 3, 4, 5, 300]]}, "labels from 0 to 300"),
    "counts differ": ({"x": X, "y": TRUTH[:-1]}, "has 6 labels but .* has 7 images"),
}


def test_errors_for_too_large_hdf5_name_classify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images or the file are too large; the file takes no room on the disk."""
    path = save_hdf5(tmp_path, x=X)
    monkeypatch.setattr(dataset, "MAX_BYTES", X.nbytes - 1)
    refused = [user_error(lambda: load_files(path, None))]
    os.truncate(path, (4 << 30) + 1)
    refused.append(user_error(lambda: load_files(path, None)))
    for error in refused:
        assert re.search(r"bytes, more than the [0-9,]+ (allowed|that are read); .*main.py classify FILE --out", error)


@pytest.mark.parametrize("case", BAD_HDF5)
def test_bad_hdf5_is_refused(tmp_path: Path, case: str) -> None:
    arrays, message = BAD_HDF5[case]
    path = save_hdf5(tmp_path, **arrays)
    error = user_error(lambda: load_files(path, None))
    assert re.search(message, error) and str(path) in error
