"""Run ``main.py graph``: show the layers of a network, and the launches that compute them."""

from collections.abc import Iterable
from dataclasses import replace

from app.commands.graph import GraphRequest
from app.kernels.plain_problems import bytes_moved
from app.network.graph import Graph
from app.network.network import LayerStep
from app.planning import tuning
from app.planning.choices import load_graph, resolve_target
from app.planning.matching import Node
from app.planning.plan import plan
from app.records import networks as records
from app.records.networks import GraphLayer, Launch
from app.terminal.output import publish_report
from app.terminal.text import WIDTH, Column, paragraph, table
from app.tools.kernels import REFERENCE_ARCH

LAYERS = [
    *(Column(head, left=True) for head in ("layer", "kind", "output")),
    *(Column("parameters"), Column("MFLOP"), Column("activation bytes", optional=1)),
]
LAUNCHES = [
    *(Column(head, left=True) for head in ("layers", "kernel", "reads", "writes")),
    *(Column("MFLOP"), Column("bytes")),
]
# On a narrow terminal, these columns are left out before names of layers are wrapped.
NARROW = [*LAUNCHES[:4], Column("MFLOP", optional=1), Column("bytes", optional=2)]


def graph(request: GraphRequest) -> int:
    """Print a network's layers and the launches that compute them on an architecture. Return 0. Raises UserError."""
    built, _, chosen = load_graph(request.network, shapes_only=True)
    arch, card = resolve_target(request.arch, default=REFERENCE_ARCH)
    nodes = plan(built, arch, replace(chosen, tuning=tuning.load(card))).nodes
    document: records.Graph = {
        "schema": "lenet5-inference/graph/1",
        "network": built.network.name,
        "input": list(built.network.input_shape),
        "layers": [_layer_row(step, built) for step in built.steps],
        "architecture": arch,
        "fused": request.network.fuse,
        "launches": [*map(_launch_row, nodes)],
    }

    def as_text(found: records.Graph, width: int) -> str:
        how = "fused" if request.network.fuse else "one a layer"
        lines = [
            *paragraph(f"{built.network.name}: {built.network.summary}", width),
            *layer_table(built, width),
            *paragraph(f"launches on {arch}, per image ({how})", width),
            *table(LAUNCHES if width >= WIDTH else NARROW, map(_launch_cells, found["launches"]), width),
        ]
        return "\n".join(lines)

    publish_report(document, as_text, request.output)
    return 0


def layer_table(built: Graph, width: int) -> list[str]:
    """Return the lines of a table with the output shape, parameters, MFLOP and activation bytes of each layer."""
    rows = [["images", "input", _format_shape(built.network.input_shape), "", "", ""]]
    found = [_layer_row(step, built) for step in built.steps]
    for layer in found:
        figures = [f"{layer['parameters']:,}", f"{layer['flops'] / 1e6:.4f}", f"{layer['activation_bytes']:,}"]
        rows.append([layer["name"], layer["kind"], _format_shape(layer["output"]), *figures])
    mflop = sum(layer["flops"] for layer in found) / 1e6
    parameters = sum(array.size for array in built.parameters.values())
    return table(LAYERS, [*rows, ["all", "", "", f"{parameters:,}", f"{mflop:.4f}", ""]], width)


def _layer_row(step: LayerStep, built: Graph) -> GraphLayer:
    return {
        "name": step.layer.name,
        "kind": step.layer.kind,
        "output": list(step.out_shape),
        "parameters": sum(built.parameters[name].size for name in step.parameter_shapes if name in built.parameters),
        "flops": step.layer.flops(step.in_shape),
        "activation_bytes": step.activation_bytes,
    }


def _launch_row(node: Node) -> Launch:
    return {
        "layers": [layer.name for layer in node.layers],
        "kernel": node.variant.name,
        "reads": node.reads,
        "writes": list(node.writes),
        "flops": node.flops,
        "bytes": bytes_moved(node.problem.arguments(), 2)
        - bytes_moved(node.problem.arguments(), 1),  # weights are read once per batch
    }


def _launch_cells(launch: Launch) -> list[str]:
    names = ["+".join(launch["layers"]), launch["kernel"], launch["reads"], ", ".join(launch["writes"])]
    return [*names, f"{launch['flops'] / 1e6:.4f}", f"{launch['bytes']:,}"]


def _format_shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "1 label"
