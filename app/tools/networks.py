"""Run ``main.py networks``: list every network with its layers and figures."""

from math import prod
from pathlib import Path

from app.base.errors import UserError
from app.commands.networks import NetworksRequest
from app.files import shipped
from app.layers import Layer
from app.network.definitions import NETWORKS, Network
from app.network.graph import build_graph, find_network
from app.network.network import non_default_settings
from app.network.toml import network_toml
from app.network.weights import ENDINGS, Weights, load_weights
from app.records import networks as records
from app.records.networks import ListedNetwork, Networks, PromisedAccuracy
from app.terminal.output import publish_report
from app.terminal.text import Column, paragraph, table
from app.training.settings import default_recipe

LEGEND = "MFLOP: of one image; accuracy: of the weights, on the first Fashion-MNIST test images."


def networks(request: NetworksRequest) -> int:
    """Print every network: input, layers, parameters, FLOPs per image, its shipped weights' accuracy. Return 0.

    The request may name a single network, or ask for its TOML instead. Raises UserError.
    """
    if request.toml:
        _print_toml(request)
        return 0
    if request.network is not None and request.network.endswith(ENDINGS):
        own = load_weights(Path(request.network))
        rows = [network_entry(build_graph(own.stored_network(), own).network, own)]
    else:
        chosen = [*NETWORKS.values()] if request.network is None else [find_network(request.network)]
        weights = shipped_weights()
        # A network of a file may have the name of a listed network, but not its weights.
        rows = [network_entry(one, weights.get(one.name) if one == NETWORKS.get(one.name) else None) for one in chosen]
    document: Networks = {"schema": "lenet5-inference/networks/1", "networks": rows}
    publish_report(document, _networks_text, request.output)
    return 0


def _print_toml(request: NetworksRequest) -> None:
    """Print the network as TOML. Raises UserError if the request names no network, or also asks for JSON."""
    if request.network is None:
        raise UserError("--toml prints one network: name it, as in main.py networks lenet5 --toml")
    if request.output.json is not None:
        raise UserError("--toml and --json are two forms of the output: choose one")
    print(network_toml(find_network(request.network)), end="")


def shipped_weights() -> dict[str, Weights]:
    """Return the shipped weights of each network, by name. Raises UserError for a file that cannot be read."""
    paths = {name: shipped.weights_path(name) for name in NETWORKS}
    return {name: load_weights(path) for name, path in paths.items() if path.exists()}


def network_entry(network: Network, weights: Weights | None) -> ListedNetwork:
    """Return the network's entry in the JSON document. Its accuracy is what the weights promise; None without them."""
    parameters = flops = 0
    layers: list[records.Layer] = []
    for step in network.steps:
        layer = step.layer
        for name, wanted in step.parameter_shapes.items():
            parameters += prod(wanted) * _has_array(name, layer, network, weights)
        flops += layer.flops(step.in_shape)
        settings = non_default_settings(layer)
        layers.append({"name": layer.name, "kind": layer.kind, "settings": settings, "output": list(step.out_shape)})
    accuracy: PromisedAccuracy | None = None
    if weights is not None and weights.expected_correct:
        images = max(weights.expected_correct)
        accuracy = {"weights": weights.path.name, "images": images, "correct": weights.expected_correct[images]}
    return {
        "name": network.name,
        "summary": network.summary,
        "input": list(network.input_shape),
        "layers": layers,
        "parameters": parameters,
        "flops": flops,
        "accuracy": accuracy,
    }


def _has_array(name: str, layer: Layer, network: Network, weights: Weights | None) -> bool:
    """Return whether the weights contain this parameter array; without weights, whether training would create it."""
    if weights is not None:
        return name in weights.arrays
    return not name.endswith("_bias") or layer.name in default_recipe(network).biases


def _networks_text(document: Networks, width: int) -> str:
    """Return a table with each network's figures, summary and layers."""
    heads = [Column("network", left=True), Column("input", left=True), Column("layers"), Column("parameters")]
    columns = [*heads, Column("MFLOP"), Column("accuracy", left=True)]
    rows = []
    for row in document["networks"]:
        accuracy, size = row["accuracy"], " x ".join(map(str, row["input"]))
        told = "-" if accuracy is None else f"{accuracy['correct'] / accuracy['images']:.2%} of {accuracy['images']:,}"
        sizes = [str(len(row["layers"])), f"{row['parameters']:,}", f"{row['flops'] / 1e6:.4f}"]
        rows += [
            [row["name"], size, *sizes, told],
            *([["", row["summary"]]] if row["summary"] else []),
            ["", ", ".join(map(_layer_text, row["layers"]))],
        ]
    return "\n".join([*table(columns, rows, width), *paragraph(LEGEND, width)])


def _layer_text(layer: records.Layer) -> str:
    """Return a layer as text: ``conv2d maps=32 kernel=5``."""
    return " ".join([layer["kind"], *(f"{name}={value}" for name, value in layer["settings"].items())])
