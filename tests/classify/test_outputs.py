"""Results of shards: written by position, whole or not at all, proved by receipts."""

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


def refused(message: str) -> AbstractContextManager[object]:
    """Whether the block ends with this line for the user."""
    return pytest.raises(UserError, match=f"^[^\\n]*{message}[^\\n]*$")


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    """Two shards of 30 images, the first with labels of which 21 are those of the results."""
    names = ("a-images-idx3-ubyte", "b.idx.gz")
    for name in names:
        write_idx(tmp_path / name, np.zeros((30, 2, 2), np.uint8))
    write_idx(tmp_path / "a-labels-idx1-ubyte", TRUTH)
    return [open_shard(tmp_path / name) for name in names]


def folder(place: Path, shards: list[Shard], **options: Any) -> AbstractContextManager[OutputFolder]:
    identity, progress = options.pop("identity", IDENTITY), options.pop("progress", mock.Mock())
    windows = options.pop("windows", [(0, 30)] * len(shards))
    return OutputFolder(place, shards, windows, **options).create_and_lock(identity, progress)


def fill(output: OutputFolder, number: int, firsts: tuple[int, ...] = (20, 0, 10), correct: int | None = 7) -> Receipt:
    """Write a shard in tens; returns its receipt."""
    for first in firsts:
        rows = slice(first, first + 10)
        receipt = output.write(number, first, LABELS[rows], LOGITS[rows], correct)
        assert (receipt is not None) == (first == firsts[-1])
    assert receipt is not None
    return receipt


def finished(place: Path, shards: list[Shard], **options: Any) -> None:
    with folder(place, shards, **options) as output:
        for number in output.remaining_shards:
            fill(output, number)


def files(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def test_results_in_any_order(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "new" / "out"
    with folder(out, shards, logits=True) as output:
        assert output.remaining_shards == [0, 1] and output.write(1, 0, LABELS[:10], LOGITS[:10], None) is None
        receipt = fill(output, 0)
        assert fill(output, 1, (20, 10))["correct"] is None and output.remaining_shards == []
    names = {"a-images-idx3-ubyte", "b"}
    assert files(out) == {f"{name}.{end}" for name in names for end in ("labels.npy", "logits.npy", "json")}
    for name in names:
        np.testing.assert_array_equal(np.load(out / f"{name}.labels.npy"), LABELS)
        np.testing.assert_array_equal(np.load(out / f"{name}.logits.npy"), LOGITS)
    assert receipt == output.receipts[0] == read_receipt(out / "a-images-idx3-ubyte.json")
    assert (receipt["correct"], receipt["images"], receipt["first"]) == (21, 30, 0)
    assert receipt["shard"] == str(shards[0].path)
    assert receipt["sha256"]["logits"] == file_sha256(out / "a-images-idx3-ubyte.logits.npy")
    assert not mistakes(json.loads((out / "b.json").read_text()))


def test_results_that_come_twice_count_once(tmp_path: Path, shards: list[Shard]) -> None:
    with folder(tmp_path / "out", shards) as output:
        assert fill(output, 0, (0, 10, 0, 10, 20))["correct"] == 21


def test_what_a_killed_run_left_is_removed(tmp_path: Path, shards: list[Shard]) -> None:
    finished(tmp_path / "out", shards[:1])
    (tmp_path / "out" / UNFINISHED).mkdir()
    (tmp_path / "out" / UNFINISHED / "b.labels.npy").write_bytes(b"some")
    (tmp_path / "out" / LOCK).write_text("1\n")
    with folder(tmp_path / "out", shards, resume=True) as output:
        assert output.kept == {0} and output.notes == []
        fill(output, 1)
    assert len(files(tmp_path / "out")) == 4


def test_results_are_not_replaced_unasked(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    finished(out, shards[:1], logits=True)
    (out / "b.labels.npy").write_bytes(b"mine")
    before = (out / "a-images-idx3-ubyte.json").read_bytes()
    for chosen, name in ((shards[:1], "a-images-idx3-ubyte.json"), (shards[1:], "b.labels.npy")):
        with refused(f"{name} exists: name another --out, .*--resume, .*--overwrite"), folder(out, chosen):
            pass
    assert (out / "a-images-idx3-ubyte.json").read_bytes() == before
    finished(out, shards, overwrite=True)
    assert files(out) == {"a-images-idx3-ubyte.labels.npy", "a-images-idx3-ubyte.json", "b.labels.npy", "b.json"}


def test_what_appears_during_the_run_is_not_replaced(tmp_path: Path, shards: list[Shard]) -> None:
    with refused("cannot write .*b.labels.npy: File exists"), folder(tmp_path / "out", shards) as output:
        (tmp_path / "out" / "b.labels.npy").write_bytes(b"mine")
        fill(output, 1)
    assert files(tmp_path / "out") == {"b.labels.npy"}


def flipped(out: Path) -> None:
    content = bytearray((out / "b.logits.npy").read_bytes())
    content[-1] ^= 1
    (out / "b.logits.npy").write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit flipped": (flipped, "b.logits.npy is not what was written"),
    "labels missing": (lambda out: (out / "b.labels.npy").unlink(), "b.labels.npy is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_resume_keeps_what_is_whole(damage: str, tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    finished(out, shards, logits=True)
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in out.glob("a*")}
    DAMAGE[damage][0](out)
    progress = mock.Mock()
    with folder(out, shards, logits=True, resume=True, progress=progress) as output:
        assert output.remaining_shards == [1] and output.kept == {0} and progress.call_count == 2
        (note,) = output.notes
        assert note.startswith(f"{shards[1].path} is classified again: ") and note.endswith(DAMAGE[damage][1])
        fill(output, 1)
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in out.glob("a*")} == before
    np.testing.assert_array_equal(np.load(out / "b.labels.npy"), LABELS)
    with folder(out, shards, logits=True, resume=True) as output:
        assert output.remaining_shards == [] and output.notes == [] and output.kept == {0, 1}


def test_resume_with_and_without_logits(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    finished(out, shards[1:])
    with folder(out, shards[1:], logits=True, resume=True) as output:
        assert output.notes[0].endswith("b.json names no logits")
        fill(output, 0)
    with folder(out, shards[1:], resume=True) as output:
        assert output.remaining_shards == []
    flipped(out)
    with folder(out, shards[1:], resume=True) as output:
        assert output.remaining_shards == [0]


def test_resume_counts_by_the_labels_of_this_run(tmp_path: Path, shards: list[Shard]) -> None:
    out = tmp_path / "out"
    with folder(out, shards) as output:
        fill(output, 0, correct=None)
    with folder(out, shards, resume=True) as output:
        assert output.receipts[0]["correct"] == 21


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"identity": {**IDENTITY, "weights": "f" * 64}}, "other weights"),
    "precision": ({"identity": {**IDENTITY, "precision": "fp16"}}, "other --precision"),
    "network": ({"identity": {**IDENTITY, "network": "mlp"}}, "other network"),
    "count": ({"windows": [(0, 20), (0, 30)]}, "other --start or --count"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_resume_refuses_other_work(change: str, tmp_path: Path, shards: list[Shard]) -> None:
    finished(tmp_path / "out", shards)
    options, message = CHANGES[change]
    expected = f"a-images-idx3-ubyte.json is of {message}: name another --out, or replace it with --overwrite"
    with refused(expected), folder(tmp_path / "out", shards, resume=True, **options):
        pass
    assert len(files(tmp_path / "out")) == 4


def test_resume_refuses_other_images(tmp_path: Path, shards: list[Shard]) -> None:
    finished(tmp_path / "out", shards)
    os.utime(shards[1].path)
    again = [open_shard(shard.path) for shard in shards]
    with refused("b.json is of other images: "), folder(tmp_path / "out", again, resume=True):
        pass


@pytest.mark.parametrize("content", ["", "{}", '{"schema": "lenet5-inference/receipt/1", "images": 0}', "mine"])
def test_resume_leaves_a_file_that_is_no_receipt(content: str, tmp_path: Path, shards: list[Shard]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.json").write_text(content)
    with refused("b.json .*: it is no receipt of classify; "), folder(tmp_path / "out", shards, resume=True):
        pass
    assert (tmp_path / "out" / "b.json").read_text() == content


def test_a_disk_that_fills(tmp_path: Path, shards: list[Shard]) -> None:
    """Whole results stay, unfinished ones go, and a later run continues."""
    out = tmp_path / "out"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    message = "cannot write .*b.logits.npy: No space left on device; free some space, or choose another disk"
    with refused(message), folder(out, shards, logits=True) as output:
        fill(output, 0)
        output.write(1, 0, LABELS[:10], LOGITS[:10], None)
        stream = output._unfinished[1]._arrays["logits"]
        with mock.patch.object(stream, "_stream", mock.Mock(wraps=stream._stream, **{"write.side_effect": full})):
            output.write(1, 10, LABELS[10:20], LOGITS[10:20], None)
    assert files(out) == {f"a-images-idx3-ubyte.{end}" for end in ("labels.npy", "logits.npy", "json")}
    with folder(out, shards, logits=True, resume=True) as output:
        assert output.remaining_shards == [1]


def test_a_file_system_without_room_from_the_start(tmp_path: Path, shards: list[Shard]) -> None:
    with (
        folder(tmp_path / "out", shards) as output,
        mock.patch("numpy.lib.format.write_array_header_1_0", side_effect=OSError(errno.EDQUOT, "Quota exceeded")),
        refused("cannot write .*b.labels.npy: Quota exceeded; free some space"),
    ):
        output.write(1, 0, LABELS[:10], None, None)
    assert files(tmp_path / "out") == set()


def test_a_shard_that_is_written_meanwhile(tmp_path: Path, shards: list[Shard]) -> None:
    with folder(tmp_path / "out", shards) as output:
        os.utime(shards[1].path)
        with pytest.raises(ShardError, match="was written during the run"):
            fill(output, 1)
        fill(output, 0)
    assert files(tmp_path / "out") == {"a-images-idx3-ubyte.labels.npy", "a-images-idx3-ubyte.json"}


def test_names_that_would_be_the_same(tmp_path: Path, shards: list[Shard]) -> None:
    (tmp_path / "other").mkdir()
    write_idx(tmp_path / "other" / "b", np.zeros((3, 2, 2), np.uint8))
    both = [shards[1], open_shard(tmp_path / "other" / "b")]
    with refused("b.idx.gz and .*other/b would both be written as b.labels.npy: rename one"):
        folder(tmp_path / "out", both)


def test_an_input_is_never_replaced(tmp_path: Path, shards: list[Shard]) -> None:
    labels = tmp_path / "b.labels.npy"
    np.save(labels, TRUTH)
    chosen = [open_shard(shards[1].path, labels)]
    with refused("b.labels.npy is read and would be replaced"), folder(tmp_path, chosen, overwrite=True):
        pass
    np.testing.assert_array_equal(np.load(labels), TRUTH)
