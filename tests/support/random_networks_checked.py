"""Run random networks on the application's paths, and compare each with the oracle that reads the network's text.

``python -m tests.support.random_networks --seed N`` runs them on the CPU, with ``--device cuda`` also on the card.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from app.base.precision import BY_NAME
from app.cuda.compiler import architecture_number
from app.engine.cpu import CpuEngine
from app.engine.interface import Outputs
from app.kernels.plain_problems import ResizeProblem
from app.kernels.problems import ConvProblem, LinearProblem, PairProblem
from app.kernels.variant import TENSOR_CORES
from app.network.definitions import Network
from app.network.graph import Graph, build_graph
from app.network.reference import compute_reference
from app.network.toml import parse_network
from app.network.weights import Weights
from app.planning.matching import Choices, Node
from app.planning.plan import ExecutionPlan, plan
from tests.support.kernel_cases import architecture, input_shape
from tests.support.kernel_device import bits, cases_of, compile_all, on_card
from tests.support.kernel_oracle import layers_of, through
from tests.support.network_device import NARROW, examine
from tests.support.network_oracle import outputs
from tests.support.networks_for_tests import GENERAL, check_labels
from tests.support.random_networks import RandomNetwork

BATCH = 33  # images; smaller batches must give its first results
ON_CPU, PLANNED = 9, 5  # of them for the CPU path, and for plans in NumPy, which computes each image by itself
BATCHES, CHUNK = (BATCH, 7, 1), 7  # that a session gets, and cuts
ARCH = "sm_90a"


@cache
def _parsed(text: str) -> Network:
    return parse_network(text, "random.toml")


def network_from_chain(network: RandomNetwork) -> Network:
    """Return the network as the application reads it from the text."""
    return _parsed(network.text)


def graph_of(network: RandomNetwork) -> Graph:
    """Return the application's graph of the network."""
    found = network_from_chain(network)
    weights = Weights(network.arrays, found.name, Path("random"), input_scale=found.pixel_scale)
    return build_graph(found, weights)


def check_on_cpu(network: RandomNetwork) -> None:
    """Compare each layer of the float64 reference with the oracle, element by element; check the CPU path's labels."""
    graph, images = graph_of(network), network.images(ON_CPU)
    expected = outputs(network.description, network.arrays, images)
    x = images
    for at, (step, wanted) in enumerate(zip(graph.steps[:-1], expected, strict=True)):
        if at == graph.pixel_scale_step:
            x = x.astype(np.float64) * graph.pixel_scale(images.dtype)
        x = step.layer.reference(x.copy(), graph.parameters)
        assert x.shape == wanted.shape and x.shape[1:] == step.out_shape, step.layer
        magnitude = float(np.abs(wanted).max())
        np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-11 * magnitude, err_msg=f"{step.layer} {network.text}")
    np.testing.assert_array_equal(graph.reference(images), x)
    labels = np.full(ON_CPU, 255, np.uint8)
    CpuEngine(graph).run(images, Outputs(labels))
    check_labels(labels, compute_reference(graph, images))


@dataclass(frozen=True)
class Planned:
    """A plan of a network, and the options that select this plan."""

    precision: str
    fuse: bool
    plan: ExecutionPlan


def plans(network: RandomNetwork, arch: str = ARCH) -> Iterator[Planned]:
    """Yield plans with different launches: each precision with fused layers, and one without, chosen by the seed."""
    graph = graph_of(network)
    precisions = [name for name in GENERAL if BY_NAME[name].offered]
    if architecture_number(arch) < TENSOR_CORES:
        precisions = ["fp32"]
    ways = [*((name, True) for name in precisions), (precisions[network.seed % len(precisions)], False)]
    known: set[str] = set()
    for precision, fuse in ways:
        found = plan(graph, arch, Choices(precision, fuse))
        launches = repr([(node.name, node.variant.source, node.problem, node.settings) for node in found.nodes])
        if launches not in known:
            known.add(launches)
            yield Planned(precision, fuse, found)


def check_plans(network: RandomNetwork) -> None:
    """Check every plan, its kernels replaced by NumPy, against the oracle, and labels by the precision's rule."""
    images = network.images(BATCH)[:PLANNED]
    reference = compute_reference(graph_of(network), images)
    for way in plans(network):
        scores, labels = examine(network, way.plan, images, emulated)
        assert scores.shape == (PLANNED, network.description.layers[-1].out_shape[0])
        check_labels(labels, reference, BY_NAME[way.precision].dtype)


def emulated(node: Node, x: np.ndarray, images: int) -> list[np.ndarray]:
    """Return the results of a node's kernel, computed in NumPy from its problem and the plan's arrays alone.

    Operands are rounded to the problem's type, sums to float32 at their end.
    """
    problem = node.problem
    resize, pixel_scale = getattr(problem, "resize", None), getattr(problem, "pixel_scale", 1.0)
    halves = [problem.first, problem.second] if isinstance(problem, PairProblem) else [problem]
    arrays = list(node.parameters)
    y: Any = x
    for half in (*([] if resize is None else [resize]), *halves):
        y, own = y.reshape(images, *input_shape(half)), {}
        if isinstance(half, ConvProblem | LinearProblem):
            # Split operands are as exact as float32.
            narrow = NARROW["float32" if len(halves) > 1 or half.dtype == "float16x2" else half.dtype]
            weights, bias, *arrays = arrays
            own = {"layer": narrow(weights)} | ({} if bias is None else {"layer_bias": bias})
            if isinstance(half, ConvProblem):  # (C, K, K, M)
                own["layer"] = own["layer"].reshape(half.channels, half.kernel, half.kernel, -1).transpose(1, 2, 0, 3)
            y = narrow(y) * (pixel_scale if half is halves[0] else 1.0)
        y = through(layers_of(half), y if isinstance(half, ResizeProblem) else y.astype(np.float64), own)
    results = [argument for argument in problem.arguments() if argument.name in ("y", "labels")]
    if len(results) == 1:
        return [y.ravel().astype(results[0].dtype)]
    scores = y.astype(results[0].dtype)
    return [scores.ravel(), scores.argmax(axis=1).astype(np.uint8)]


def check_on_card(network: RandomNetwork) -> None:
    """Check every plan launch by launch on poisoned memory, then that engines give the same bits for any chunk size."""
    from app.cuda.memory import pinned_copy, upload
    from app.engine.gpu import GpuEngine
    from app.kernels.launch import Kernel

    images = network.images(BATCH)
    reference = compute_reference(graph_of(network), images)
    ways = list(plans(network, architecture()))
    compile_all(cases_of(way.plan for way in ways))
    for way in ways:

        def launch(node: Node, x: Any, count: int, arch: str = way.plan.arch) -> list[Any]:
            kernel = Kernel(node.variant, node.problem, arch, node.settings)
            x = upload(x) if isinstance(x, np.ndarray) else x
            return on_card(kernel, x, list(node.parameters), count)

        scores, labels = examine(network, way.plan, images, launch, lambda array: array.get())
        check_labels(labels, reference, BY_NAME[way.precision].dtype)
        with GpuEngine(way.plan, chunk=CHUNK, streams=2) as engine:
            for count in BATCHES:
                found = engine.allocate_outputs(count, logits=True)
                assert found.logits is not None
                found.labels.fill(255)
                found.logits.fill(np.nan)
                engine.run(pinned_copy(images[:count]), found)
                np.testing.assert_array_equal(bits(found.logits), bits(scores[:count]), err_msg=f"{way}, {count}")
                np.testing.assert_array_equal(found.labels, labels[:count], err_msg=f"{way}, {count}")
