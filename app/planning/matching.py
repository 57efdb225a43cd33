"""Find the kernel for the next layers: one layer with what can be fused into it, or two layers as a pair."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from app.errors import UserError
from app.kernels import registry
from app.kernels.facts import alone
from app.kernels.fused.scaling import scale_features, unscale_features, within_range
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearPairProblem, PairProblem, Problem, operation
from app.kernels.variant import Variant
from app.layers import Activation, Flatten, Layer
from app.network.graph import Graph, Step
from app.planning.tuning import Tuning
from app.precision import BY_NAME, wide

PAIRS: dict[str, Any] = {"conv": ConvPairProblem, "gemm": LinearPairProblem}  # by the common operation of both layers


@dataclass(frozen=True)
class Choices:
    """The user's choices: precision (a name of app/precision.py), fusion, and kernels by layer or operation name.

    A kernel that is None or absent is chosen by ``auto``, from the measured results in ``tuning``.
    """

    precision: str = "fp32"
    fuse: bool = True
    kernels: Mapping[str, Variant | None] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def named_pairs(self) -> dict[str, Variant]:
        """Operation of two layers → the kernel named for it."""
        rows = ((f"{kind}_pair", self.kernels.get(f"{kind}_pair")) for kind in PAIRS)
        return {pair: row for pair, row in rows if row is not None}

    def requested(self, layer: Layer) -> Variant | None:
        """Return the kernel named for this layer, or else for its operation; None if ``auto`` chooses."""
        return self.kernels.get(layer.name, self.kernels.get(layer.operation or ""))


@dataclass(frozen=True)
class Node:
    """One launch: a kernel, and the layers that it computes.

    head: the main layer, into which the others are fused. steps: all of its layers, in the network's order. settings:
    the variant's parameters that differ from its defaults; settings_alone: the same for a convolution measured without
    its epilogue, see ``facts.alone``. parameters: the arrays between input and output, in the problem's layout and
    dtype, None if absent. scales: powers of two that multiply the channels of its results; the next kernel's weights
    divide them out; None: results are unscaled. reads, writes: buffer names, in the order of the arguments.
    """

    head: Layer
    steps: tuple[Step, ...]
    problem: Problem
    variant: Variant
    settings: dict[str, int]
    parameters: tuple[np.ndarray | None, ...] = field(repr=False)
    scales: np.ndarray | None = field(default=None, repr=False)
    settings_alone: dict[str, int] = field(default_factory=dict)
    reads: str = ""
    writes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers of the node."""
        return tuple(step.layer for step in self.steps)

    @property
    def name(self) -> str:
        """The layers' names, joined: ``conv1+relu1+pool1``."""
        return "+".join(layer.name for layer in self.layers)

    @property
    def flops(self) -> int:
        """Operations of all layers for one image."""
        return sum(step.layer.flops(step.in_shape) for step in self.steps)


def serve(
    graph: Graph, at: int, arch: str, input_dtype: str, choices: Choices, scales: np.ndarray | None = None
) -> Node:
    """Find the kernel that starts at step ``at`` and takes the most layers. Raises UserError if there is none.

    scales: the factors of its input, see ``Node``.
    """
    lead = _lead(graph, at)
    steps = graph.steps[at + lead :]
    head = steps[0].layer
    if head.operation is None or (lead and head.operation != "gemm" and reorders(graph.steps[at])):
        raise UserError(
            f"layer {head.name} reads features in the order of {graph.steps[at].layer.name}, which the GPU gives to "
            "fully connected layers only: put one between them, or use --device cpu"
        )
    pair = _pair(graph, at, arch, input_dtype, choices, scales) if choices.fuse else None
    if pair is not None:
        return pair
    for problem, taken in _candidates(graph, steps, input_dtype, choices):
        served = choices.tuning.choose(problem, arch, choices.requested(head))
        if served is not None:
            own = choices.tuning.parameters(alone(problem), served[0], arch) if isinstance(problem, ConvProblem) else {}
            arrays = stored_parameters(graph, at, steps[:1], problem, input_dtype)
            return Node(head, graph.steps[at : at + lead + taken], problem, *served, arrays, settings_alone=own)
    raise UserError(_why_unserved(graph, steps[0], arch, input_dtype, choices))


def flattened_late(graph: Graph) -> Graph:
    """Move every Flatten behind the activations that follow it; the results are the same.

    Activations accept any order of features. The order of a Flatten exists on the GPU only in the rows of weights.
    """
    steps = list(graph.steps)
    for at in range(len(steps) - 1):
        step, after = steps[at : at + 2]
        if isinstance(step.layer, Flatten) and isinstance(after.layer, Activation):
            steps[at : at + 2] = Step(after.layer, step.in_shape, step.in_shape), step
    return replace(graph, steps=tuple(steps))


def reorders(step: Step) -> bool:
    """Return whether this Flatten changes the order of the values in memory: of several maps with several pixels."""
    channels, *pixels = step.in_shape
    return channels > 1 and prod(pixels) > 1


def _lead(graph: Graph, at: int) -> int:
    """Return 1 if step ``at`` is a Flatten, which only determines how the next step reads its input; else 0."""
    return int(isinstance(graph.steps[at].layer, Flatten))


def _pair(
    graph: Graph, at: int, arch: str, input_dtype: str, choices: Choices, scales: np.ndarray | None
) -> Node | None:
    """A kernel for this layer and the next of its kind; None if there is none, or if one was named for either layer.

    Raises UserError if the kernel named for both cannot serve them.
    """
    lead = _lead(graph, at)
    found = pair_at(graph, at + lead, input_dtype, choices)
    if found is None:
        return None
    problem, heads, taken = found
    behind = at + lead + taken
    named = choices.named_pairs.get(operation(problem))
    splits = isinstance(problem, LinearPairProblem) and problem.dtype == "float16x2"
    served = choices.tuning.choose(problem, arch, named)
    if served is None:
        reason = f"it {named.refusal(problem, arch)}; choose another kernel or --precision" if named else ""
    elif splits and scales is None:
        # Halves of numbers beyond float16 are infinite; only a pair's results are known to be in range.
        reason = "in fp32x it reads only what a kernel of two convolutions wrote; choose another, or --precision fp16"
    else:
        arrays, written = stored_parameters(graph, at, heads, problem, input_dtype), None
        if isinstance(problem, LinearPairProblem):
            arrays = arrays if scales is None else unscale_features(arrays, scales)
        else:
            scaled, found_scales = scale_features(problem, arrays)
            reader = _pair(graph, behind, arch, problem.second.output_dtype, choices, found_scales)
            if reader is not None and isinstance(reader.problem, LinearPairProblem):
                arrays, written = scaled, found_scales
        if within_range(problem, arrays):
            return Node(heads[0].layer, graph.steps[at:behind], problem, *served, arrays, written)
        reason = "with these weights it would lose numbers; take auto, or a kernel of single layers"
    if named is not None:
        raise UserError(f"kernel {named.name} does not support {'+'.join(head.layer.name for head in heads)}: {reason}")
    return None


def pair_at(
    graph: Graph, at: int, input_dtype: str, choices: Choices
) -> tuple[PairProblem, tuple[Step, Step], int] | None:
    """Find the problem of step ``at`` and the next layer of its kind, whether or not a kernel serves it.

    Also returns both layers' steps and the number of steps taken. None if a kernel was named for either layer.
    """
    steps = graph.steps[at:]
    kind = steps[0].layer.operation or ""
    if kind not in PAIRS:
        return None
    heads: list[Step] = []
    halves: list[Any] = []
    taken, reads = 0, input_dtype
    while len(heads) < 2:
        head = steps[taken] if taken < len(steps) else None
        if head is None or head.layer.operation != kind or choices.requested(head.layer) is not None:
            return None
        found = next(_candidates(graph, steps[taken:], reads, choices), None)
        if found is None:
            return None
        heads.append(head)
        halves.append(found[0])
        taken, reads = taken + found[1], halves[-1].output_dtype
    return PAIRS[kind](*halves), (heads[0], heads[1]), taken


def _candidates(
    graph: Graph, steps: Sequence[Step], input_dtype: str, choices: Choices
) -> Iterator[tuple[Problem, int]]:
    """Yield what a kernel may solve for the first of the steps and its epilogue, and the number of steps taken.

    The longest epilogue comes first.
    """
    for taken in range(len(steps) if choices.fuse else 1, 0, -1):
        for problem in _problems(graph, steps, taken, input_dtype, choices):
            yield problem, taken


def _problems(graph: Graph, steps: Sequence[Step], taken: int, input_dtype: str, choices: Choices) -> list[Problem]:
    """Return the problems that a kernel may solve for the first ``taken`` steps, one layer and its epilogue.

    The chosen precision comes first, then those of the named kernel.
    """
    step, epilogue, after = steps[0], [fused.layer for fused in steps[1:taken]], steps[taken:]
    wanted = BY_NAME[choices.precision]
    named = choices.requested(step.layer)
    # Scores are never rounded to half precision: the last matrix product and later layers store wide.
    last = not any(later.layer.operation in ("conv", "gemm") for later in after)
    problems = (
        step.layer.problem(
            step.in_shape,
            epilogue,
            bias=f"{step.layer.name}_bias" in graph.parameters,
            input_dtype=input_dtype,
            dtype=dtype,
            output_dtype=wide(wanted.stored) if last else wanted.stored,
        )
        for dtype in (wanted.dtype, *([wanted.fallback] if wanted.fallback else []), *(named.dtypes if named else ()))
    )
    return [problem for problem in problems if problem is not None]


def _why_unserved(graph: Graph, step: Step, arch: str, input_dtype: str, choices: Choices) -> str:
    """Describe in one line the layer, and each variant's reason against it."""
    layer, named = step.layer, choices.requested(step.layer)
    problems = _problems(graph, [step, graph.steps[-1]], 1, input_dtype, choices)  # last product: wide scores
    who = named.name if named else "auto"
    what = f"no {layer.operation} kernel ({who}) supports layer {layer.name} in {choices.precision}"
    if not problems:
        return f"{what} with {input_dtype} input: put a convolution or a fully connected layer first"
    rows = [named] if named else registry.variants(layer.operation or "")
    # Reasons of rows with the type; only if there are none, reasons of rows with other types.
    able = [(row, problem) for row in rows for problem in problems if problem.dtype in row.dtypes]
    asked = able or [(row, problems[0]) for row in rows]
    refusals = {row.name: row.refusal(problem, arch) for row, problem in reversed(asked)}
    reasons = "; ".join(f"{name} {reason}" for name, reason in refusals.items())
    return f"{what} ({reasons}): choose another kernel or --precision"


def stored_parameters(
    graph: Graph, at: int, heads: Sequence[Step], problem: Problem, input_dtype: str
) -> tuple[np.ndarray | None, ...]:
    """Return the heads' parameters as stored on the card; the first scaled layer includes the pixel scale.

    Raises UserError for weights that float16 cannot hold, if they are to be stored in it.
    """
    first = graph.steps[at]
    scale = graph.pixel_scale(np.dtype(input_dtype)) if at == graph.scaled_at else 1.0
    flattened = first.in_shape if isinstance(first.layer, Flatten) else None
    arrays: list[np.ndarray | None] = []
    names: list[str] = []
    for head in heads:
        arrays += head.layer.device_parameters(head.in_shape, graph.parameters, scale=scale, flattened=flattened)
        names += [head.layer.name, f"{head.layer.name}_bias"]
        scale, flattened = 1.0, None  # only the first head reads pixels or flattened input
    dtypes = [argument.dtype for argument in problem.arguments()[1:]]
    return tuple(
        None if array is None else _stored(name, array, dtype)
        for name, array, dtype in zip(names, arrays, dtypes, strict=False)
    )


def _stored(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the parameter as stored on the card. Raises UserError if float16 cannot hold its greatest number."""
    if dtype == "float16":
        largest, limits = np.abs(array).max(), np.finfo(np.float16)
        if largest > limits.max or 0 < largest < limits.smallest_normal:
            raise UserError(
                f"fp16 cannot represent the weights of {name}: the largest, as stored on the card, is {largest:.2g}, "
                f"and float16 ranges from {limits.smallest_normal:.1g} to {limits.max:,.0f}; use --precision fp32"
            )
    return np.ascontiguousarray(array, dtype=dtype)
