"""Test damaged and hostile HDF5: no value is invented or read twice, and crashes of HDF5 give one-line errors."""

import time
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from app.base.errors import UserError
from app.files import hdf5_process
from app.files.hdf5 import ReadRequest
from app.files.hdf5_process import read_untrusted
from data_tools.dataset import load_files
from tests.files.test_hdf5 import VALUES, open_strictly, read_strictly
from tests.support.hostile_hdf5 import (
    checked_blocks,
    circle_of_free_names,
    damaged,
    new_format,
    node_that_is_its_own_child,
    write_hdf5,
)
from tests.support.shell import user_error


@pytest.mark.parametrize("compression", ["gzip", "lzf", None])
def test_a_missing_chunk_is_refused(compression: str | None, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        dataset = file.create_dataset("x", (90, 3), "f4", chunks=(10, 2), compression=compression)
        dataset[:], dataset[20:30, :2] = 1, 1
        offsets: list[tuple[int, ...]] = []
        dataset.id.chunk_iter(lambda chunk: offsets.append(chunk.chunk_offset))
        other = file.create_dataset("y", (90, 3), "f4", chunks=(10, 2), compression=compression)
        for offset in offsets:
            if offset != (40, 0):
                skipped, stored = dataset.id.read_direct_chunk(offset)
                other.id.write_direct_chunk(offset, stored, skipped)
    assert (read_strictly(tmp_path / "file.h5") == 1).all()
    with pytest.raises(UserError, match=r"dataset 'y' lacks some of its chunks, .* write it whole"):
        read_strictly(tmp_path / "file.h5", name="y")


@pytest.mark.parametrize(
    "filters", [{"compression": "gzip"}, {"compression": "gzip", "fletcher32": True}, {"shuffle": True}]
)
def test_a_chunk_that_is_too_short_is_refused(filters: dict[str, object], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        dataset = file.create_dataset("x", (1000,), "f4", chunks=(1000,), **filters)
        values = np.ones(999, "f4").tobytes()
        dataset.id.write_direct_chunk((0,), zlib.compress(values) if "compression" in filters else values, 2)
    with pytest.raises(UserError, match="'x' lacks some of its chunks"):
        read_strictly(tmp_path / "file.h5")


def test_at_most_a_thousand_names_are_listed_fast(tmp_path: Path) -> None:
    links = {f"d{i:04}": h5py.SoftLink("/") for i in range(999)}
    path = write_hdf5(tmp_path / "file.h5", {**links, "x": VALUES, "z\n" + "é" * 122: 1})
    with open_strictly(path) as opened, pytest.raises(UserError, match="more than 1,000 names"):
        opened.list_names()
    with h5py.File(path, "a") as file:
        del file["d0000"]
    with open_strictly(path) as opened:
        before = time.process_time()
        assert len(opened.list_names()) == 1000
        assert time.process_time() - before < 1
        with pytest.raises(UserError) as caught:
            opened.read_array(opened.list_names()[-1], max_bytes=1)
    assert str(caught.value).isprintable() and "'z\\n" in str(caught.value)
    with h5py.File(path, "a") as file:
        del file["d0001"]
        file["z" * 256] = 1
    with open_strictly(path) as opened, pytest.raises(UserError, match="a name that is too long"):
        opened.list_names()


def test_a_dataset_by_a_second_name_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["x"] = VALUES
        file["y\n"] = file["x"]
    with open_strictly(tmp_path / "file.h5") as opened:
        assert opened.read_array("y\n").shape == opened.read_array("y\n").shape == VALUES.shape
        with pytest.raises(UserError, match=r"dataset 'x' is dataset 'y\\n' by another name"):
            opened.read_array("x")


HOSTILE_SEEDS = (*range(20, 26), 10, 55, 178, 393, 893, 1161)


def test_files_that_crash_hdf5_give_one_line_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums of the damage are right: in HDF5 2.0, seed 10 divides by zero, 55 and 393 segfault."""
    content = new_format()
    blocks = checked_blocks(content)
    assert len(blocks) > 10
    at_random = [damaged(content, blocks, seed) for seed in HOSTILE_SEEDS]
    monkeypatch.setattr(hdf5_process, "SECONDS", 1)
    monkeypatch.setattr(hdf5_process, "WAITING", 60)
    refused = []
    for file in (node_that_is_its_own_child(), circle_of_free_names(), *at_random):
        try:
            read_untrusted(Path("file.h5"), file, ReadRequest(None, ("attribute 3", "network"), 1 << 20))
        except UserError as error:
            assert str(error).isprintable() and "file.h5" in str(error)
            refused.append(str(error))
    assert len(refused) > 8


def test_errors_list_the_names_in_a_short_line(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "file.h5", {f"{i:03}\n\x1b[2J" + "é" * 100: i for i in range(500)})
    message = user_error(lambda: load_files(path, None))
    assert message.isprintable() and len(message) < 1000 and " and 490 more, but no dataset x; store" in message
