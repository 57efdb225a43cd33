"""Check that NumPy gives an image's scores the same bits in every batch, in every chunk and at every index.

``python -m tests.support.cpu_bits`` prints where they do not, of all networks or of those named.
``OPENBLAS_CORETYPE`` and ``NPY_DISABLE_CPU_FEATURES`` choose the kernels of older processors; ``--kinds`` prints those
that ``make numeric`` runs tests with.
"""

import ctypes
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from app.engine.cpu import CpuEngine
from app.engine.interface import Outputs
from app.network.definitions import Network
from app.network.graph import REFERENCE_CHUNK, Graph, find_network
from tests.support.networks_for_tests import TEST_NETWORKS, random_graph, random_images

KINDS = {  # of OpenBLAS's kernels → the instructions that they need, as /proc/cpuinfo names them; Zen has Haswell's
    "Haswell": {"avx2", "fma"},
    "Sandybridge": {"avx"},
    "Nehalem": {"sse4_2"},
    "Prescott": {"pni"},
}
NUMERIC = ("Haswell", "Nehalem")  # with and without fused multiply-adds
ORIGINAL = Path(__file__).parents[2] / "docs/networks/lenet5_original.toml"  # a convolution has one output pixel
IMAGES = REFERENCE_CHUNK + 17
BATCHES = (1, 2, 7, 9, 31, 64, IMAGES - 1)


def networks() -> list[Network]:
    """Return all networks of the program, and some with unusual sizes."""
    return [*TEST_NETWORKS, find_network(str(ORIGINAL))]


def why_not(kind: str) -> str | None:
    """Return why this processor cannot run OpenBLAS's kernels of a kind; None if it can."""
    if platform.machine() != "x86_64":
        return f"{kind} is a kind of x86-64 processors"
    if kind == own_kind():
        return f"{kind}'s kernels are those that all tests run with here"
    missing = KINDS[kind] - set(Path("/proc/cpuinfo").read_text("utf-8").split())
    if missing:
        return f"{kind}'s kernels need {', '.join(sorted(missing))}, which this processor lacks"
    return None


@cache
def own_kind() -> str:
    """Return the kind of kernels that NumPy's OpenBLAS has chosen in this process; "" if it does not report one."""
    for path in (Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas*"):
        name = getattr(ctypes.CDLL(str(path)), "scipy_openblas_get_corename64_", None)
        if name is not None:
            name.restype = ctypes.c_char_p
            return str(name().decode())
    return ""


def crashes(kind: str) -> bool:
    """Return whether a NumPy product crashes its process, as in NumPy 2.5.5 with forced kernels on some processors."""
    product = "import numpy as np; a = np.ones((1000, 1000)); a @ a; a.astype('f4') @ a.astype('f4')"
    child = [sys.executable, "-c", product]
    return subprocess.run(child, env=os.environ | {"OPENBLAS_CORETYPE": kind}, capture_output=True).returncode < 0


def unlike(network: Network) -> Iterator[str]:
    """Yield a line for each batch in which images get other scores than in one batch of all images. One thread."""
    graph, images = random_graph(network), random_images(network, IMAGES)
    expected = _scores(graph, images, 1)
    assert len(np.unique(expected)) > IMAGES, "scores that are all the same would prove nothing"
    for number, batch in enumerate(BATCHES):
        first, threads = (IMAGES - batch) * number // len(BATCHES), 1 + number % 3
        found = _scores(graph, images[first : first + batch], threads)
        differing = (found.view(np.uint32) != expected[first : first + batch].view(np.uint32)).any(axis=1).sum()
        if differing:
            yield f"{network.name}: {differing} of images {first} to {first + batch - 1}, by {threads} threads"


def _scores(graph: Graph, images: np.ndarray, threads: int) -> np.ndarray:
    engine = CpuEngine(graph)
    engine.threads = threads
    scores = np.full((len(images), graph.class_count), np.nan, np.float32)
    engine.run(images, Outputs(np.empty(len(images), np.uint8), scores))
    return scores


def main() -> None:
    """Run the command."""
    if sys.argv[1:] == ["--kinds"]:
        print(*(kind for kind in NUMERIC if why_not(kind) is None and not crashes(kind)))
        return
    for network in networks():
        for line in unlike(network) if network.name in sys.argv[1:] or not sys.argv[1:] else ():
            print(line)


if __name__ == "__main__":
    main()
