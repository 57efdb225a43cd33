"""From the command line's network options to a graph and the choices that a plan is made with."""

from __future__ import annotations

import argparse

from app.cuda import device
from app.cuda.compiler import ARCHITECTURES
from app.errors import UserError
from app.kernels import registry
from app.kernels.variant import Variant
from app.network import shipped
from app.network.graph import Graph, build, find_network
from app.network.weights import DEFAULT_NETWORK, Weights, load_weights
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.tuning import Tuning

OPERATIONS = {"conv": "conv", "fc": "gemm", "pool": "pool"}  # option → operation
LATENCY_KERNEL = "split-k"


def load_graph(options: argparse.Namespace) -> tuple[Graph, Weights]:
    """The network and the weights that the options name, with the kernels' names checked. Raises UserError."""
    asked = None if options.network is None else find_network(options.network)
    weights = load_weights(options.weights or shipped.find(options.network or DEFAULT_NETWORK, "--weights"))
    graph = build(asked or find_network(weights.network), weights)
    for option, operation in OPERATIONS.items():
        layers = [step.layer.name for step in graph.steps if step.layer.operation == operation]
        text = getattr(options, option)
        if text != "auto" and not layers:
            raise UserError(f"network {graph.network.name} has no layer for --{option} {text}: leave it out")
        for layer in _named(option, text, operation):
            if layer not in (operation, *layers):
                known = ", ".join(layers)
                raise UserError(
                    f"network {graph.network.name} has no layer '{layer}' for --{option}: choose one of {known}"
                )
    kernel_rows(options)
    return graph, weights


def choices(options: argparse.Namespace, tuning: Tuning) -> Choices:
    """Precision, fusion and kernels as the options say."""
    return Choices(options.precision, not options.no_fuse, kernel_rows(options), tuning)


def check_architecture(arch: str) -> None:
    """Raises UserError for one that the kernels are not compiled for."""
    if arch not in ARCHITECTURES:
        raise UserError(f"unknown architecture '{arch}': choose one of {', '.join(ARCHITECTURES)}")


def target(asked: str | None, otherwise: str | None = None) -> tuple[str, str]:
    """Architecture and card to choose kernels for: the one asked for, else this machine's, else ``otherwise``.

    The card is a name for ``tuning.load``, empty if none is known. Raises UserError for an unknown architecture,
    and where there is neither a GPU nor anything else to go by.
    """
    if asked is not None:
        check_architecture(asked)
    reason = device.why_no_gpu()
    if reason is None:
        this = device.describe_gpu()
        if asked in (None, this["architecture"]):
            return this["architecture"], this["name"]
    arch = asked or otherwise
    if arch is None:
        raise UserError(f"{reason}: name an architecture with --arch, one of {', '.join(ARCHITECTURES)}")
    return arch, tuning.REFERENCE_CARDS.get(arch, "")


def kernel_rows(options: argparse.Namespace) -> dict[str, Variant | None]:
    """Kernels by operation or layer, as the options name them; None for ``auto``.

    Raises UserError for unknown names and for what cannot be understood.
    """
    rows: dict[str, Variant | None] = {}
    for option, operation in OPERATIONS.items():
        pair = f"{operation}_pair"  # whose kernels are named like those of a single layer
        of_pairs = {row.name for row in registry.variants(pair)}
        for target, name in _named(option, getattr(options, option), operation).items():
            if target != operation and name in of_pairs:
                two = f"{name} computes two layers at once"
                raise UserError(f"--{option} {target}={name}: {two}, name it for all of them: --{option} {name}")
            if name in of_pairs and options.no_fuse:
                raise UserError(f"--{option} {name} computes two layers at once: leave --no-fuse out")
            row = registry.find(operation, name, *([pair] if target == operation else []))
            rows |= {operation: None, pair: row} if name in of_pairs else {target: row}
    if options.latency:
        if options.fc != "auto":
            raise UserError(f"--latency chooses the fully connected kernels: leave --fc {options.fc} out")
        rows["gemm"] = registry.find("gemm", LATENCY_KERNEL)
    return rows


def _named(option: str, text: str, operation: str) -> dict[str, str]:
    """``NAME`` → {operation: NAME}; ``conv1=NAME,conv2=NAME`` → {conv1: NAME, conv2: NAME}."""
    if text and not set(text) & set("=,"):
        return {operation: text}
    names: dict[str, str] = {}
    for part in text.split(","):
        layer, _, name = part.partition("=")
        if not layer or not name:
            raise UserError(f"--{option} {text}: say one kernel for all layers, or LAYER=KERNEL,LAYER=KERNEL")
        if layer in names:
            raise UserError(f"--{option} {text}: {layer} is there twice, say one kernel for it")
        names[layer] = name
    return names
