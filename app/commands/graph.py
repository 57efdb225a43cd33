"""``main.py graph``: a network's layers, and the launches that they become."""

from __future__ import annotations

from dataclasses import replace

from app.commands.kernels import REFERENCE_ARCH
from app.commands.options.graph import GraphRequest
from app.kernels.problems import bytes_moved
from app.planning import tuning
from app.planning.choices import load_graph, target
from app.planning.plan import plan


def graph(request: GraphRequest) -> int:
    """Print the network's layers, then the launches that they become on the chosen architecture."""
    built, _, chosen = load_graph(request.network)
    arch, card = target(request.arch, otherwise=REFERENCE_ARCH)
    network = built.network
    lines = [
        f"{network.name}: {network.summary}",
        f"  {'layer':<12}{'kind':<10}{'output':<16}{'parameters':>12}{'MFLOP':>10}{'activation bytes':>18}",
        f"  {'images':<12}{'input':<10}{_shape(network.input_shape):<16}",
    ]
    for step in built.steps:
        flops = step.layer.flops(step.in_shape) / 1e6
        lines.append(
            f"  {step.layer.name:<12}{step.layer.kind:<10}{_shape(step.out_shape):<16}"
            f"{step.parameter_count:>12,}{flops:>10.4f}{step.activation_bytes:>18,}"
        )
    total = sum(step.layer.flops(step.in_shape) for step in built.steps) / 1e6
    parameters = sum(array.size for array in built.parameters.values())
    lines.append(f"  {'all':<38}{parameters:>12,}{total:>10.4f}")
    nodes = plan(built, arch, replace(chosen, tuning=tuning.load(card))).nodes
    reads = 2 + max(len(node.reads) for node in nodes)
    writes = 2 + max(len(", ".join(node.writes)) for node in nodes)
    lines += [
        f"launches on {arch}, per image ({'fused' if request.network.fuse else 'one a layer'})",
        f"  {'layers':<38}{'kernel':<18}{'reads':<{reads}}{'writes':<{writes}}{'MFLOP':>10}{'bytes':>10}",
    ]
    for node in nodes:
        moved = bytes_moved(node.problem, 2) - bytes_moved(node.problem, 1)  # weights are read once a batch
        lines.append(
            f"  {node.name:<38}{node.variant.name:<18}{node.reads:<{reads}}{', '.join(node.writes):<{writes}}"
            f"{node.flops / 1e6:>10.4f}{moved:>10,}"
        )
    print("\n".join(lines))
    return 0


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1 label"
