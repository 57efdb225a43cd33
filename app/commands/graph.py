"""``main.py graph``: show a network's layers, and the launches that compute them."""

from dataclasses import replace

from app.commands.kernels import REFERENCE_ARCH
from app.commands.options.graph import GraphRequest
from app.kernels.facts import bytes_moved
from app.network.graph import Graph
from app.planning import tuning
from app.planning.choices import load_graph, target
from app.planning.matching import Node
from app.planning.plan import plan
from app.text import Column, paragraph, table, terminal_width

LAYERS = [
    *(Column(head, left=True) for head in ("layer", "kind", "output")),
    *(Column(head) for head in ("parameters", "MFLOP", "activation bytes")),
]
LAUNCHES = [
    *(Column(head, left=True) for head in ("layers", "kernel", "reads", "writes")),
    *(Column(head) for head in ("MFLOP", "bytes")),
]


def graph(request: GraphRequest) -> int:
    """Print the network's layers, then the launches that compute them on the chosen architecture."""
    built, _, chosen = load_graph(request.network, shapes_only=True)
    arch, card = target(request.arch, otherwise=REFERENCE_ARCH)
    network = built.network
    nodes = plan(built, arch, replace(chosen, tuning=tuning.load(card))).nodes
    width = terminal_width(request.wide)
    lines = [
        *paragraph(f"{network.name}: {network.summary}", width),
        *layer_table(built, width),
        f"launches on {arch}, per image ({'fused' if request.network.fuse else 'one a layer'})",
        *table(LAUNCHES, map(_launch, nodes), width),
    ]
    print("\n".join(lines))
    return 0


def layer_table(built: Graph, width: int) -> list[str]:
    """Format each layer's output, parameters, operations and bytes."""
    rows = [["images", "input", _shape(built.network.input_shape), "", "", ""]]
    mflops = [step.layer.flops(step.in_shape) / 1e6 for step in built.steps]
    for step, mflop in zip(built.steps, mflops, strict=True):
        figures = [f"{step.parameter_count:,}", f"{mflop:.4f}", f"{step.activation_bytes:,}"]
        rows.append([step.layer.name, step.layer.kind, _shape(step.out_shape), *figures])
    parameters = sum(array.size for array in built.parameters.values())
    return table(LAYERS, [*rows, ["all", "", "", f"{parameters:,}", f"{sum(mflops):.4f}", ""]], width)


def _launch(node: Node) -> list[str]:
    moved = bytes_moved(node.problem, 2) - bytes_moved(node.problem, 1)  # weights are read once per batch
    names = [node.name, node.variant.name, node.reads, ", ".join(node.writes)]
    return [*names, f"{node.flops / 1e6:.4f}", f"{moved:,}"]


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1 label"
