"""Test the results folder: written in any order, complete or not at all, and checked by receipts."""

import errno
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.base.errors import UserError
from app.classify.outputs import LOCK, UNFINISHED, OutputFolder
from app.classify.receipts import file_sha256, read_receipt
from app.classify.shards import Shard, ShardError, open_shard
from app.records.classify import Identity, Receipt
from data_tools.idx import write_idx
from tests.support.schemas import mistakes

IDENTITY = Identity(network="lenet5", weights="0123456789abcdef" * 4, precision="fp32", classes=10)
RNG = np.random.default_rng(4)
LABELS = RNG.integers(0, 10, 30, np.uint8)
LOGITS = RNG.normal(size=(30, 10)).astype(np.float32)
TRUTH = np.where(np.arange(30) < 21, LABELS, (LABELS + 1) % 10).astype(np.uint8)


def expect_error(message: str) -> AbstractContextManager[object]:
    """Expect that the block raises a UserError of one line that contains ``message``."""
    return pytest.raises(UserError, match=f"^[^\\n]*{message}[^\\n]*$")


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    """Write two shards of 30 images, the first with true labels, of which 21 equal ``LABELS``."""
    names = ("a-images-idx3-ubyte", "b.idx.gz")
    for name in names:
        write_idx(tmp_path / name, np.zeros((30, 2, 2), np.uint8))
    write_idx(tmp_path / "a-labels-idx1-ubyte", TRUTH)
    return [open_shard(tmp_path / name) for name in names]


def open_folder(place: Path, shards: list[Shard], **options: Any) -> AbstractContextManager[OutputFolder]:
    identity, progress = options.pop("identity", IDENTITY), options.pop("progress", mock.Mock())
    windows = options.pop("windows", [(0, 30)] * len(shards))
    return OutputFolder(place, shards, windows, **options).create_and_lock(identity, progress)


def write_results(
    output: OutputFolder, number: int, firsts: tuple[int, ...] = (20, 0, 10), correct: int | None = 7
) -> Receipt:
    """Store the results of a shard in tens, from the images ``firsts`` on; return its receipt."""
    for first in firsts:
        rows = slice(first, first + 10)
        receipt = output.write(number, first, LABELS[rows], LOGITS[rows], correct)
        assert (receipt is not None) == (first == firsts[-1])
    assert receipt is not None
    return receipt


def write_all(place: Path, shards: list[Shard], **options: Any) -> None:
    with open_folder(place, shards, **options) as output:
        for number in output.remaining_shards:
            write_results(output, number)


def file_names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def test_results_in_any_order(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "new" / "out"
    with open_folder(out, shards, logits=True) as output:
        assert output.remaining_shards == [0, 1] and output.write(1, 0, LABELS[:10], LOGITS[:10], None) is None
        receipt = write_results(output, 0)
        assert write_results(output, 1, (20, 10))["correct"] is None and output.remaining_shards == []
    names = {"a-images-idx3-ubyte", "b"}
    assert file_names(out) == {f"{name}.{end}" for name in names for end in ("labels.npy", "logits.npy", "json")}
    for name in names:
        np.testing.assert_array_equal(np.load(out / f"{name}.labels.npy"), LABELS)
        np.testing.assert_array_equal(np.load(out / f"{name}.logits.npy"), LOGITS)
    assert receipt == output.receipts[0] == read_receipt(out / "a-images-idx3-ubyte.json")
    assert (receipt["correct"], receipt["images"], receipt["first"]) == (21, 30, 0)
    assert receipt["shard"] == str(shards[0].path)
    assert receipt["sha256"]["logits"] == file_sha256(out / "a-images-idx3-ubyte.logits.npy")
    assert not mistakes(json.loads((out / "b.json").read_text()))


def test_results_that_arrive_twice_count_once(tmp_path: Path, shards: list[Shard]) -> None:
    with open_folder(tmp_path / "out", shards) as output:
        assert write_results(output, 0, (0, 10, 0, 10, 20))["correct"] == 21


def test_what_a_killed_run_left_is_removed(tmp_path: Path, shards: list[Shard]) -> None:
    write_all(tmp_path / "out", shards[:1])
    (tmp_path / "out" / UNFINISHED).mkdir()
    (tmp_path / "out" / UNFINISHED / "b.labels.npy").write_bytes(b"some")
    (tmp_path / "out" / LOCK).write_text("1\n")
    with open_folder(tmp_path / "out", shards, resume=True) as output:
        assert output.kept == {0} and output.notes == []
        write_results(output, 1)
    assert len(file_names(tmp_path / "out")) == 4


def test_results_are_not_replaced_unasked(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    write_all(out, shards[:1], logits=True)
    (out / "b.labels.npy").write_bytes(b"mine")
    before = (out / "a-images-idx3-ubyte.json").read_bytes()
    for chosen, name in ((shards[:1], "a-images-idx3-ubyte.json"), (shards[1:], "b.labels.npy")):
        with expect_error(f"{name} exists: name another --out, .*--resume, .*--overwrite"), open_folder(out, chosen):
            pass
    assert (out / "a-images-idx3-ubyte.json").read_bytes() == before
    write_all(out, shards, overwrite=True)
    assert file_names(out) == {"a-images-idx3-ubyte.labels.npy", "a-images-idx3-ubyte.json", "b.labels.npy", "b.json"}


def test_a_file_created_during_the_run_is_not_replaced(tmp_path: Path, shards: list[Shard]) -> None:
    with expect_error("cannot write .*b.labels.npy: File exists"), open_folder(tmp_path / "out", shards) as output:
        (tmp_path / "out" / "b.labels.npy").write_bytes(b"mine")
        write_results(output, 1)
    assert file_names(tmp_path / "out") == {"b.labels.npy"}


def flip_bit_of_logits(out: Path) -> None:
    content = bytearray((out / "b.logits.npy").read_bytes())
    content[-1] ^= 1
    (out / "b.logits.npy").write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit flipped": (flip_bit_of_logits, "b.logits.npy is not what was written"),
    "labels missing": (lambda out: (out / "b.labels.npy").unlink(), "b.labels.npy is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_resume_keeps_undamaged_results(damage: str, tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    write_all(out, shards, logits=True)
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in out.glob("a*")}
    DAMAGE[damage][0](out)
    progress = mock.Mock()
    with open_folder(out, shards, logits=True, resume=True, progress=progress) as output:
        assert output.remaining_shards == [1] and output.kept == {0} and progress.call_count == 2
        (note,) = output.notes
        assert note.startswith(f"{shards[1].path} is classified again: ") and note.endswith(DAMAGE[damage][1])
        write_results(output, 1)
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in out.glob("a*")} == before
    np.testing.assert_array_equal(np.load(out / "b.labels.npy"), LABELS)
    with open_folder(out, shards, logits=True, resume=True) as output:
        assert output.remaining_shards == [] and output.notes == [] and output.kept == {0, 1}


def test_resume_with_and_without_logits(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    write_all(out, shards[1:])
    with open_folder(out, shards[1:], logits=True, resume=True) as output:
        assert output.notes[0].endswith("b.json names no logits")
        write_results(output, 0)
    with open_folder(out, shards[1:], resume=True) as output:
        assert output.remaining_shards == []
    flip_bit_of_logits(out)
    with open_folder(out, shards[1:], resume=True) as output:
        assert output.remaining_shards == [0]


def test_resume_counts_by_the_labels_of_this_run(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    with open_folder(out, shards) as output:
        write_results(output, 0, correct=None)
    with open_folder(out, shards, resume=True) as output:
        assert output.receipts[0]["correct"] == 21


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"identity": {**IDENTITY, "weights": "f" * 64}}, "other weights"),
    "precision": ({"identity": {**IDENTITY, "precision": "fp16"}}, "other --precision"),
    "network": ({"identity": {**IDENTITY, "network": "mlp"}}, "other network"),
    "count": ({"windows": [(0, 20), (0, 30)]}, "other --start or --count"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_resume_refuses_results_of_another_run(change: str, tmp_path: Path, shards: list[Shard]) -> None:
    write_all(tmp_path / "out", shards)
    options, message = CHANGES[change]
    expected = f"a-images-idx3-ubyte.json is of {message}: name another --out, or replace it with --overwrite"
    with expect_error(expected), open_folder(tmp_path / "out", shards, resume=True, **options):
        pass
    assert len(file_names(tmp_path / "out")) == 4


def test_resume_refuses_other_images(tmp_path: Path, shards: list[Shard]) -> None:
    write_all(tmp_path / "out", shards)
    os.utime(shards[1].path)
    again = [open_shard(shard.path) for shard in shards]
    with expect_error("b.json is of other images: "), open_folder(tmp_path / "out", again, resume=True):
        pass


@pytest.mark.parametrize("content", ["", "{}", '{"schema": "lenet5-inference/receipt/1", "images": 0}', "mine"])
def test_resume_leaves_a_file_that_is_no_receipt(content: str, tmp_path: Path, shards: list[Shard]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.json").write_text(content)
    with expect_error("b.json .*: it is no receipt of classify; "), open_folder(tmp_path / "out", shards, resume=True):
        pass
    assert (tmp_path / "out" / "b.json").read_text() == content


def test_a_disk_that_fills(tmp_path: Path, shards: list[Shard]) -> None:
    """Complete results stay, unfinished ones are removed, and a later run continues."""
    out = tmp_path / "out"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    message = "cannot write .*b.logits.npy: No space left on device; free some space, or choose another disk"
    with expect_error(message), open_folder(out, shards, logits=True) as output:
        write_results(output, 0)
        output.write(1, 0, LABELS[:10], LOGITS[:10], None)
        stream = output._unfinished[1]._arrays["logits"]
        with mock.patch.object(stream, "_stream", mock.Mock(wraps=stream._stream, **{"write.side_effect": full})):
            output.write(1, 10, LABELS[10:20], LOGITS[10:20], None)
    assert file_names(out) == {f"a-images-idx3-ubyte.{end}" for end in ("labels.npy", "logits.npy", "json")}
    with open_folder(out, shards, logits=True, resume=True) as output:
        assert output.remaining_shards == [1]


def test_a_file_system_without_room_from_the_start(tmp_path: Path, shards: list[Shard]) -> None:
    with (
        open_folder(tmp_path / "out", shards) as output,
        mock.patch("numpy.lib.format.write_array_header_1_0", side_effect=OSError(errno.EDQUOT, "Quota exceeded")),
        expect_error("cannot write .*b.labels.npy: Quota exceeded; free some space"),
    ):
        output.write(1, 0, LABELS[:10], None, None)
    assert file_names(tmp_path / "out") == set()


def test_a_shard_that_is_written_meanwhile(tmp_path: Path, shards: list[Shard]) -> None:
    with open_folder(tmp_path / "out", shards) as output:
        os.utime(shards[1].path)
        with pytest.raises(ShardError, match="was written during the run"):
            write_results(output, 1)
        write_results(output, 0)
    assert file_names(tmp_path / "out") == {"a-images-idx3-ubyte.labels.npy", "a-images-idx3-ubyte.json"}


def test_shards_with_equal_result_names_are_refused(tmp_path: Path, shards: list[Shard]) -> None:
    (tmp_path / "other").mkdir()
    write_idx(tmp_path / "other" / "b", np.zeros((3, 2, 2), np.uint8))
    both = [shards[1], open_shard(tmp_path / "other" / "b")]
    with expect_error("b.idx.gz and .*other/b would both be written as b.labels.npy: rename one"):
        open_folder(tmp_path / "out", both)


def test_an_input_is_never_replaced(tmp_path: Path, shards: list[Shard]) -> None:
    labels = tmp_path / "b.labels.npy"
    np.save(labels, TRUTH)
    chosen = [open_shard(shards[1].path, labels)]
    with expect_error("b.labels.npy is read and would be replaced"), open_folder(tmp_path, chosen, overwrite=True):
        pass
    np.testing.assert_array_equal(np.load(labels), TRUTH)
