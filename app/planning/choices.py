"""Turn a command's options into a plan's choices: precision, fusion and kernels."""

from collections.abc import Mapping

from app.base.errors import UserError, choices_hint
from app.cuda import device
from app.cuda.compiler import ARCHITECTURES
from app.kernels import registry
from app.kernels.variant import Variant
from app.network.graph import Graph, load_network
from app.network.weights import Weights
from app.planning import tuning
from app.planning.matching import Choices
from app.planning.request import NetworkRequest

OPERATIONS = {"conv": "conv", "fc": "gemm", "pool": "pool"}  # option → operation
LATENCY_KERNEL = "split-k"


def load_graph(request: NetworkRequest, *, shapes_only: bool = False) -> tuple[Graph, Weights, Choices]:
    """Return a request's graph, weights and plan choices. Raises UserError. shapes_only: accept random weights."""
    graph, weights = load_network(request.network, request.weights, shapes_only=shapes_only)
    return graph, weights, resolve_choices(request, graph)


def resolve_choices(request: NetworkRequest, graph: Graph) -> Choices:
    """Return the plan's choices for a request, without measured times. Raises UserError for unusable kernels."""
    named = {option: _parse_kernel_option(graph, option, text) for option, text in request.kernels.items()}
    return Choices(request.precision, request.fuse, _requested_variants(request, named), sparse=request.sparse)


def check_architecture(arch: str) -> None:
    """Raise UserError for an architecture that no kernel is compiled for."""
    if arch not in ARCHITECTURES:
        raise UserError(f"unknown architecture '{arch}': {choices_hint(arch, ARCHITECTURES)}")


def resolve_target(requested: str | None, default: str | None = None) -> tuple[str, str]:
    """Return the architecture and GPU to plan for: the requested ones, else this machine's, else ``default``.

    The GPU is given by its CUDA name, "" if unknown. Raises UserError for an unknown architecture, and if none of
    these is known.
    """
    if requested is not None:
        check_architecture(requested)
    reason = device.why_no_gpu()
    if reason is None:
        this = device.describe_gpu()
        if requested in (None, this["architecture"]):
            return this["architecture"], this["name"]
    arch = requested or default
    if arch is None:
        raise UserError(f"{reason}: name an architecture with --arch, one of {', '.join(ARCHITECTURES)}")
    return arch, tuning.REFERENCE_CARDS.get(arch, "")


def _requested_variants(request: NetworkRequest, named: Mapping[str, Mapping[str, str]]) -> dict[str, Variant | None]:
    """Return kernels by operation or layer; None for ``auto``. Raises UserError for unknown or unfit names.

    named: option → the kernels that it names, by operation or layer (``_parse_kernel_option``).
    """
    rows: dict[str, Variant | None] = {}
    for option, names in named.items():
        operation = OPERATIONS[option]
        pair = f"{operation}_pair"  # its kernels are named like those of a single layer
        for target, name in names.items():
            of_pairs = set() if name == "auto" else {row.name for row in registry.variants(pair)}
            if target != operation and name in of_pairs:
                two = f"{name} computes two layers at once"
                raise UserError(f"--{option} {target}={name}: {two}, name it for all of them: --{option} {name}")
            if name in of_pairs and not request.fuse:
                raise UserError(f"--{option} {name} computes two layers at once: leave --no-fuse out")
            row = registry.find_variant(operation, name, *([pair] if target == operation else []))
            rows |= {operation: None, pair: row} if name in of_pairs else {target: row}
    if request.latency:
        if request.kernels["fc"] != "auto":
            raise UserError(f"--latency chooses the fully connected kernels: leave --fc {request.kernels['fc']} out")
        rows["gemm"] = registry.find_variant("gemm", LATENCY_KERNEL)
    return rows


def _parse_kernel_option(graph: Graph, option: str, text: str) -> dict[str, str]:
    """Parse the text of ``--OPTION``: ``NAME`` to {operation: NAME}, ``conv1=NAME,…`` to {"conv1": NAME, …}."""
    operation = OPERATIONS[option]
    layers = [step.layer.name for step in graph.steps if step.layer.operation == operation]
    if text != "auto" and not layers:
        raise UserError(f"network {graph.network.name} has no layer for --{option} {text}: leave it out")
    if text and not set(text) & set("=,"):
        return {operation: text}
    names: dict[str, str] = {}
    for part in text.split(","):
        layer, _, name = part.partition("=")
        if not layer or not name:
            raise UserError(f"--{option} {text}: name one kernel for all layers, or LAYER=KERNEL,LAYER=KERNEL")
        if layer in names:
            raise UserError(f"--{option} {text}: {layer} is named twice, name one kernel for it")
        names[layer] = name
    for layer in names:
        if layer not in (operation, *layers):
            what = f"network {graph.network.name} has no layer '{layer}' for --{option}"
            raise UserError(f"{what}: {choices_hint(layer, layers)}")
    return names
