"""How a graph runs on a GPU: which layers are fused, which kernel serves each node, which buffers hold what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from app.errors import UserError
from app.graph import Graph, Step
from app.kernels import registry
from app.kernels.problems import DTYPES, ConvProblem, Problem, alone, wide
from app.kernels.variant import Variant
from app.layers import Argmax, Flatten, Layer, Shape
from app.tuning import Tuning

IMAGES = "images"
LOGITS = "logits"
LABELS = "labels"
# How numbers are multiplied, and how activations lie in memory between the layers.
PRECISIONS = {
    "fp64": ("float64", "float64"),
    "fp32": ("float32", "float32"),
    "tf32": ("tfloat32", "float32"),
    "fp16": ("float16", "float16"),
}


@dataclass(frozen=True)
class Node:
    """One launch: the layer that it is (``head``) with those fused into it.

    layers: all of them, in the network's order. settings: the variant's parameters that differ from its defaults;
    settings_alone: likewise where a convolution is measured without what is fused into it, see ``problems.alone``.
    reads, writes: buffer names, in the order of the arguments. parameters: the arrays between input and output,
    in the problem's layout and dtype; None where absent.
    """

    head: Layer
    layers: tuple[Layer, ...]
    in_shape: Shape
    out_shape: Shape
    problem: Problem
    variant: Variant
    settings: dict[str, int]
    flops: int
    parameters: tuple[np.ndarray | None, ...] = field(repr=False)
    reads: str = ""
    writes: tuple[str, ...] = ()
    settings_alone: dict[str, int] = field(default_factory=dict)

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

    @property
    def arithmetic(self) -> str:
        """The coarsest type in which any layer multiplies."""
        used = {getattr(node.problem, "dtype", "") for node in self.nodes if node.parameters}
        return max(used, key=DTYPES.index)


@dataclass(frozen=True)
class Choices:
    """What the user decided: precision (a key of PRECISIONS), fusion, and variants by layer or operation name.

    ``auto`` where a kernel is absent. tuning: the measured results that ``auto`` goes by.
    """

    precision: str = "fp32"
    fuse: bool = True
    kernels: Mapping[str, str] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)

    def requested(self, layer: Layer) -> str:
        """The variant asked for this layer; its own name goes before its operation's."""
        return self.kernels.get(layer.name) or self.kernels.get(layer.operation or "", "auto")


def plan(graph: Graph, arch: str, choices: Choices | None = None, *, input_dtype: str = "uint8") -> ExecutionPlan:
    """Fuse, choose kernels and assign buffers. Raises UserError where no kernel serves, and for unknown names."""
    choices = choices or Choices()
    check_kernels(graph, choices.kernels)
    nodes: list[Node] = []
    at = 0
    while at < len(graph.steps):
        reads = nodes[-1].problem.arguments() if nodes else ()
        dtype = next((argument.dtype for argument in reads if argument.name == "y"), input_dtype)
        nodes.append(_next_node(graph, at, arch, dtype, choices))
        at += len(nodes[-1].layers)
    return _with_buffers(nodes, graph, arch, input_dtype)


def check_kernels(graph: Graph, kernels: Mapping[str, str]) -> None:
    """Raises UserError unless every key is an operation or a layer of the network, and names a variant of it."""
    operations = {step.layer.name: step.layer.operation for step in graph.steps}
    for target, name in kernels.items():
        operation = operations.get(target, target)
        if operation is None or not registry.variants(operation):
            named = [layer for layer, own in operations.items() if own is not None]
            raise UserError(f"network {graph.network.name} has no layer '{target}': choose one of {', '.join(named)}")
        registry.find(operation, name)


def _next_node(graph: Graph, at: int, arch: str, input_dtype: str, choices: Choices) -> Node:
    """The node that starts at step ``at``, with as many following layers fused as one kernel can take."""
    steps = graph.steps[at:]
    flattened = steps[0].in_shape if isinstance(steps[0].layer, Flatten) else None
    lead = 1 if flattened else 0
    head = steps[lead].layer
    if head.operation is None or (flattened and head.operation != "gemm"):
        raise UserError(f"layer {head.name}: a Flatten must be followed by a fully connected layer on the GPU")
    chosen: tuple[Problem, Variant, dict[str, int], int] | None = None
    for taken in range(len(steps) - lead if choices.fuse else 1):
        epilogue = [step.layer for step in steps[lead + 1 : lead + 1 + taken]]
        after = steps[lead + 1 + taken :]
        found = _serve(graph, steps[lead], epilogue, after, arch, input_dtype, choices)
        if found is not None:
            chosen = (*found, taken)
    if chosen is None:
        raise UserError(_why_unserved(graph, steps[lead], arch, input_dtype, choices))
    problem, variant, settings, taken = chosen
    layers = steps[: lead + 1 + taken]
    scale = graph.pixel_scale(np.dtype(input_dtype)) if at == 0 else 1.0
    arrays = head.device_parameters(steps[lead].in_shape, graph.parameters, scale=scale, flattened=flattened)
    dtypes = [argument.dtype for argument in problem.arguments()[1:]]
    return Node(
        head=head,
        layers=tuple(step.layer for step in layers),
        in_shape=layers[0].in_shape,
        out_shape=layers[-1].out_shape,
        problem=problem,
        variant=variant,
        settings=settings,
        flops=sum(step.layer.flops(step.in_shape) for step in layers),
        parameters=tuple(
            None if array is None else np.ascontiguousarray(array, dtype=dtype)
            for array, dtype in zip(arrays, dtypes, strict=False)
        ),
        settings_alone=(
            choices.tuning.parameters(alone(problem), variant, arch) if isinstance(problem, ConvProblem) else {}
        ),
    )


def _problems(
    graph: Graph, step: Step, epilogue: Sequence[Layer], after: Sequence[Step], input_dtype: str, choices: Choices
) -> list[Problem]:
    """What a kernel for this step may be asked for: in the precision chosen, else in what the variant computes in."""
    wanted, stored = PRECISIONS[choices.precision]
    named = registry.find(step.layer.operation or "", choices.requested(step.layer))
    # Scores are never rounded to half precision: from the last matrix product on everything is stored wide.
    last = not any(later.layer.operation in ("conv", "gemm") for later in after)
    problems = (
        step.layer.problem(
            step.in_shape,
            epilogue,
            bias=f"{step.layer.name}_bias" in graph.parameters,
            input_dtype=input_dtype,
            dtype=dtype,
            output_dtype=wide(stored) if last else stored,
        )
        for dtype in (wanted, *(named.dtypes if named else ()))
    )
    return [problem for problem in problems if problem is not None]


def _serve(
    graph: Graph,
    step: Step,
    epilogue: Sequence[Layer],
    after: Sequence[Step],
    arch: str,
    input_dtype: str,
    choices: Choices,
) -> tuple[Problem, Variant, dict[str, int]] | None:
    for problem in _problems(graph, step, epilogue, after, input_dtype, choices):
        found = choices.tuning.choose(problem, arch, choices.requested(step.layer))
        if found is not None:
            return problem, *found
    return None


def _why_unserved(graph: Graph, step: Step, arch: str, input_dtype: str, choices: Choices) -> str:
    """One line: the layer, and what each variant that was asked says."""
    layer, requested = step.layer, choices.requested(step.layer)
    problems = _problems(graph, step, [], graph.steps[-1:], input_dtype, choices)
    what = f"no {layer.operation} kernel ({requested}) serves layer {layer.name} in {choices.precision}"
    if not problems:
        return f"{what} with {input_dtype} input: put a convolution or a fully connected layer first"
    rows = [row for row in registry.variants(layer.operation or "") if requested in ("auto", row.name)]
    # What a row lacks in a type that it has; that it has another type, only where there is no such row.
    able = [(row, problem) for row in rows for problem in problems if problem.dtype in row.dtypes]
    asked = able or [(row, problems[0]) for row in rows]
    refusals = {row.name: row.refusal(problem, arch) for row, problem in reversed(asked)}
    reasons = "; ".join(f"{name} {reason}" for name, reason in refusals.items())
    return f"{what} ({reasons}): choose another kernel or --precision"


def _with_buffers(nodes: list[Node], graph: Graph, arch: str, input_dtype: str) -> ExecutionPlan:
    """Activations alternate between two buffers; images, logits and labels have their own."""
    buffers = {IMAGES: (input_dtype, prod(graph.network.input_shape))}
    placed: list[Node] = []
    reads = IMAGES
    for index, node in enumerate(nodes):
        scores = isinstance(node.layers[-1], Argmax) or isinstance(nodes[index + 1].head, Argmax)
        outputs = {argument.name: argument for argument in node.problem.arguments() if argument.name in ("y", LABELS)}
        y = LOGITS if scores else f"activations{index % 2}"
        if "y" in outputs and buffers.get(y, (outputs["y"].dtype,))[0] != outputs["y"].dtype:
            y += f"_{outputs['y'].dtype}"  # scores are stored wider than what goes before them
        writes = tuple(y if name == "y" else LABELS for name in outputs)
        for buffer, argument in zip(writes, outputs.values(), strict=True):
            buffers[buffer] = (argument.dtype, max(argument.per_image, buffers.get(buffer, ("", 0))[1]))
        placed.append(replace(node, reads=reads, writes=writes))
        reads = y
    return ExecutionPlan(tuple(placed), buffers, arch, input_dtype)
