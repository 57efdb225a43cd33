"""Compare the results of classifiers in several threads with those of an engine alone, bit by bit.

``python -m tests.engine.classifier.soak --seconds 600`` uses the GPU, or the CPU without one, with all networks and
precisions. Threads open, call and close classifiers. On a GPU, one thread's classifiers have resident kernels, and
another thread waits for the whole device all the time. The exit code is 1 if a result differed or the memory grew.
"""

import argparse
import ctypes
import gc
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np

from app.base.errors import UserError
from app.base.precision import PRECISIONS
from app.engine.classifier import Classifier
from app.engine.interface import CPU_ENGINE, NUMPY
from app.engine.opening import open_engine
from app.layers import Softmax
from app.network.definitions import LENET5, NETWORKS
from app.planning.choices import load_graph
from app.planning.request import NetworkRequest
from app.terminal.console import Parser, run_guarded, whole_number_type
from tests.support.networks_for_tests import random_images

MOST = {"cuda": 10_000, "cpu": 100}  # images per batch
CALLS = 12  # calls of a classifier before it is closed
RESIDENT = ("fp16", "fp32x")  # precisions of lenet5 that a resident kernel serves
SHARED = 0.2  # share of the calls that use the classifier shared by all threads
M_ARENA_MAX = -8  # glibc's malloc.h
MOST_GROWTH = 16 << 20  # bytes; an engine that is not freed takes more


class Case(NamedTuple):
    """A network in one precision. scores: the classifier's property that equals the engine's scores to the bit."""

    network: str
    precision: str
    scores: str
    labels: np.ndarray
    expected: np.ndarray  # the engine's scores of all images


@dataclass
class Found:
    """What the threads counted.

    counts: calls by network and precision, kind of array and classifier. differences: a line each. growth: bytes of GPU
    and of host memory after the first third of the calls. notes: networks that did not run, and why.
    """

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    growth: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.counts["calls"]


class Soak:
    """What the threads share: images in every kind of memory, one classifier, and the results of engines alone."""

    def __init__(self, device: str, seed: int, networks: Sequence[str], precisions: Sequence[str]) -> None:
        with Classifier(device=device) as first:
            self.device = first.device
        self.seed, self.found = seed, Found()
        images = random_images(LENET5, MOST[self.device], seed=seed)
        wide = np.zeros((*images.shape[:-1], 2 * images.shape[-1]), np.uint8)
        wide[..., ::2] = images
        self.arrays: dict[str, Any] = {"ordinary": images, "strided": wide[..., ::2]}
        self.cases = [
            case
            for network in networks
            for precision in (precisions if self.device == "cuda" else ("auto",))
            if (case := self.compute_case(network, precision)) is not None
        ]
        self.resident = [  # resident classifiers use dense kernels
            dense
            for case in self.cases
            if case.network == "lenet5" and case.precision in RESIDENT
            if (dense := self.compute_case("lenet5", case.precision, sparse=False)) is not None
        ]
        if self.device == "cuda":
            self._add_arrays_of_the_card(wide)
        self.shared = Classifier(self.cases[0].network, device=device, precision=self.cases[0].precision)

    def _add_arrays_of_the_card(self, wide: np.ndarray) -> None:
        import cupy

        from app.cuda.memory import pinned_copy

        self.arrays["page-locked"] = pinned_copy(self.arrays["ordinary"])
        self.arrays["on the card"] = cupy.asarray(self.arrays["ordinary"])
        self.arrays["strided on the card"] = cupy.asarray(wide)[..., ::2]
        cupy.cuda.runtime.deviceSynchronize()

    def compute_case(self, network: str, precision: str, sparse: bool = True) -> Case | None:
        """Return an engine's results for all images; None if no kernels compute the network in this precision."""
        try:
            graph, _, choices = load_graph(NetworkRequest(network=network, precision=precision, sparse=sparse))
            with open_engine(graph, choices, device=self.device) as engine:
                labels, scores = engine.run(self.arrays["ordinary"])
        except UserError as error:
            self.found.notes.append(f"no {network} in {precision}: {error}")
            return None
        assert scores is not None
        softmax = any(isinstance(step.layer, Softmax) for step in graph.steps[-2:])
        return Case(network, precision, "probabilities" if softmax else "logits", labels, scores)

    def run_thread(self, number: int, threads: int, seconds: float) -> Found:
        """Open, call and close classifiers in thread ``number`` for ``seconds``; return what was counted."""
        rng, found, deadline = np.random.default_rng([self.seed, number]), Found(), monotonic() + seconds
        cases = self.resident if number == 0 and self.resident else self.cases
        at = number * len(cases) // threads
        for memory in self.arrays:  # so that buffers grow only in the first third
            self.check_call(self.shared, self.cases[0], "shared", rng, found, memory)
        while monotonic() < deadline:
            case = cases[at % len(cases)]
            at += 1
            more = {"resident": True} if cases is self.resident else {}
            kind = "resident" if more else "own"
            with Classifier(case.network, device=self.device, precision=case.precision, **more) as own:
                for _ in range(CALLS):
                    if rng.random() < SHARED:
                        self.check_call(self.shared, self.cases[0], "shared", rng, found)
                    else:
                        self.check_call(own, case, kind, rng, found)
                    if monotonic() >= deadline:
                        break
            found.counts[f"{kind} classifiers closed"] += 1
        return found

    def check_call(
        self, classifier: Classifier, case: Case, kind: str, rng: np.random.Generator, found: Found, memory: str = ""
    ) -> None:
        """Classify some images in a random kind of memory, or all images in ``memory``; count differences."""
        count = MOST[self.device] if memory else int(MOST[self.device] ** rng.random() + 0.5)
        count = min(count, 8) if kind == "resident" and rng.random() < 0.8 else count
        memory = memory or str(rng.choice([*self.arrays]))
        start = int(rng.integers(MOST[self.device] - count + 1))
        images = self.arrays[memory][start : start + count]
        images = images[0, 0] if count == 1 and rng.random() < 0.5 else images
        labels, scores = classify(classifier, case.scores, images, stays=rng.random() < 0.5)
        right = case.labels[start : start + count].tobytes(), case.expected[start : start + count].tobytes()
        if (labels.tobytes(), scores.tobytes()) != right:
            found.differences.append(f"{case.network} {case.precision}, {count} images {memory}, {kind} classifier")
        found.counts.update(("calls", f"{case.network} {case.precision}", f"{memory} arrays", f"{kind} classifiers"))
        found.counts["images"] += count


def classify(classifier: Classifier, scores: str, images: Any, *, stays: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and scores in host memory. stays: request the results of GPU images in GPU memory first."""
    if isinstance(images, np.ndarray):
        return classifier(images), getattr(classifier, scores)
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        labels = classifier(images, on_card=stays)
        found = getattr(classifier, scores)
        return (labels.get(stream=stream), found.get(stream=stream)) if stays else (labels, found)


@contextmanager
def wait_for_device_meanwhile(device: str, counts: Counter[str]) -> Any:
    """Let a thread wait for the whole device again and again while the block runs."""
    over = Event()

    def wait() -> None:
        import cupy

        while not over.is_set():
            cupy.cuda.runtime.deviceSynchronize()
            counts["waits for the whole device"] += 1
            sleep(0)

    thread = Thread(target=wait)
    if device == "cuda":
        thread.start()
    try:
        yield
    finally:
        over.set()
        if device == "cuda":
            thread.join()


def used_memory(device: str) -> tuple[int, int]:
    """Return the bytes in use on the GPU, and resident on the host, after allocators have released free memory."""
    gc.collect()
    used = 0
    if device == "cuda":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        free, total = cupy.cuda.runtime.memGetInfo()
        used = total - free
    with suppress(AttributeError):  # other C libraries lack it
        ctypes.CDLL(None).malloc_trim(0)
    return used, int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def soak(
    seconds: float,
    *,
    threads: int = 4,
    device: str = "auto",
    seed: int = 0,
    networks: Sequence[str] = ("lenet5", "mlp"),
    precisions: Sequence[str] = RESIDENT,
) -> Found:
    """Run all threads; return the sum of what they counted. Raises the exception of a thread."""
    with suppress(AttributeError):  # separate arenas per thread would hide a leak: they grow by tens of MB
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    shared = Soak(device, seed, networks, precisions)
    found, before = shared.found, (0, 0)
    with ThreadPoolExecutor(threads) as pool, wait_for_device_meanwhile(shared.device, found.counts):
        for share in (1 / 3, 2 / 3):
            before = used_memory(shared.device)  # the first third allocates all lasting buffers
            works = [pool.submit(shared.run_thread, number, threads, seconds * share) for number in range(threads)]
            for one in [work.result() for work in works]:
                found.counts.update(one.counts)
                found.differences += one.differences
        after = used_memory(shared.device)
    shared.shared.close()
    found.growth = (after[0] - before[0], after[1] - before[1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak test from the command line; return the exit code."""
    parser = Parser(prog="python -m tests.engine.classifier.soak", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seconds", type=whole_number_type(1), default=600, metavar="N", help="how long (default: 600)"
    )
    parser.add_argument("--threads", type=whole_number_type(1), default=4, metavar="N", help="at once (default: 4)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="(default: auto)")
    parser.add_argument("--seed", type=whole_number_type(0), default=0, metavar="N", help="of images and choices")
    options: argparse.Namespace = parser.parse_args(arguments)
    os.environ.setdefault(CPU_ENGINE, NUMPY)  # ONNX Runtime's bits depend on the size of a batch
    everything = {"networks": [*NETWORKS], "precisions": PRECISIONS}
    found = soak(options.seconds, threads=options.threads, device=options.device, seed=options.seed, **everything)
    for line in found.differences[:10]:
        print(line, file=sys.stderr)
    for line in found.notes:
        print(line)
    for what, count in sorted(found.counts.items()):
        print(f"{count:>15,} {what}")
    card, host = found.growth
    print(f"{found.calls:,} calls, {len(found.differences)} differences")
    print(f"memory grew by {card:,} bytes on the card, by {host:,} on the host")
    return 1 if found.differences or max(found.growth) > MOST_GROWTH else 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
