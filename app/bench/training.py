"""``main.py bench --training``: time epochs of 60,000 images, on the card and by NumPy on this machine's processor.

The images are random: times do not depend on them. An epoch is the training loop's own: shuffling, every batch, and
reading the loss group by group. Shares are of the kernels' time, each measured between two events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from app.bench.document import card_text, heading, utc_date
from app.bench.profile.api_calls import Function, replaced
from app.commands.options.bench import BenchRequest
from app.cuda import device
from app.errors import UserError
from app.interrupts import deferred_interrupts, exit_on_interrupt
from app.network.definitions import family
from app.network.graph import find_network
from app.network.toml import network_toml
from app.processor import usable_cores
from app.report import publish
from app.runtime.clock import clocked
from app.runtime.statistics import median, stored
from app.text import INDENT, WIDTH, Column, format_factor, paragraph, table
from app.training import loop
from app.training.cpu_engine import CpuEngine, cpu_pool
from app.training.model import training_model
from app.training.progress import Job, Progress
from app.training.recipes import recipe_of
from app.training.settings import Settings
from app.training.team import Alone

if TYPE_CHECKING:  # needs CuPy
    from app.cuda.events import EventPair

SCHEMA = "lenet5-inference/training/1"
IMAGES = 60_000
EPOCHS = 5  # measured, after one untimed
NUMPY_BATCHES = 3  # measured, after one untimed
WATCHED = 8  # batches whose kernels are timed one by one
ACTIONS = 100  # launches and events per batch, roughly


@dataclass(frozen=True)
class Case:
    """One training to measure. hidden: units of mlp's first layer."""

    network: str
    batch: int
    hidden: int | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The fields that identify the training in the document."""
        return {"network": family(self.network), "hidden": self.hidden, "batch": self.batch}


WIDTHS = {100: "mlp", 500: "mlp_500", 1000: "mlp_1000"}
CASES = (Case("lenet5", 256), *(Case(name, batch, width) for width, name in WIDTHS.items() for batch in (256, 4096)))
HEADS = ("hidden", "batch", "s an epoch", "images/s", "NumPy s", "faster")
COLUMNS = (Column("network", left=True), *map(Column, HEADS))


def run_training(request: BenchRequest) -> int:
    """Measure, print and write. Returns 0; raises UserError."""
    device.require_gpu("bench")
    card = device.describe_gpu()
    processor = device.describe_cpu(usable_cores())
    cpu = f"{processor['name']}, {processor['threads']} threads, NumPy {processor['numpy']}"
    rows, shares = [], []
    with device.gpu_errors():
        for case in tqdm(CASES, desc="training", unit=" trainings", disable=None):
            measured, by_kernel = measure(case, card["architecture"])
            rows.append({**case.row, "device": card["name"], **measured, "cpu": cpu})
            shares += [{**case.row, "kernel": kernel, "share": share} for kernel, share in by_kernel.items()]
    document = {"schema": SCHEMA, "date": utc_date(), "device": card, "cpu": processor, "rows": rows, "shares": shares}
    publish(document, as_text, request.output)
    return 0


def measure(case: Case, arch: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Return times of the card and of NumPy, and each kernel's share of the card's time. Raises UserError."""
    with exit_on_interrupt():
        from app.cuda.memory import DeviceMemoryError
        from app.training.gpu.engine import GpuEngine

    job = _job(case)
    batches = [np.arange(at, at + case.batch) for at in range(0, WATCHED * case.batch, case.batch)]
    try:
        engine = GpuEngine(job, Alone())
        seconds = _epoch_seconds(engine, job.settings, job.progress)
        shares = _shares(engine, batches, arch)
    except DeviceMemoryError:
        message = "the GPU has too little free memory for bench --training: make it free, and try again"
        raise UserError(message) from None
    with deferred_interrupts() as check_interrupt, cpu_pool(1) as pool:
        reference = CpuEngine(job, pool, Alone(), check_interrupt)
        a_batch = _batch_seconds(reference, batches[: 1 + NUMPY_BATCHES])
    numpy_seconds = [seconds * IMAGES / case.batch for seconds in a_batch]
    return {
        "seconds_per_epoch": median(seconds),
        "images_per_second": IMAGES / median(seconds),
        "samples": stored(seconds),
        "numpy_seconds_per_epoch": median(numpy_seconds),
        "numpy_samples": stored(numpy_seconds),
    }, shares


def _job(case: Case) -> Job:
    """Return the network's recipe with the case's batch size, random images and labels; one is held out."""
    network = find_network(case.network)
    own = {"network": case.network, "definition": network_toml(network), "batch": case.batch, "seed": 1, "data": ""}
    settings = Settings(**{**vars(recipe_of(network)), **own, "images": IMAGES + 1, "validation": 1})
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (IMAGES + 1, *network.input_shape), np.uint8)
    labels = rng.integers(0, 10, IMAGES + 1, np.uint8)
    model = training_model(network, settings.biases)
    return Job(settings, model, images, labels, loop.start(model, settings), "cuda")


def _epoch_seconds(engine: loop.Engine, settings: Settings, progress: Progress) -> list[float]:
    for _ in range(1 + EPOCHS):
        progress = loop.run_epoch(engine, settings, progress, lambda *_: None)
    return [result.seconds for result in progress.history[1:]]


def _batch_seconds(engine: loop.Engine, batches: Sequence[np.ndarray]) -> list[float]:
    """Return the seconds of each batch but the first, which warms up."""
    taken = [clocked(partial(engine.train, [batch], 1, step))[1] for step, batch in enumerate(batches)]
    return [ms / 1e3 for ms in taken[1:]]


def _shares(engine: Any, batches: Sequence[np.ndarray], arch: str) -> dict[str, float]:
    """Return kernel → share of the kernels' time, the greatest first. The stream waits until a batch is enqueued."""
    from app.bench.timer import Hold

    hold, ms = Hold(arch), dict[str, float]()
    for step, batch in enumerate(batches):
        with _watched(engine.stream) as launches:
            hold(engine.stream, ACTIONS)
            engine.train([batch], 1, step)
        for name, pair in launches:
            ms[name] = ms.get(name, 0.0) + pair.ms
    whole = sum(ms.values())
    return {name: ms[name] / whole for name in sorted(ms, key=lambda name: -ms[name])}


@contextmanager
def _watched(stream: Any) -> Iterator[list[tuple[str, EventPair]]]:
    """Yield a list that every launch within the block joins: the kernel's name, and the events around it."""
    from app.cuda.events import EventPair
    from app.kernels import launch

    launches: list[tuple[str, EventPair]] = []

    def timing(original: Function) -> Function:
        def call(launched: Any, *arguments: Any) -> None:
            inference = isinstance(launched, launch.Launch)
            name = launched.kernel.variant.operation if inference else launched.name.removeprefix("train_")
            pair = EventPair()
            pair.around(partial(original, launched, *arguments), stream)
            launches.append((name.replace("_", " ").replace("gemm", "GEMM"), pair))

        return call

    with replaced(launch.Function, "__call__", timing), replaced(launch.Launch, "__call__", timing):
        yield launches


def as_text(document: Mapping[str, Any], width: int = WIDTH) -> str:
    """Format the document: a row per training, and below them each kernel's share of the time."""
    pairs = {
        "card": f"{card_text(document['device'])}; median of {EPOCHS} epochs",
        "CPU": f"{document['rows'][0]['cpu']}; median of {NUMPY_BATCHES} batches",
    }
    lines = [
        *heading(f"Training, epochs of {IMAGES:,} images", document, pairs, width),
        *table(COLUMNS, map(_cells, document["rows"]), width),
        "Share of the kernels' time",
    ]
    for row in document["rows"]:
        own = [s for s in document["shares"] if all(s[name] == row[name] for name in ("network", "hidden", "batch"))]
        name = f"{row['network']} {row['hidden'] or ''}".rstrip()
        shares = ", ".join(f"{share['kernel']} {share['share']:.1%}" for share in own)
        lines += paragraph(f"{name}, batch {row['batch']:,}: {shares}", width, INDENT, 2 * INDENT)
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    numpy_seconds, seconds = row["numpy_seconds_per_epoch"], row["seconds_per_epoch"]
    return [
        *(row["network"], str(row["hidden"] or ""), f"{row['batch']:,}", f"{seconds:.4f}"),
        *(f"{row['images_per_second']:,.0f}", f"{numpy_seconds:.2f}", f"{format_factor(numpy_seconds / seconds)}x"),
    ]
