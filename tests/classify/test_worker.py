"""Test workers on the CPU: results equal to the bit, however images are cut; errors and Ctrl-C end a run soon."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from app.base.errors import UserError
from app.classify import worker as worker_module
from app.classify.active_pieces import ActivePieceQueue
from app.classify.pieces import Piece, PieceFault, PieceResult, select_image_ranges, split_into_pieces
from app.classify.shards import Shard, ShardReader, open_shard
from app.classify.worker import LocalRunner, Worker, WorkerClosedError, WorkerSettings
from app.engine.cpu import CpuEngine
from app.engine.opening import cpu_engine_class
from app.network.graph import REFERENCE_CHUNK
from data_tools.idx import write_idx
from tests.support.networks_for_tests import FLAT, random_graph, random_images

COUNT = 1000
GRAPH = random_graph(FLAT)
IMAGES = random_images(FLAT, COUNT)


def worker_settings(**changes: Any) -> WorkerSettings:
    return replace(WorkerSettings(graph=GRAPH, dtype="uint8", device="cpu", logits=True), **changes)


def write_shards(folder: Path, edges: list[int], ending: str = "", images: np.ndarray = IMAGES) -> list[Shard]:
    """Write the images into several files, cut at ``edges``, and open these."""
    found = []
    for number, (start, stop) in enumerate(zip([0, *edges], [*edges, len(images)], strict=True)):
        path = folder / f"{number}{ending}"
        part = images[start:stop] if images.shape[1] > 1 else images[start:stop, 0]
        (np.save if ending == ".npy" else write_idx)(path, part)
        found.append(open_shard(path))
    return found


def cut_all(all_shards: list[Shard], size: int) -> Iterator[Piece]:
    for number, shard in enumerate(all_shards):
        yield from split_into_pieces(number, shard, 0, shard.count, size)


def join_results(results: list[tuple[Piece, PieceResult | PieceFault]]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and logits of all pieces, in order."""
    results.sort(key=lambda pair: (pair[0].number, pair[0].first))
    found = [result for _, result in results if isinstance(result, PieceResult)]
    assert len(found) == len(results)
    return np.concatenate([one.labels for one in found]), np.concatenate([one.logits for one in found])


def classify_piece(worker: Worker, piece: Piece) -> PieceResult:
    result = worker.classify(piece)
    assert isinstance(result, PieceResult)
    return result


@pytest.fixture(scope="module")
def one_piece_results(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and logits of all images, classified as one file in one piece."""
    (one,) = write_shards(tmp_path_factory.mktemp("whole"), [])
    with Worker(worker_settings()) as worker:
        result = classify_piece(worker, Piece(0, one, 0, COUNT))
    assert (result.labels == CpuEngine(GRAPH).run(IMAGES).labels).all() and result.logits is not None
    return result.labels, result.logits


@pytest.mark.parametrize("ending", ["", ".gz", ".npy"])
@pytest.mark.parametrize(("edges", "size"), [([], 300), ([1, 2, 500], 128), ([333, 777], 10_000)])
def test_bits_do_not_depend_on_shards_or_pieces(
    edges: list[int], size: int, ending: str, tmp_path: Path, one_piece_results: tuple[np.ndarray, np.ndarray]
) -> None:
    with Worker(worker_settings(compressed=ending == ".gz")) as worker:
        labels, logits = join_results([*LocalRunner(worker).run(cut_all(write_shards(tmp_path, edges, ending), size))])
    assert (labels == one_piece_results[0]).all()
    assert logits.tobytes() == one_piece_results[1].tobytes()


def test_float_images_give_equal_labels(tmp_path: Path, one_piece_results: tuple[np.ndarray, np.ndarray]) -> None:
    (one,) = write_shards(tmp_path, [], ".npy", IMAGES.astype(np.float32) / 255)
    with Worker(worker_settings(dtype="float32", logits=False)) as worker:
        result = classify_piece(worker, Piece(0, one, 0, COUNT))
    assert result.logits is None and (result.labels == one_piece_results[0]).all()


def test_an_error_in_a_feeder_ends_all_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, working = [], cpu_engine_class().compute_chunk

    def fail_third_call(engine: CpuEngine, images: np.ndarray) -> Any:
        calls.append(len(images))
        if len(calls) > 2:
            raise UserError("the device is lost")
        return working(engine, images)

    monkeypatch.setattr(cpu_engine_class(), "compute_chunk", fail_third_call)
    some = write_shards(tmp_path, [300, 700])
    with Worker(worker_settings()) as worker, pytest.raises(UserError, match="the device is lost"):
        [*LocalRunner(worker).run(cut_all(some, 256))]
    assert {*calls} == {REFERENCE_CHUNK}
    with pytest.raises(UserError, match="the device is lost"):
        worker.classify(Piece(0, some[0], 0, 300))


@pytest.mark.parametrize("lost", [False, True])
def test_nothing_is_freed_on_a_lost_card(lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeing would fail, and Python would print that. On another card, closing the engine frees all memory."""
    freed: list[int] = []
    feeds = CpuEngine.prepare_feeding

    class CUDARuntimeError(Exception):
        """Stand-in for CuPy's exception, which is recognised by its name."""

        status = 700

    def prepare_with_memory(engine: CpuEngine, index: int) -> Any:
        memory, body = type("Memory", (), {"__del__": lambda _: freed.append(index)})(), feeds(engine, index)
        return lambda feeder: (body(feeder), memory)

    monkeypatch.setattr(CpuEngine, "prepare_feeding", prepare_with_memory)
    kept: list[Worker] = []
    monkeypatch.setattr(worker_module, "_on_lost_cards", kept)
    piece = Piece(0, write_shards(tmp_path, [])[0], 0, 300)
    with Worker(worker_settings(compressed=True)) as worker:
        if lost:
            monkeypatch.setattr(cpu_engine_class(), "compute_chunk", Mock(side_effect=CUDARuntimeError))
            with pytest.raises(CUDARuntimeError):
                worker.classify(piece)
            for thread in threading.enumerate():
                if thread.name.endswith("(_run_feeder)"):
                    thread.join()
        assert not freed
        indices = [*range(worker.device_info.lanes)]
    del worker
    gc.collect()
    assert sorted(freed) == ([] if lost else indices)
    for worker in kept:
        worker._engine.close()  # or OpenBLAS would stay at one thread in later tests


def test_an_error_while_a_feeder_opens_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_open(engine: CpuEngine, index: int) -> Any:
        raise UserError("no memory for a feeder")

    def end_later(queue: ActivePieceQueue, reason: BaseException) -> None:
        time.sleep(0.1)
        ended(queue, reason)

    ended = ActivePieceQueue.end
    monkeypatch.setattr(CpuEngine, "prepare_feeding", fail_to_open)
    monkeypatch.setattr(ActivePieceQueue, "end", end_later)
    with pytest.raises(UserError, match="no memory for a feeder"):
        Worker(worker_settings())


def compute_slowly(engine: CpuEngine, images: np.ndarray) -> Any:
    time.sleep(0.05)
    return np.zeros((len(images), 3), np.float32), np.zeros(len(images), np.uint8), {}


def test_pieces_in_flight_end_when_the_caller_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller closes the generator, as after Ctrl-C."""

    monkeypatch.setattr(cpu_engine_class(), "compute_chunk", compute_slowly)
    before = threading.active_count()
    start = time.monotonic()
    many = [Piece(0, one, 0, COUNT) for one in write_shards(tmp_path, []) for _ in range(200)]
    with Worker(worker_settings()) as worker, closing(LocalRunner(worker).run(many)) as results:
        next(iter(results))
    assert time.monotonic() - start < 5
    assert threading.active_count() == before


def test_ctrl_c_is_seen_before_the_first_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt_and_compute(engine: CpuEngine, images: np.ndarray) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return compute_slowly(engine, images)

    monkeypatch.setattr(cpu_engine_class(), "compute_chunk", interrupt_and_compute)
    start = time.monotonic()
    with Worker(worker_settings()) as worker, pytest.raises(KeyboardInterrupt):
        [*LocalRunner(worker).run(Piece(0, one, 0, COUNT) for one in write_shards(tmp_path, []) * 200)]
    assert time.monotonic() - start < 5


def test_a_hanging_feeder_does_not_block_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A feeder hangs, for example, when it reads from a lost disk."""
    lost, read = threading.Event(), threading.Event()

    def hang_reading(reader: ShardReader, first: int, out: np.ndarray) -> None:
        read.set()
        lost.wait()

    monkeypatch.setattr(ShardReader, "read", hang_reading)
    monkeypatch.setattr(worker_module, "JOIN_SECONDS", 0.1)
    (one,) = write_shards(tmp_path, [])
    start = time.monotonic()
    try:
        with Worker(worker_settings()) as worker, pytest.raises(WorkerClosedError), ThreadPoolExecutor(1) as pool:
            future = pool.submit(worker.classify, Piece(0, one, 0, COUNT))
            assert read.wait(5)
            worker.close()
            future.result(5)
        assert time.monotonic() - start < 5
    finally:
        lost.set()


# --- how shards are cut into pieces, and which images --start and --count name


def write_shard(folder: Path, count: int, name: str = "images") -> Shard:
    write_idx(folder / name, np.zeros((count, 2, 3), np.uint8))
    return open_shard(folder / name)


@pytest.mark.parametrize(
    ("start", "count", "found"),
    [
        (0, None, [(0, 3), (0, 0), (0, 5)]),
        (2, 3, [(2, 1), (0, 0), (0, 2)]),
        (3, 5, [(3, 0), (0, 0), (0, 5)]),
        (7, None, [(3, 0), (0, 0), (4, 1)]),
        (0, 1, [(0, 1), (0, 0), (0, 0)]),
    ],
)
def test_image_ranges(start: int, count: int | None, found: list[tuple[int, int]]) -> None:
    assert select_image_ranges([3, 0, 5], start, count) == found


@pytest.mark.parametrize(("start", "count"), [(8, None), (0, 9), (5, 4)])
def test_image_ranges_beyond_the_shards(start: int, count: int | None) -> None:
    with pytest.raises(UserError, match="beyond the 8 images"):
        select_image_ranges([3, 0, 5], start, count)


def test_pieces_end_at_multiples_of_their_size(tmp_path: Path) -> None:
    """An image is then in the same piece wherever ``--start`` begins."""
    one = write_shard(tmp_path, 25)
    assert [(piece.first, piece.count) for piece in split_into_pieces(4, one, 3, 20, 8)] == [(3, 5), (8, 8), (16, 7)]
    assert [piece.number for piece in split_into_pieces(4, one, 0, 8, 8)] == [4]
    assert not [*split_into_pieces(4, one, 5, 0, 8)]
    assert next(split_into_pieces(0, one, 0, 8, 8)).nbytes == 8 * 6


def test_a_compressed_shard_is_one_piece(tmp_path: Path) -> None:
    (piece,) = split_into_pieces(0, write_shard(tmp_path, 25, "images.gz"), 3, 20, 8)
    assert (piece.first, piece.count) == (3, 20)
