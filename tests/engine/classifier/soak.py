"""Classifiers in several threads, shared ones and own ones that are made and closed meanwhile: the same bits as in one?

``python -m tests.engine.classifier.soak --seconds 60`` takes the GPU, or the CPU without one. It ends with exit code 1
if a result differed or the memory grew.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np

from app.engine.classifier import Classifier
from app.network.definitions import LENET5
from app.terminal.console import Parser, guarded, whole_number
from tests.support.networks_for_tests import random_images

# What each network computes itself: the other follows from it in NumPy or CuPy, whose last bits may differ.
NETWORKS = {"lenet5": "logits", "mlp": "probabilities"}
SIZES = (1, 2, 5, 33)  # on the CPU, the bits of logits may depend on the size of a batch
MOST_GROWTH = 16 << 20  # bytes; a lost session has more


@dataclass
class Found:
    """calls: how many. differences: a line each. growth: bytes of memory, on the card and on the host, in all calls
    after the first third."""

    calls: int
    differences: list[str]
    growth: tuple[int, int]


class Soak:
    """What the threads share: classifiers, images, and what one thread alone made of them."""

    def __init__(self, device: str, seed: int) -> None:
        self.device, self.seed = device, seed
        self.images = random_images(LENET5, max(SIZES), seed=seed)
        self.shared = {network: Classifier(network, device=device) for network in NETWORKS}
        self.expected = {(name, n): self.answer(name, n) for name in NETWORKS for n in SIZES}

    def answer(self, network: str, count: int) -> tuple[bytes, bytes]:
        labels = self.shared[network](self.images[:count])
        return labels.tobytes(), getattr(self.shared[network], NETWORKS[network]).tobytes()

    def work(self, number: int, seconds: float) -> tuple[int, list[str]]:
        """One thread: calls until the time is over; returns their number and the differences."""
        rng, differences, calls = np.random.default_rng([self.seed, number]), [], 0
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            network, count = str(rng.choice([*NETWORKS])), int(rng.choice(SIZES))
            with ExitStack() as stack:
                classifier = self.shared[network]
                if rng.random() < 0.2:
                    classifier = stack.enter_context(Classifier(network, device=self.device))
                how = "on the card" if classifier.device == "cuda" and rng.random() < 0.5 else "on the host"
                labels, scores = self._call(classifier, count, how, NETWORKS[network])
            if (labels.tobytes(), scores.tobytes()) != self.expected[network, count]:
                differences.append(f"{network}, {count} images {how}, thread {number}")
            calls += 1
        return calls, differences

    def _call(self, classifier: Classifier, count: int, how: str, scores: str) -> tuple[np.ndarray, np.ndarray]:
        if how == "on the host":
            return classifier(self.images[:count]), getattr(classifier, scores)
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            images = cupy.empty(self.images[:count].shape, np.uint8)
            images.set(self.images[:count], stream=stream)
            labels = classifier(images, on_card=True)
            return labels.get(stream=stream), getattr(classifier, scores).get(stream=stream)


def memory(device: str) -> tuple[int, int]:
    """Bytes in use on the card, and resident on the host."""
    used = 0
    if device == "cuda":
        import cupy

        free, total = cupy.cuda.runtime.memGetInfo()
        used = total - free
    return used, int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def soak(seconds: float, *, threads: int = 4, device: str = "auto", seed: int = 0) -> Found:
    """Call from all threads. Raises what a thread raises."""
    shared = Soak(device, seed)
    before = (0, 0)
    found: list[tuple[int, list[str]]] = []
    used = next(iter(shared.shared.values())).device
    with ThreadPoolExecutor(threads) as pool:
        for share in (1 / 3, 2 / 3):
            before = memory(used)  # the first third makes what is kept
            found += pool.map(lambda number, share=share: shared.work(number, seconds * share), range(threads))
    after = memory(used)
    for classifier in shared.shared.values():
        classifier.close()
    differences = [line for _, lines in found for line in lines]
    return Found(sum(calls for calls, _ in found), differences, (after[0] - before[0], after[1] - before[1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = Parser(prog="python -m tests.engine.classifier.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=whole_number(1), default=60, metavar="N", help="how long (default: 60)")
    parser.add_argument("--threads", type=whole_number(1), default=4, metavar="N", help="at once (default: 4)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="(default: auto)")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of images and choices")
    options: argparse.Namespace = parser.parse_args(arguments)
    found = soak(options.seconds, threads=options.threads, device=options.device, seed=options.seed)
    for line in found.differences[:10]:
        print(line, file=sys.stderr)
    card, host = found.growth
    print(f"{found.calls:,} calls, {len(found.differences)} differences")
    print(f"memory grew by {card:,} bytes on the card, by {host:,} on the host")
    return 1 if found.differences or max(found.growth) > MOST_GROWTH else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
