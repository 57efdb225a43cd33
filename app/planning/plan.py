"""Plan how a graph runs on a GPU: fuse layers, choose each node's kernel, assign buffers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.base.precision import BY_NAME, DTYPES, INTEGERS
from app.cuda.compiler import architecture_number
from app.kernels import registry
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearProblem, operation
from app.kernels.variant import TENSOR_CORES, Variant
from app.layers import Argmax, Shape
from app.network.graph import Graph
from app.planning.kernel_selection import LOSSY, NO_INTEGERS, KernelSelector, defer_flattens, find_layer_pair
from app.planning.matching import Choices, Node

IMAGES = "images"
LOGITS = "logits"
LABELS = "labels"
PIXELS = "pixels"  # uint8 output of a layer such as Resize


class ExecutionPlan(Frozen):
    """A plan for one architecture. buffers: name → dtype and elements per image; all chunks use the same buffers.

    input_shape, input_dtype: shape (C, H, W) and dtype of an image in host memory.
    """

    nodes: tuple[Node, ...]
    buffers: dict[str, tuple[str, int]]
    arch: str
    input_shape: Shape
    input_dtype: str

    @property
    def unfused_layer_names(self) -> list[str]:
        """Return the names of the convolutions and products that run in separate kernels, not in a pair."""
        return [node.head.name for node in self.nodes if isinstance(node.problem, ConvProblem | LinearProblem)]

    @property
    def arithmetic(self) -> str:
        """Return the coarsest type in which any layer multiplies."""
        used = {getattr(node.problem, "dtype", "") for node in self.nodes if node.parameters}
        return max(used, key=DTYPES.index)

    def check_images(self, images: np.ndarray) -> None:
        """Raise ValueError unless the images, (N, …), have the plan's type and size and are contiguous."""
        if images.dtype != np.dtype(self.input_dtype) or not images.flags.c_contiguous:
            raise ValueError(f"images must be contiguous {self.input_dtype}, got {images.dtype}")
        if prod(images.shape[1:]) != self.buffers[IMAGES][1]:
            raise ValueError(f"images of shape {images.shape} do not fit the network")


def plan(graph: Graph, arch: str, choices: Choices | None = None, *, input_dtype: str = "uint8") -> ExecutionPlan:
    """Fuse layers, choose kernels and assign buffers. Raises UserError if no kernel serves a layer or the choices."""
    choices = choices or Choices()
    _check_kernels(graph, choices.kernels)
    has_tensor_cores = architecture_number(arch) >= TENSOR_CORES
    if choices.precision == "auto":
        if has_tensor_cores:
            found = plan(graph, arch, replace(choices, precision="fp32x"), input_dtype=input_dtype)
            # float16x2 is as exact as float32. Named kernels must multiply in it, except for the last, small product.
            layers = [(node.head, node.problem.dtype == "float16x2") for node in found.nodes if node.parameters]
            named = [head for head, split in layers[:-1] if not split and choices.requested_kernel(head)]
            if choices.named_pair_kernels or (any(split for _, split in layers) and not named):
                return found
        return plan(graph, arch, replace(choices, precision="fp32"), input_dtype=input_dtype)
    if choices.precision == "fp32x" and not has_tensor_cores:
        raise UserError(f"--precision fp32x needs tensor cores (sm_{TENSOR_CORES} or later), this is {arch}: use fp32")
    graph = defer_flattens(graph)
    selector = KernelSelector(graph, arch, choices)
    nodes: list[Node] = []
    at = 0
    while at < len(graph.steps):
        reads = nodes[-1].problem.arguments() if nodes else ()
        dtype = next((argument.dtype for argument in reads if argument.name == "y"), input_dtype)
        nodes.append(selector.select_kernel(at, dtype, nodes[-1].features if nodes else None))
        at += len(nodes[-1].layers)
    _check_pairs(graph, {operation(node.problem) for node in nodes}, choices)
    integers = any(getattr(node.problem, "dtype", "") == INTEGERS for node in nodes)
    if BY_NAME[choices.precision].dtype == INTEGERS and not integers:
        raise UserError(f"{_int8_unavailable_reason(graph, arch, choices, input_dtype)}; or use --precision fp16")
    return _assign_buffers([_add_few_images_kernels(node, arch, choices) for node in nodes], graph, arch, input_dtype)


def _add_few_images_kernels(node: Node, arch: str, choices: Choices) -> Node:
    """Return the node with kernels for few images, unless it computes a pair or the user named its kernel."""
    if not isinstance(node.problem, ConvProblem | LinearProblem) or choices.requested_kernel(node.head) is not None:
        return node
    from app.planning.few_images import kernels_for_few_images, long_sum_settings  # rarely needed

    settings = node.settings | long_sum_settings(node.problem, node.variant)
    few = kernels_for_few_images(node.problem, node.variant, settings, arch)
    return replace(node, few=few, settings=settings) if few else node


def _check_kernels(graph: Graph, kernels: Mapping[str, Variant | None]) -> None:
    """Raise UserError for a key of ``kernels`` that is neither an operation nor a layer of the network.

    Raises ValueError if a kernel and its key differ in operation; no command-line option can cause this.
    """
    operations = {step.layer.name: step.layer.operation for step in graph.steps}
    for target, row in kernels.items():
        wanted = operations.get(target, target)
        if wanted is None or wanted not in registry.TABLES:
            named = [layer for layer, own in operations.items() if own is not None]
            raise UserError(f"network {graph.network.name} has no layer '{target}': {choices_hint(target, named)}")
        if row is not None and row.operation != wanted:
            raise ValueError(f"{target} takes a {wanted} kernel, {row.name} is a {row.operation} kernel")


def _check_pairs(graph: Graph, taken: Collection[str], choices: Choices) -> None:
    """Raise UserError if the user named a pair kernel that no node uses. taken: the nodes' operations."""
    for pair, row in choices.named_pair_kernels.items():
        if pair not in taken:
            kind = pair.removesuffix("_pair")
            raise UserError(
                f"kernel {row.name} fits no layers of network {graph.network.name}: it takes two {kind} layers "
                "in a row, fused, with no kernel named for either; choose another"
            )


def _int8_unavailable_reason(graph: Graph, arch: str, choices: Choices, input_dtype: str) -> str:
    """Return why no kernel computes two convolutions in 8-bit integers."""
    what = f"--precision {choices.precision}: no kernel serves network {graph.network.name}"
    found = find_layer_pair(graph, 0, input_dtype, choices) if choices.fuse else None
    if found is None or not isinstance(found[0], ConvPairProblem):
        return f"{what}: it takes two convolutions in a row, fused, with no kernel named for either"
    for row in registry.variants("conv_pair"):
        if INTEGERS in row.dtypes and not row.sparse:
            reason = row.refusal_reason(found[0], arch)
            if reason is not None:
                return f"{what}: {row.name} {reason}"
    if graph.quantised is None:
        return f"--precision {choices.precision}: {NO_INTEGERS}"
    return f"{what}: {LOSSY}"


def second_convolution_name(node: Node) -> str:
    """Return the name of the second of a node's two convolutions."""
    _, second = (layer.name for layer in node.layers if layer.operation == "conv")
    return second


def notices(execution: ExecutionPlan, choices: Choices) -> list[str]:
    """Return notes: on exact, sparse and 8-bit weights, and on layers that run unfused but could be fused."""
    exact = ", ".join(node.head.name for node in execution.nodes if getattr(node.problem, "exact", False))
    found = [f"weights exact in float16: two products instead of three in the kernels of {exact}"] if exact else []
    for node in execution.nodes:
        if node.variant.sparse:
            name = second_convolution_name(node) if isinstance(node.problem, ConvPairProblem) else node.head.name
            found.append(f"{name} 2:4 sparse: half of its products are skipped")
    integers = [node for node in execution.nodes if getattr(node.problem, "dtype", "") == INTEGERS]
    for node in integers:
        found.append(f"{second_convolution_name(node)} in 8-bit integers: coarser than fp16")
    paired = choices.precision == "auto" or BY_NAME[choices.precision].paired
    left_to_us = choices.fuse and all(row is None for row in choices.kernels.values())
    if execution.unfused_layer_names and left_to_us and paired:
        where = f"with these weights and {execution.input_dtype} images on {execution.arch}"
        found.append(
            f"ordinary kernels run {', '.join(execution.unfused_layer_names)}: no fused one covers them {where}"
        )
    return found


def _assign_buffers(nodes: list[Node], graph: Graph, arch: str, input_dtype: str) -> ExecutionPlan:
    """Assign buffers: activations alternate between two; images, resized images, logits and labels have one each."""
    buffers = {IMAGES: (input_dtype, prod(graph.network.input_shape))}
    placed: list[Node] = []
    reads = IMAGES
    for index, node in enumerate(nodes):
        scores = isinstance(node.layers[-1], Argmax) or isinstance(nodes[index + 1].head, Argmax)
        outputs = {argument.name: argument for argument in node.problem.arguments() if argument.name in ("y", LABELS)}
        y = LOGITS if scores else PIXELS if node.head.keeps_bytes else f"activations{index % 2}"
        if "y" in outputs and buffers.get(y, (outputs["y"].dtype,))[0] != outputs["y"].dtype:
            y += f"_{outputs['y'].dtype}"  # scores have a wider type than earlier activations
        writes = tuple(y if name == "y" else LABELS for name in outputs)
        for buffer, argument in zip(writes, outputs.values(), strict=True):
            buffers[buffer] = (argument.dtype, max(argument.per_image, buffers.get(buffer, ("", 0))[1]))
        placed.append(replace(node, reads=reads, writes=writes))
        reads = y
    return ExecutionPlan(tuple(placed), buffers, arch, graph.network.input_shape, input_dtype)
