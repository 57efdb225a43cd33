"""Measure what ``classify`` spends besides reading and computing: opening files, sending work, storing labels.

``python -m docs.measure.classify_costs`` prints the times for the estimates in docs/scale.md. It needs no GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import h5py
import numpy as np

from app.base.clock import Timer, time_call
from app.base.frozen import Frozen
from app.base.interrupts import exit_ignoring_signals, install_exit_handlers
from app.base.processor import core_count
from app.classify.outputs import OutputFolder
from app.classify.pieces import GPU_PIECE
from app.classify.receipts import file_sha256
from app.classify.shards import open_shard
from app.cluster import require_dask
from app.cuda.device import describe_cpu
from app.files import hdf5_process
from app.lab.document import utc_date
from app.main_job.statistics import median
from app.records.classify import ClassifyCosts, Cluster, Identity, OpenSeconds
from app.records.parts import Processor
from app.terminal.console import Parser, run_guarded
from app.terminal.options import add_options, options, request_from_values
from app.terminal.output import Output, check_outputs, publish_report
from app.terminal.text import Column, fields, table
from data_tools.idx import write_idx

WORKERS = 2
LABELS = (1, GPU_PIECE)  # number of labels that a task returns: hardly any, and those of a full piece of work
SECONDS = 3.0  # to measure with each of LABELS
ROUNDS = 25  # shards to open in each format, and shards whose labels are stored
PIECES = 10  # pieces of a shard whose labels are stored
HASHED_BYTES = 256 << 20
FORMATS = {"IDX": "images", "IDX, gzip": "images.gz", "NPY": "images.npy", "HDF5": "images.h5"}  # format → file name


class CostsRequest(Frozen, kw_only=True):
    """The options of ``python -m docs.measure.classify_costs``."""

    output: Output = options(what="all costs")


def measure_costs() -> ClassifyCosts:
    """Measure all costs and return the document. Raises UserError without Dask."""
    require_dask("classify_costs")
    with TemporaryDirectory() as place:
        folder = Path(place)
        return {
            "schema": "lenet5-inference/classify-costs/1",
            "date": utc_date(),
            "cpu": cast(Processor, describe_cpu(core_count())),
            "open_s": cast(OpenSeconds, {name: _opening_seconds(folder / file) for name, file in FORMATS.items()}),
            "store_s": _storing_seconds(folder),
            "hash_gbytes_per_s": _hashing_rate(folder / "hashed"),
            "cluster": [_piece_rate(count) for count in LABELS],
        }


def _opening_seconds(path: Path) -> float:
    """Return the median time in seconds of opening a shard in the format that the path's suffix names."""
    images = np.zeros((1000, 28, 28), np.uint8)
    if path.suffix == ".npy":
        np.save(path, images)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["x"] = images[..., None]
    else:
        write_idx(path, images)
    with hdf5_process.Reader() as hdf5:
        return median([_call_seconds(lambda: open_shard(path, unlabelled=True, hdf5=hdf5)) for _ in range(ROUNDS)])


def _storing_seconds(folder: Path) -> float:
    """Return the median seconds to store the labels of a shard of ``PIECES`` pieces, and their receipt (hashes)."""
    shards = []
    for number in range(ROUNDS):
        path = folder / f"shard{number}"
        write_idx(path, np.zeros((1, 28, 28), np.uint8))
        shards.append(open_shard(path, unlabelled=True))
    labels = np.zeros(GPU_PIECE, np.uint8)
    identity = Identity(network="lenet5", weights="0" * 64, precision="none", classes=10)
    windows = [(0, PIECES * GPU_PIECE)] * ROUNDS
    with OutputFolder(folder / "out", shards, windows).create_and_lock(identity) as out:

        def store_labels(number: int) -> None:
            for piece in range(PIECES):
                out.write(number, piece * GPU_PIECE, labels, None, None)

        return median([_call_seconds(partial(store_labels, number)) for number in range(ROUNDS)])


def _hashing_rate(path: Path) -> float:
    """Return the GB/s at which ``--resume`` checks the hashes of results. path: of a file to create."""
    path.write_bytes(bytes(HASHED_BYTES))
    return HASHED_BYTES / 1e9 / median([_call_seconds(lambda: file_sha256(path)) for _ in range(3)])


@dataclass(frozen=True)
class IdleEngine:
    """Replaces an engine and computes nothing. labels: number of labels that it returns for a piece of work."""

    labels: int

    @contextmanager
    def __call__(self, name: str | None) -> Iterator[Callable[[int], np.ndarray]]:
        """Yield a function that returns zeros as the labels of a piece."""
        labels = np.zeros(self.labels, np.uint8)
        yield lambda _: labels


def _piece_rate(labels: int) -> Cluster:
    """Return how many pieces of work per second Dask distributes to workers that compute nothing."""
    from app.cluster.clusters import LocalWorker
    from app.cluster.runner import open_local_runner

    workers = [LocalWorker(f"worker {number}") for number in range(WORKERS)]
    with open_local_runner(IdleEngine(labels), workers) as runner:
        list(runner.run(range(4 * WORKERS)))  # so that all workers have started
        timer = Timer()

        def piece_numbers() -> Iterator[int]:
            number = 0
            while timer.seconds < SECONDS:
                yield number
                number += 1

        count = sum(1 for _ in runner.run(piece_numbers()))
        rate = count / timer.seconds
        return {"workers": WORKERS, "labels": labels, "pieces": count, "pieces_per_s": rate}


def _call_seconds(action: Callable[[], object]) -> float:
    return time_call(action)[1] / 1e3


def as_text(document: ClassifyCosts, width: int) -> str:
    """Return the document as text of at most ``width`` columns."""
    opening = cast(dict[str, float], document["open_s"])
    pairs = {
        "processor": f"{document['cpu']['name']}, {document['cpu']['threads']} threads",
        **{f"open {name}": f"{seconds * 1e3:.2f} ms a shard" for name, seconds in opening.items()},
        "store": f"{document['store_s'] * 1e3:.2f} ms for {PIECES * GPU_PIECE:,} labels, with their receipt",
        "check": f"{document['hash_gbytes_per_s']:.2f} GB/s of results (--resume)",
    }
    columns = [Column("labels of a piece"), Column("pieces/s"), Column("MB/s")]
    rows = [
        [f"{row['labels']:,}", f"{row['pieces_per_s']:,.0f}", f"{row['pieces_per_s'] * row['labels'] / 1e6:,.1f}"]
        for row in document["cluster"]
    ]
    title = f"Through Dask, {WORKERS} workers that compute nothing"
    head = [f"Costs of classify, {document['date']}", *fields(pairs.items(), width)]
    return "\n".join([*head, "", title, *table(columns, rows, width)])


def main() -> int:
    """Measure the costs, and print or write them as the options say; return 0."""
    parser = Parser(prog="python -m docs.measure.classify_costs", description="Measure what classify itself takes.")
    add_options(parser, CostsRequest)
    found = vars(parser.parse_args())
    check_outputs(found)
    publish_report(measure_costs(), as_text, request_from_values(CostsRequest, found).output)
    return 0


if __name__ == "__main__":
    install_exit_handlers()
    exit_ignoring_signals(run_guarded(main))
