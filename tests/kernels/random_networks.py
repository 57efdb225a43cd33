"""Check that ``Classifier`` on a GPU gives random networks the labels of the float64 reference, in every precision.

``python -m tests.kernels.random_networks --count 500 --seconds 150`` needs a GPU. All CPU cores draw networks, compute
references and compile kernels. Memory that the engines allocate is filled with a poison byte. The last line counts the
networks and failures. Each failure has a line with the command that repeats it; the exit code is then 1.
"""

import ctypes
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import numpy as np

from app.base.errors import UserError
from app.base.precision import BY_NAME
from app.base.processor import core_count
from app.cuda.compiler import compile_kernel
from app.cuda.device import describe_gpu, why_no_gpu
from app.engine.classifier.classifier import Classifier
from app.network.reference import compute_reference
from app.network.verdicts import Reference
from app.network.weights import save_weights
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import plan
from app.terminal.console import Parser, number_type, run_guarded, whole_number_type
from tests.support.kernel_device import POISON, bits
from tests.support.networks_for_tests import GENERAL, check_labels
from tests.support.random_networks import random_network
from tests.support.random_networks_checked import graph_of

BATCH, FEW = 9, 2  # images; a batch of FEW must give the same results for them
PRECISIONS = tuple(name.replace("fp32x", "auto") for name in GENERAL if BY_NAME[name].offered)
REPEAT = "python -m tests.support.random_networks --device cuda --seed"


@dataclass(frozen=True)
class Prepared:
    """A random network's weights file, images for it (BATCH, C, H, W), and the reference results for these."""

    seed: int
    path: Path
    images: np.ndarray
    reference: Reference


def prepare_network(seed: int, folder: Path, arch: str, card: str) -> Prepared:
    """Draw a network, write its weights to ``folder``, compute reference results, and compile its kernels."""
    network = random_network(seed)
    graph, images = graph_of(network), network.images(BATCH)
    path = folder / f"{seed}.h5"
    save_weights(path, network.arrays, network=graph.network)
    table = tuning.load(card)
    for precision in PRECISIONS:
        for node in plan(graph, arch, Choices(precision, tuning=table)).nodes:
            for variant, settings in node.kernels:
                compile_kernel(variant.path, variant.launch_config(node.problem, settings).defines, arch)
    return Prepared(seed, path, images, compute_reference(graph, images))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill all device and page-locked memory that is allocated in this context with the byte POISON."""
    import cupy

    def allocate_device(size: int) -> object:
        memory = device_memory(size)
        cupy.cuda.runtime.memset(memory.ptr, POISON, size)
        return memory

    def allocate_pinned(size: int, *flags: int) -> object:
        memory = pinned_memory(size, *flags)
        ctypes.memset(memory.ptr, POISON, size)
        return memory

    device_memory, pinned_memory = cupy.cuda.Memory, cupy.cuda.PinnedMemory
    cupy.cuda.Memory, cupy.cuda.PinnedMemory = allocate_device, allocate_pinned
    try:
        yield
    finally:
        cupy.cuda.Memory, cupy.cuda.PinnedMemory = device_memory, pinned_memory


def check_classifier(network: Prepared, precision: str) -> None:
    """Classify all images, then the first FEW, and compare with the reference. Raises AssertionError."""
    with Classifier(network.path, device="cuda", precision=precision) as classifier:
        labels = classifier(network.images)
        scores = classifier.logits
        used = BY_NAME[classifier.precision]
        assert not np.isnan(scores).any(), "scores were never written"
        np.testing.assert_array_equal(scores[range(BATCH), labels], scores.max(axis=1))
        check_labels(labels, network.reference, used.dtype)
        np.testing.assert_array_equal(classifier(network.images[:FEW]), labels[:FEW])
        np.testing.assert_array_equal(bits(classifier.logits), bits(scores[:FEW]))
    assert precision != "auto" or used.name == "fp32x", f"auto is {used.name}"


def iter_failures(network: Prepared) -> Iterator[str]:
    """Yield a line for each precision whose check fails: the reason, and the command that repeats it."""
    for precision in PRECISIONS:
        try:
            check_classifier(network, precision)
        except (AssertionError, UserError) as error:
            reason = " ".join(str(error).split())[:300]
            yield f"seed {network.seed}, {precision}: {reason}; {REPEAT} {network.seed}"


def main() -> int:
    """Check as many random networks as the options' count and seconds allow; return the exit code."""
    parser = Parser(prog="python -m tests.kernels.random_networks", description=__doc__)
    parser.add_argument("--seed", type=whole_number_type(0, 2**31), default=0, help="the first network (default: 0)")
    parser.add_argument("--count", type=whole_number_type(1, 2**31), default=500, help="networks (default: 500)")
    parser.add_argument("--seconds", type=number_type(1, 1e6), default=1e6, help="stop after so long (default: never)")
    options = parser.parse_args()
    if (reason := why_no_gpu()) is not None:
        raise UserError(f"{reason}: run it on a machine with a GPU")
    start, arch, card = monotonic(), describe_gpu()["architecture"], describe_gpu()["name"]
    done, failed = 0, 0
    with (
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(core_count(), mp_context=get_context("spawn")) as pool,
        poisoned_memory(),
    ):
        seeds = range(options.seed, options.seed + options.count)
        found: list[Future[Prepared]] = [pool.submit(prepare_network, seed, Path(folder), arch, card) for seed in seeds]
        try:
            for prepared in as_completed(found, timeout=options.seconds):
                for line in iter_failures(prepared.result()):
                    print(line, flush=True)
                    failed += 1
                done += 1
                if monotonic() - start > options.seconds:
                    break
        except TimeoutError:
            pass
        pool.shutdown(wait=False, cancel_futures=True)
    spent = f"{monotonic() - start:.0f} s, {card}"
    print(f"{done} networks of {options.count} from seed {options.seed}, {failed} failures ({spent})")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
