"""Time the kernels that ``auto`` chooses and their alternatives, on built-in and random networks.

``python -m tests.kernels.cost_model --count 40 --json FILE`` needs a GPU. Alternatives are other tile sizes of a
kernel, other kernels for a layer or a pair of layers, and single kernels instead of one for a pair. Each time is that
of a pass over images in device memory. All CPU cores compile; then the GPUs of ``--cards`` share the networks.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np

from app.base.errors import UserError
from app.base.processor import core_count
from app.cuda.compiler import compile_kernel
from app.cuda.device import describe_gpu
from app.kernels import registry
from app.kernels.problems import PairProblem, operation, tuning_key
from app.kernels.variant import Variant
from app.network.definitions import NETWORKS
from app.network.graph import Graph, build_graph, find_network, shipped_or_random_weights
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.plan import IMAGES, plan
from app.planning.tuning import TunedResult, Tuning
from app.terminal.console import Parser, run_guarded, whole_number_type
from tests.support.random_networks import uncentred_network
from tests.support.random_networks_checked import graph_of

PRECISIONS = ("fp16", "fp32x")
KNOWN = tuple(NETWORKS)
FILES = tuple(sorted(str(path) for path in Path("docs/networks").glob("*.toml")))
MOST_TILES = 10  # tile sizes of a kernel to time, drawn at random
MOST_IMAGES, MOST_BYTES = 10_000, 6 << 30
SERIES, PASSES = 5, 3
FAMILIES = ("mma", "wgmma")


@dataclass(frozen=True)
class Case:
    """A network to time in one precision. network: a built-in name, a file, or the seed of a random network."""

    network: str
    precision: str

    def load_graph(self) -> Graph:
        if not self.network.isdigit():
            network = find_network(self.network)
            return build_graph(network, shipped_or_random_weights(network))
        return graph_of(uncentred_network(int(self.network)))


def may_be_fastest(row: Variant) -> bool:
    """Return whether a kernel may be the fastest: it uses tensor cores, or is the fastest on CUDA cores."""
    return row.instructions in FAMILIES or row.name == "register-patch"


def list_choices(case: Case, graph: Graph, arch: str, known: Tuning) -> Iterator[tuple[str, Choices]]:
    """Yield (name, choices): ``auto``'s with an empty name, then each alternative. known: times for ``auto``."""
    auto = Choices(case.precision, tuning=known)
    yield "", auto
    rng = Random(case.network)
    for node in plan(graph, arch, auto).nodes:
        kind, row, problem = operation(node.problem), node.variant, node.problem
        if not node.parameters:
            continue
        chosen = row.launch_config(problem, node.settings).defines
        points = [dict(zip(row.tunables, point, strict=True)) for point in product(*row.tunables.values())]
        points = [point for point in points if not row.refusal_reason(problem, arch, point)]
        points = [point for point in points if row.launch_config(problem, point).defines != chosen]
        for point in rng.sample(points, min(MOST_TILES, len(points))):
            entries = {**known.entries, tuning_key(problem): {row.name: TunedResult(point, 1e-9, MOST_IMAGES)}}
            yield f"{node.name}: {row.name} {point}", replace(auto, tuning=Tuning(entries))
        layers = [layer for layer in node.layers if layer.operation in ("conv", "gemm")]
        others = [other for other in registry.variants(kind) if other != row and may_be_fastest(other)]
        if isinstance(problem, PairProblem):
            yield from ((f"{node.name}: {other.name}", replace(auto, kernels={kind: other})) for other in others)
            others = [one for one in registry.variants(kind.removesuffix("_pair")) if may_be_fastest(one)]
        for layer, other in product(layers, others):
            yield f"{layer.name}: {other.name}", replace(auto, kernels={layer.name: other})


def compile_choices(case: Case, arch: str, known: Mapping[str, object]) -> list[str]:
    """Compile the kernels of a case; return the names of the choices that have a plan. known: Tuning entries."""
    names = []
    graph = case.load_graph()
    for name, wanted in list_choices(case, graph, arch, Tuning(known)):  # type: ignore[arg-type]
        try:
            for node in plan(graph, arch, wanted).nodes:
                for variant, settings in node.kernels:
                    compile_kernel(variant.path, variant.launch_config(node.problem, settings).defines, arch)
        except UserError:
            continue
        names.append(name)
    return names


def time_plan(graph: Graph, arch: str, wanted: Choices) -> tuple[float, dict[str, float], int]:
    """Return the median ms of a pass, the ms of each kernel by name, and the number of images in a pass."""
    from app.cuda.events import time_by_events
    from app.engine.gpu import GpuEngine

    execution = plan(graph, arch, wanted)
    size = sum(np.dtype(dtype).itemsize * elements for dtype, elements in execution.buffers.values())
    count = min(MOST_IMAGES, MOST_BYTES // size)
    engine = GpuEngine(execution, chunk=count, streams=1)
    try:
        buffers = engine.stream_buffers[0]
        images = np.random.default_rng(1).integers(0, 256, (count, prod(execution.input_shape)), np.uint8)
        buffers.named[IMAGES].data.copy_from_host(images.ctypes.data, images.nbytes)
        stream = buffers.stream

        def run(launches: Sequence[Any]) -> None:
            for _ in range(PASSES):
                for launch in launches:
                    launch(stream.ptr, count)

        found = time_by_events(partial(run, buffers.launches), stream, SERIES, warmup=1)
        parts = {
            f"{node.name}: {node.variant.name}": time_by_events(partial(run, [launch]), stream, 1)[0] / PASSES
            for node, launch in zip(execution.nodes, buffers.launches, strict=True)
        }
    finally:
        engine.close()
    return median(found) / PASSES, parts, count


def time_case(case: Case) -> dict[str, object]:
    """Time all choices of a case and return its row of the JSON document."""
    card = describe_gpu()
    graph, known, times = case.load_graph(), tuning.load(card["name"]), {}
    kernels: dict[str, float] = {}
    images = 0
    for name, wanted in list_choices(case, graph, card["architecture"], known):
        try:
            times[name], found, count = time_plan(graph, card["architecture"], wanted)
        except UserError:
            continue
        kernels, images = (kernels, images) if kernels else (found, count)
    best = min(times, key=times.__getitem__)
    row = {"network": case.network, "precision": case.precision, "images": images, "kernels": kernels}
    return {**row, "ms": times[""], "best": best, "best_ms": times[best], "choices": len(times), "times": times}


def hide_other_cards(numbers: object) -> None:
    """Let this process see only one GPU, whose number it takes from a queue."""
    os.environ["CUDA_VISIBLE_DEVICES"] = numbers.get()  # type: ignore[attr-defined]


def main() -> int:
    """Compile all choices, time them, print a line per case and write the JSON document."""
    parser = Parser(prog="python -m tests.kernels.cost_model", description=__doc__)
    parser.add_argument("--count", type=whole_number_type(0, 10_000), default=40, help="random networks (default: 40)")
    parser.add_argument("--seed", type=whole_number_type(0, 2**31), default=0, help="the first network (default: 0)")
    parser.add_argument("--cards", default="0", help="numbers of the cards (default: 0)")
    parser.add_argument("--json", type=Path, help="write all times")
    options = parser.parse_args()
    drawn = [str(options.seed + at) for at in range(options.count)]
    cases = [Case(network, precision) for network in (*KNOWN, *FILES, *drawn) for precision in PRECISIONS]
    card = describe_gpu()
    entries = tuning.load(card["name"]).entries
    context = get_context("spawn")
    with ProcessPoolExecutor(core_count(), context) as pool:
        futures = [pool.submit(compile_choices, case, card["architecture"], entries) for case in cases]
        print("compiled", sum(len(future.result()) for future in futures), "choices", file=sys.stderr)
    cards = context.Queue()
    numbers = options.cards.split(",")
    for number in numbers:
        cards.put(number)
    rows = []
    with ProcessPoolExecutor(len(numbers), context, initializer=hide_other_cards, initargs=(cards,)) as pool:
        for row in pool.map(time_case, cases):
            rows.append(row)
            factor = row["ms"] / row["best_ms"]  # type: ignore[operator]
            found = f"{row['ms']:.4f} ms, best {row['best_ms']:.4f}: {row['best']}"
            print(f"{factor:5.2f} {row['network']} {row['precision']} {found}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_guarded(main))
