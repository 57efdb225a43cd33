"""Test workers on a GPU: results to the bit those of one pass, however images are cut; an error ends all feeders."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.classify.pieces import Piece, split_into_pieces
from app.classify.worker import LocalRunner, Worker, WorkerSettings
from app.engine import feeding
from app.engine.buffers import StreamBuffers
from app.engine.classifier import Classifier
from app.network.weights import save_weights
from tests.classify.test_worker import classify_piece, cut_all, join_results, write_shards
from tests.support.networks_for_tests import ODD, random_graph, random_images

pytestmark = pytest.mark.gpu
COUNT = 3001
GRAPH = random_graph(ODD)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each run have many blocks of few images."""
    monkeypatch.setattr(feeding, "BLOCK", 100)
    monkeypatch.setattr(feeding, "COMPRESSED_BLOCK", 64)


@pytest.mark.parametrize(("ending", "dtype"), [(".npy", "uint8"), (".npy", "float32"), (".gz", "uint8")])
@pytest.mark.usefixtures("small_blocks")
def test_results_equal_one_pass_of_a_classifier(ending: str, dtype: str, tmp_path: Path) -> None:
    save_weights(tmp_path / "own.h5", GRAPH.parameters, network=ODD)
    images = random_images(ODD, COUNT)
    if dtype == "float32":
        images = images / np.float32(300)
    with Classifier(tmp_path / "own.h5", device="cuda") as classifier:
        labels, logits = classifier(images), classifier.logits
    settings = WorkerSettings(graph=GRAPH, dtype=dtype, device="cuda", logits=True, compressed=ending == ".gz")
    with Worker(settings) as worker:
        assert worker.device_info.limit in ("bus", "kernels") and worker.device_info.device.startswith("cuda:")
        cuts = cut_all(write_shards(tmp_path, [1300, 2600], ending, images), 450)
        found_labels, found_logits = join_results([*LocalRunner(worker).run(cuts)])
    assert (found_labels == labels).all() and found_logits.tobytes() == logits.tobytes()


@pytest.mark.usefixtures("small_blocks")
def test_threads_share_a_worker(tmp_path: Path) -> None:
    (shard,) = write_shards(tmp_path, [], ".npy", random_images(ODD, COUNT))
    once = [*split_into_pieces(0, shard, 0, COUNT, 300)]
    with Worker(WorkerSettings(graph=GRAPH, dtype="uint8", device="cuda")) as worker, ThreadPoolExecutor(7) as pool:
        labels = [result.labels for result in pool.map(partial(classify_piece, worker), once * 10)]
    assert all((one == first).all() for one, first in zip(labels, labels[: len(once)] * 10, strict=True))


@pytest.mark.usefixtures("small_blocks")
def test_an_error_in_a_feeder_ends_all_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    working, calls = StreamBuffers.enqueue, []

    def fail_sixth_call(*arguments: Any, **settings: Any) -> None:
        calls.append(arguments)
        if len(calls) > 5:
            raise RuntimeError("a feeder fails")
        working(*arguments, **settings)

    (shard,) = write_shards(tmp_path, [], ".npy", random_images(ODD, COUNT))
    with Worker(WorkerSettings(graph=GRAPH, dtype="uint8", device="cuda")) as worker:
        monkeypatch.setattr(StreamBuffers, "enqueue", fail_sixth_call)
        with pytest.raises(RuntimeError, match="a feeder fails"):
            [*LocalRunner(worker).run(split_into_pieces(0, shard, 0, COUNT, 300))]
        with pytest.raises(RuntimeError, match="a feeder fails"):
            worker.classify(Piece(0, shard, 0, 1))
    assert threading.active_count() == before
