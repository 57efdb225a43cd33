"""How a graph runs on a GPU: which layers are fused, which kernel serves each node, which buffers hold what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from app.errors import UserError
from app.graph import Graph
from app.kernels import registry
from app.kernels.problems import Problem
from app.kernels.registry import Variant
from app.layers import Argmax, Flatten, Layer, Shape

IMAGES = "images"
LOGITS = "logits"
LABELS = "labels"


@dataclass(frozen=True)
class Node:
    """One kernel launch: the layer that it is (``head``) with those fused into it.

    layers: all of them, in the network's order. reads, writes: buffer names, in the order of the arguments.
    parameters: the arrays between input and output, in the kernel's layout and dtype; None where absent.
    """

    head: Layer
    layers: tuple[Layer, ...]
    in_shape: Shape
    out_shape: Shape
    problem: Problem
    variant: Variant
    flops: int
    parameters: tuple[np.ndarray | None, ...] = field(repr=False)
    reads: str = ""
    writes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The layers' names, joined: ``conv1+relu1+pool1``."""
        return "+".join(layer.name for layer in self.layers)


@dataclass(frozen=True)
class ExecutionPlan:
    """The nodes in order, and per buffer its dtype and elements an image: a fixed set that serves every chunk."""

    nodes: tuple[Node, ...]
    buffers: dict[str, tuple[str, int]]
    arch: str
    input_dtype: str


def plan(
    graph: Graph,
    arch: str,
    *,
    input_dtype: str = "uint8",
    dtype: str = "float32",
    fuse: bool = True,
    kernels: Mapping[str, str] | None = None,
) -> ExecutionPlan:
    """Fuse, choose kernels and assign buffers.

    kernels: operation → variant name; ``auto`` where absent. Raises UserError where no kernel serves a layer.
    """
    nodes: list[Node] = []
    at = 0
    while at < len(graph.steps):
        node = _next_node(graph, at, arch, dtype if nodes else input_dtype, dtype, fuse, kernels or {})
        nodes.append(node)
        at += len(node.layers)
    return _with_buffers(nodes, graph, arch, input_dtype)


def _next_node(
    graph: Graph,
    at: int,
    arch: str,
    input_dtype: str,
    dtype: str,
    fuse: bool,
    kernels: Mapping[str, str],
) -> Node:
    """The node that starts at step ``at``, with as many following layers fused as one kernel can take."""
    steps = graph.steps[at:]
    flattened = steps[0].in_shape if isinstance(steps[0].layer, Flatten) else None
    lead = 1 if flattened else 0
    head = steps[lead].layer
    if head.operation is None or (flattened and head.operation != "gemm"):
        raise UserError(f"layer {head.name}: a Flatten must be followed by a fully connected layer on the GPU")
    shape = steps[lead].in_shape
    requested = kernels.get(head.operation, "auto")
    bias = f"{head.name}_bias" in graph.parameters

    chosen: tuple[Problem, Variant, int] | None = None
    for taken in range(len(steps) - lead if fuse else 1):
        epilogue = [step.layer for step in steps[lead + 1 : lead + 1 + taken]]
        problem = head.problem(shape, epilogue, bias=bias, input_dtype=input_dtype, dtype=dtype)
        if problem is None:
            break
        variant = registry.choose(head.operation, problem, arch, requested)
        if variant is not None:
            chosen = (problem, variant, taken)
    if chosen is None:
        raise UserError(f"no {head.operation} kernel ({requested}) serves layer {head.name} with {input_dtype} input")
    problem, variant, taken = chosen
    layers = steps[: lead + 1 + taken]
    scale = graph.pixel_scale(np.dtype(input_dtype)) if at == 0 else 1.0
    parameters = head.device_parameters(shape, graph.parameters, scale=scale, flattened=flattened)
    return Node(
        head=head,
        layers=tuple(step.layer for step in layers),
        in_shape=layers[0].in_shape,
        out_shape=layers[-1].out_shape,
        problem=problem,
        variant=variant,
        flops=sum(step.layer.flops(step.in_shape) for step in layers),
        parameters=tuple(None if p is None else np.ascontiguousarray(p, dtype=dtype) for p in parameters),
    )


def _with_buffers(nodes: list[Node], graph: Graph, arch: str, input_dtype: str) -> ExecutionPlan:
    """Activations alternate between two buffers; images, logits and labels have their own."""
    buffers = {IMAGES: (input_dtype, prod(graph.network.input_shape))}
    placed: list[Node] = []
    reads = IMAGES
    for index, node in enumerate(nodes):
        scores = isinstance(node.layers[-1], Argmax) or isinstance(nodes[index + 1].head, Argmax)
        y = LOGITS if scores else f"activations{index % 2}"
        outputs = {argument.name: argument for argument in node.problem.arguments() if argument.name in ("y", LABELS)}
        writes = tuple(y if name == "y" else LABELS for name in outputs)
        for buffer, argument in zip(writes, outputs.values(), strict=True):
            buffers[buffer] = (argument.dtype, max(argument.per_image, buffers.get(buffer, ("", 0))[1]))
        placed.append(replace(node, reads=reads, writes=writes))
        reads = y
    return ExecutionPlan(tuple(placed), buffers, arch, input_dtype)
