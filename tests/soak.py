"""Engines in several threads at once, on every route, of several plans: the same bits as in one thread?

``python -m tests.soak --seconds 600`` needs a GPU; it ends with ``N batches, 0 differences``, and with exit code 1 if
any result differed or a batch that came again was not captured as a graph.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from time import monotonic
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.base.interrupts import deferred_interrupts
from app.main_job.result import repeat_images
from app.network.definitions import LENET5, MINIDNN86, MLP
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan, plan
from app.terminal.console import Parser, run_guarded, whole_number_type
from tests.support.networks_for_tests import random_graph, random_images, rounded
from tests.support.requests import named_choices

POOL = 700  # number of different images
# lenet5 has no biases, like its shipped weights: only then a kernel reads images from host memory. Images of minidnn86
# are resized on the card; those of mlp are copied in one piece.
GRAPHS: dict[str, Callable[[int], Graph]] = {
    "lenet5": lambda seed: random_graph(LENET5, seed=seed, bias=False),
    "lenet5 exact": lambda seed: rounded(random_graph(LENET5, seed=seed, bias=False)),
    "minidnn86": lambda seed: random_graph(MINIDNN86, seed=seed),
    "mlp": lambda seed: random_graph(MLP, seed=seed),
}
PLANS = {
    f"{name} {precision}": (name, precision)
    for name, precisions in (
        ("lenet5", "fp32 fp32x fp16"),
        ("lenet5 exact", "fp32x"),
        ("minidnn86", "fp32x fp16"),
        ("mlp", "fp32x fp16"),
    )
    for precision in precisions.split()
}
CHUNKS = (9, 32, 100, 1000)
MOST_STREAMS = 4
TIMES = 4  # runs of a batch after its graph was captured
GRAPH_ROUTES = ("chunks replayed", "read by the first kernel", "copied at once")
ROUTES = ("page-locked", "pageable", *GRAPH_ROUTES, "streamed", "to new outputs", "on the card", "cuBLAS")
SHOWN = 10  # differences that are printed


class SharedData:
    """Data of all threads: plans, images and, for each plan, every image's label and logits by a single thread."""

    def __init__(self, seed: int) -> None:
        from app.cuda.device import describe_gpu

        self.seed = seed
        self.images = random_images(LENET5, POOL, seed=seed)
        arch = describe_gpu()["architecture"]
        graphs = {name: make(seed) for name, make in GRAPHS.items()}
        self.plans = {
            name: plan(graphs[network], arch, Choices(precision=precision))
            for name, (network, precision) in PLANS.items()
        }
        self.library = plan(graphs["lenet5"], arch, named_choices(precision="fp32", kernels={"gemm": "cublas"}))
        self.labels: dict[str, np.ndarray] = {}
        self.logits: dict[str, np.ndarray] = {}
        for name, execution in self.plans.items():
            with _open_engine(execution, chunk=POOL, streams=1) as engine:
                outputs = engine.allocate_outputs(POOL, logits=True)
                engine.run(self.images, outputs)
                self.labels[name], self.logits[name] = outputs.labels.copy(), outputs.logits.copy()


class Worker:
    """The work of one thread. batches: route → number of batches. differences: a line for each."""

    def __init__(self, shared: SharedData, number: int) -> None:
        self._shared, self._number = shared, number
        self._rng = np.random.default_rng([shared.seed, number])
        self._plan = ""
        self.batches: Counter[str] = Counter()
        self.differences: list[str] = []

    def work(self, deadline: float, stop: Event) -> None:
        """Open engines, run random batches and close the engines until the deadline, or until ``stop`` is set."""
        while monotonic() < deadline and not stop.is_set():
            if self._rng.random() < 0.1:
                self._use_cublas()
                continue
            self._plan = str(self._rng.choice(list(PLANS)))
            settings = {
                "chunk": int(self._rng.choice(CHUNKS)),
                "streams": int(self._rng.integers(1, MOST_STREAMS + 1)),
                "always_in_chunks": bool(self._rng.integers(2)),
            }
            with _open_engine(self._shared.plans[self._plan], **settings) as engine:
                routes = (self._run_pinned, self._run_pageable, self._repeat, self._stream, self._run_to_new)
                for index in self._rng.integers(0, len(routes), self._rng.integers(1, 8)):
                    routes[index](engine)

    def _run_pinned(self, engine: Any) -> None:
        items = self._draw_items()
        self._run(engine, self._pin_images(items), self._make_outputs(engine, len(items)), items, "page-locked")

    def _run_pageable(self, engine: Any) -> None:
        items = self._draw_items()
        self._run(engine, self._shared.images[items], self._make_outputs(engine, len(items)), items, "pageable")

    def _run(self, engine: Any, images: np.ndarray, outputs: Any, items: np.ndarray, route: str) -> None:
        """Run a batch into outputs filled with invalid values, and compare the results."""
        engine.run(images, _poison(outputs))
        self._compare(route, items, outputs.labels, self._shared.labels[self._plan])
        if outputs.logits is not None:
            self._compare(f"{route}, logits", items, outputs.logits, self._shared.logits[self._plan])
        self.batches[route] += 1

    def _repeat(self, engine: Any) -> None:
        """Run a batch in the same arrays: enqueued, captured as a graph, then replayed with other images in them."""
        items = self._draw_items(most=9 * 60)  # as many chunks as a graph may have
        images, outputs = self._pin_images(items), self._make_outputs(engine, len(items))
        for _ in range(2):
            self._run(engine, images, outputs, items, "page-locked")
        route = "chunks replayed" if engine.direct is None else engine.direct.how
        if not engine.replays_graph_for(images, outputs):
            self.differences.append(f"{self._plan}: a batch of {len(items)} images was not captured")
        for _ in range(TIMES):
            items = self._draw_items(count=len(items))
            images[:] = self._shared.images[items]
            self._run(engine, images, outputs, items, route)

    def _stream(self, engine: Any) -> None:
        items = self._draw_items()
        one, other = (self._make_outputs(engine, len(items), logits=False) for _ in range(2))
        batch = int(self._rng.integers(1, 4 * len(items)))
        for labels in engine.stream(repeat_images(self._pin_images(items), batch), (one, other)):
            self._compare("streamed", items[: len(labels)], labels, self._shared.labels[self._plan])
            self.batches["streamed"] += 1

    def _run_to_new(self, engine: Any) -> None:
        """Run images in host memory, then in device memory; both use the same kernels and weights."""
        items = self._draw_items()
        images = self._shared.images[items]
        found = [("to new outputs", engine.run(images)), ("on the card", _run_on_card(engine, images))]
        for route, (labels, logits) in found:
            self._compare(route, items, labels, self._shared.labels[self._plan])
            self._compare(f"{route}, logits", items, logits, self._shared.logits[self._plan])
            self.batches[route] += 1

    def _use_cublas(self) -> None:
        """Create, use and destroy cuBLAS handles, if it is installed; destroying waits for the whole device."""
        with suppress(UserError), _open_engine(self._shared.library, chunk=100, streams=2) as engine:
            engine.run(self._shared.images, engine.allocate_outputs(POOL))
            self.batches["cuBLAS"] += 1

    def _draw_items(self, *, count: int | None = None, most: int = POOL) -> np.ndarray:
        """Return random indices of images, ``count`` or at most ``most``."""
        return self._rng.integers(0, POOL, count or self._rng.integers(1, most + 1))

    def _pin_images(self, items: np.ndarray) -> np.ndarray:
        from app.cuda.memory import pinned_copy

        return pinned_copy(self._shared.images[items])

    def _make_outputs(self, engine: Any, count: int, *, logits: bool | None = None) -> Any:
        return _poison(engine.allocate_outputs(count, logits=bool(self._rng.integers(2)) if logits is None else logits))

    def _compare(self, what: str, items: np.ndarray, found: np.ndarray, expected: np.ndarray) -> None:
        wanted = expected[items]
        if found.tobytes() != wanted.tobytes():
            rows = (found != wanted).reshape(len(items), -1).any(axis=1)
            self.differences.append(f"{self._plan}, {what}: {rows.sum()} of {len(items)} images differ")


def _poison(outputs: Any) -> Any:
    outputs.labels.fill(255)
    if outputs.logits is not None:
        outputs.logits.fill(np.nan)
    return outputs


def _run_on_card(engine: Any, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copy images to the card and classify them there on a new stream; return labels and logits."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.empty(images.shape, images.dtype)
        array.set(images, stream=stream)
        labels, logits = engine.run_on_card(array, stream)
        return labels.get(stream=stream), logits.get(stream=stream)


def _open_engine(execution: ExecutionPlan, **settings: Any) -> Any:
    from app.engine.gpu import GpuEngine

    return GpuEngine(execution, **settings)


def soak(seconds: float, *, threads: int = 2, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Run the threads for some seconds; return route → number of batches, and differences. Raises as a thread does."""
    shared = SharedData(seed)
    workers = [Worker(shared, number) for number in range(threads)]
    deadline, stop = monotonic() + seconds, Event()
    with deferred_interrupts() as check_interrupt, ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(worker.work, deadline, stop) for worker in workers]
        try:
            while not all(each.done() for each in running) and not any(e.done() and e.exception() for e in running):
                check_interrupt()
                stop.wait(0.1)
        finally:
            stop.set()
        for each in running:
            each.result()
    batches = sum((worker.batches for worker in workers), Counter[str]())
    return batches, [line for worker in workers for line in worker.differences]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--seconds", type=whole_number_type(1), default=600, metavar="N", help="how long (default: 600)"
    )
    parser.add_argument("--threads", type=whole_number_type(1), default=2, metavar="N", help="at once (default: 2)")
    parser.add_argument(
        "--seed", type=whole_number_type(0), default=0, metavar="N", help="of images, weights and choices"
    )
    options = parser.parse_args(arguments)

    from app.cuda.device import translate_gpu_errors, why_no_gpu

    if (reason := why_no_gpu()) is not None:
        raise UserError(f"the soak test needs a GPU: {reason}")
    with translate_gpu_errors():
        batches, differences = soak(options.seconds, threads=options.threads, seed=options.seed)
    for line in differences[:SHOWN]:
        print(line, file=sys.stderr)
    print(", ".join(f"{route}: {batches[route]:,}" for route in ROUTES))
    print(f"{batches.total():,} batches, {len(differences)} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
