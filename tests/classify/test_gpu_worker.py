"""Workers on the card: the bits of a classifier's one pass, however images are cut; one error ends all feeders."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.classify.pieces import Piece, Result, cut
from app.classify.shards import Shard, open_shard
from app.classify.worker import LocalRunner, Worker, WorkerSettings
from app.engine import feeding
from app.engine.buffers import StreamBuffers
from app.engine.classifier import Classifier
from app.network.weights import save_weights
from data_tools.idx import write_idx
from tests.support.networks_for_tests import ODD, random_graph, random_images

pytestmark = pytest.mark.gpu
COUNT = 3001
GRAPH = random_graph(ODD)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks of few images."""
    monkeypatch.setattr(feeding, "BLOCK", 100)
    monkeypatch.setattr(feeding, "COMPRESSED_BLOCK", 64)


def write(path: Path, images: np.ndarray) -> Shard:
    """A shard: NPY, or gzipped IDX by its name."""
    if path.suffix == ".gz":
        write_idx(path, images)
    else:
        np.save(path, images)
    return open_shard(path)


@pytest.mark.parametrize(("ending", "dtype"), [(".npy", "uint8"), (".npy", "float32"), (".gz", "uint8")])
@pytest.mark.usefixtures("small_blocks")
def test_the_bits_of_one_pass(ending: str, dtype: str, tmp_path: Path) -> None:
    save_weights(tmp_path / "own.h5", GRAPH.parameters, network=ODD)
    images = random_images(ODD, COUNT)
    if dtype == "float32":
        images = images / np.float32(300)
    with Classifier(tmp_path / "own.h5", device="cuda") as classifier:
        labels, logits = classifier(images), classifier.logits
    shards = [write(tmp_path / f"{first}{ending}", images[first : first + 1300]) for first in range(0, COUNT, 1300)]
    settings = WorkerSettings(graph=GRAPH, dtype=dtype, device="cuda", logits=True, compressed=ending == ".gz")
    with Worker(settings) as worker:
        assert worker.place.limit in ("bus", "kernels") and worker.place.device.startswith("cuda:")
        pieces = [piece for number, shard in enumerate(shards) for piece in cut(number, shard, 0, shard.count, 450)]
        found = sorted(LocalRunner(worker).run(pieces), key=lambda pair: (pair[0].number, pair[0].first))
    results = [result for _, result in found if isinstance(result, Result)]
    assert (np.concatenate([one.labels for one in results]) == labels).all()
    assert np.concatenate([one.logits for one in results]).tobytes() == logits.tobytes()


@pytest.mark.usefixtures("small_blocks")
def test_threads_share_a_worker(tmp_path: Path) -> None:
    shard = write(tmp_path / "images.npy", random_images(ODD, COUNT))
    pieces = [*cut(0, shard, 0, COUNT, 300)] * 10
    with Worker(WorkerSettings(graph=GRAPH, dtype="uint8", device="cuda")) as worker, ThreadPoolExecutor(7) as pool:
        results = [*pool.map(worker.classify, pieces)]
    labels = [result.labels for result in results if isinstance(result, Result)]
    assert len(labels) == len(pieces)
    assert all((one == first).all() for one, first in zip(labels, labels[: len(labels) // 10] * 10, strict=True))


@pytest.mark.usefixtures("small_blocks")
def test_an_error_in_a_feeder_ends_all_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    working, calls = StreamBuffers.enqueue, []

    def enqueue(*arguments: Any, **settings: Any) -> None:
        calls.append(arguments)
        if len(calls) > 5:
            raise RuntimeError("a feeder fails")
        working(*arguments, **settings)

    shard = write(tmp_path / "images.npy", random_images(ODD, COUNT))
    with Worker(WorkerSettings(graph=GRAPH, dtype="uint8", device="cuda")) as worker:
        monkeypatch.setattr(StreamBuffers, "enqueue", enqueue)
        with pytest.raises(RuntimeError, match="a feeder fails"):
            [*LocalRunner(worker).run(cut(0, shard, 0, COUNT, 300))]
        with pytest.raises(RuntimeError, match="a feeder fails"):
            worker.classify(Piece(0, shard, 0, 1))
    assert threading.active_count() == before
