"""Test receipts and results that contradict themselves although their hashes are right: they are not kept."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.classify.receipts import file_sha256
from app.network.definitions import LENET5
from data_tools.idx import write_idx
from tests.fuzz.idx import npy
from tests.support.networks_for_tests import random_images
from tests.support.shell import Refuses

COMMAND = ["classify", "a-images-idx3-ubyte", "--device", "cpu", "--out", "out", "--resume"]
RECEIPT, LABELS = Path("out", "a-images-idx3-ubyte.json"), Path("out", "a-images-idx3-ubyte.labels.npy")


@pytest.fixture
def classified_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Classify three images, which have labels, in an empty folder; return the folder."""
    from app.cli import main

    monkeypatch.chdir(tmp_path)
    write_idx(Path("a-images-idx3-ubyte"), random_images(LENET5, 3)[:, 0])
    write_idx(Path("a-labels-idx1-ubyte"), np.array([1, 2, 3], np.uint8))
    assert main(COMMAND) == 0
    return tmp_path


def change_receipt(**changes: object) -> None:
    RECEIPT.write_text(json.dumps(json.loads(RECEIPT.read_text()) | changes))


@pytest.mark.parametrize("labels", [True, False], ids=["with labels", "without"])
@pytest.mark.parametrize("correct", [4, 10**9])
def test_more_right_labels_than_images(correct: int, labels: bool, classified_shard: Path, refuses: Refuses) -> None:
    if not labels:
        Path("a-labels-idx1-ubyte").unlink()
    change_receipt(correct=correct)
    kept = RECEIPT.read_bytes()
    refuses(COMMAND, f"correct: {correct:,} of 3 images.*: it is no receipt of classify; move it")
    assert RECEIPT.read_bytes() == kept


def test_sizes_have_64_bits(classified_shard: Path, refuses: Refuses) -> None:
    change_receipt(size=1 << 63)
    refuses(COMMAND, f"size: {1 << 63} is not between 0 and {(1 << 63) - 1:,}")


OTHERS: dict[str, Callable[[], bytes]] = {
    "shorter": lambda: npy(np.zeros(2, np.uint8)),
    "longer": lambda: npy(np.zeros(4, np.uint8)),
    "of another type": lambda: npy(np.zeros(3, np.float32)),
    "no array": lambda: b"labels",
    "empty": lambda: b"",
    "objects": lambda: npy(np.array([1, "a", None], object)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_results_that_are_not_the_array_are_computed_again(
    other: str, classified_shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test it without true labels: to count right answers, the results would be read in any case."""
    from app.cli import main

    right = LABELS.read_bytes()
    Path("a-labels-idx1-ubyte").unlink()
    LABELS.write_bytes(OTHERS[other]())
    change_receipt(sha256={"labels": file_sha256(LABELS)}, correct=None)
    capsys.readouterr()
    assert main(COMMAND) == 0
    assert "labels.npy is not what was written" in capsys.readouterr().err
    assert LABELS.read_bytes() == right
