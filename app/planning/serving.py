"""Find the kernel for the next layers: one layer with what can be fused into it, or two layers as a pair."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from app.base.errors import UserError
from app.base.precision import BY_NAME, INTEGERS
from app.kernels import registry
from app.kernels.facts import alone
from app.kernels.fused.scaling import Inexact, scale_features, unscale_features, within_range
from app.kernels.problems import (
    ConvPairProblem,
    ConvProblem,
    LinearPairProblem,
    LinearProblem,
    PairProblem,
    Problem,
    operation,
)
from app.kernels.variant import Variant
from app.layers import Activation, Flatten
from app.network.graph import Graph
from app.network.network import Step
from app.planning.matching import Choices, Node, candidates, problems_of, stored_parameters
from app.planning.pairs import forms, pair_at

# Halves of numbers beyond float16 are infinite; only the features of a pair are known to be in range.
UNSCALED = "in fp32x it reads only what a kernel of two convolutions wrote"
NO_INTEGERS = "the weights have no 8-bit filters: run python -m data_tools quantise IN OUT, and name OUT with --weights"
LOSSY = "with these weights it would lose numbers"


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
    for candidate, taken in candidates(graph, steps, input_dtype, choices):
        found = _single(graph, at, steps[0], candidate, arch, input_dtype, choices, scales)
        if found is not None:
            problem, served, arrays = found
            own = choices.tuning.parameters(alone(problem), served[0], arch) if isinstance(problem, ConvProblem) else {}
            return Node(head, graph.steps[at : at + lead + taken], problem, *served, arrays, settings_alone=own)
    raise UserError(_why_unserved(graph, steps[0], arch, input_dtype, choices, scales))


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

    A Resize before two convolutions is computed with them, if a kernel can. Raises UserError if the kernel named for
    both layers cannot serve them.
    """
    start = at + _lead(graph, at)
    found = pair_at(graph, start, input_dtype, choices)
    if found is None:
        return None
    problem, heads, taken = found
    enlarges = isinstance(problem, ConvPairProblem) and problem.resize is not None
    reads = start + enlarges  # the step of the first convolution
    named = choices.named_pairs.get(operation(problem))
    reason = NO_INTEGERS if problem.dtype == INTEGERS and graph.quantised is None else ""
    scale = graph.pixel_scale(np.dtype(input_dtype)) if reads == graph.scaled_at else None
    for form in forms(problem, scale, graph.quantised is not None):
        served = choices.tuning.choose(form, arch, named)
        if served is None:
            reason = f"it {named.refusal(form, arch)}; choose another kernel or --precision" if named else ""
            continue
        if isinstance(form, LinearPairProblem) and form.parts == 2 and scales is None:
            reason = f"{UNSCALED}; choose another, or --precision fp16"
            continue
        stored = graph
        if form.dtype == INTEGERS and graph.quantised is not None:
            stored = replace(graph, parameters=graph.quantised.on_unit_bytes(graph.parameters, heads[0].layer.name))
        arrays, written = stored_parameters(stored, at + enlarges, heads, form, input_dtype), None
        if isinstance(form, LinearPairProblem):
            arrays = arrays if scales is None else unscale_features(arrays, scales)
        else:
            scaled, found_scales = scale_features(form, arrays)
            if found_scales is not None and _reads_scaled(
                graph, start + taken, arch, form.second.output_dtype, choices, found_scales
            ):
                arrays, written = scaled, found_scales
        if not within_range(form, arrays):
            reason = f"{LOSSY}; take auto, or a kernel of single layers"
        elif not _holds(form, *served, arrays):
            reason = "float16 does not hold its weights without loss; take auto"
        else:
            return Node(heads[0].layer, graph.steps[at : start + taken], form, *served, arrays, written)
    if named is not None and not enlarges:
        raise UserError(f"kernel {named.name} does not support {'+'.join(head.layer.name for head in heads)}: {reason}")
    return None


def _reads_scaled(graph: Graph, at: int, arch: str, input_dtype: str, choices: Choices, scales: np.ndarray) -> bool:
    """Return whether the kernel at step ``at`` divides the features' scales out: it multiplies in float16."""
    if at >= len(graph.steps):
        return False
    reader = _pair(graph, at, arch, input_dtype, choices, scales)
    if reader is not None or BY_NAME[choices.precision].dtype != "float16x2":
        return reader is not None and isinstance(reader.problem, LinearPairProblem)
    return graph.steps[at + _lead(graph, at)].layer.operation == "gemm" and (
        serve(graph, at, arch, input_dtype, choices, scales).problem.dtype == "float16x2"
    )


def _single(
    graph: Graph,
    at: int,
    head: Step,
    problem: Problem,
    arch: str,
    input_dtype: str,
    choices: Choices,
    scales: np.ndarray | None,
) -> tuple[Problem, tuple[Variant, dict[str, int]], tuple[np.ndarray | None, ...]] | None:
    """Find the kernel of one layer: the problem as it solves it, the kernel with its settings, and the parameters."""
    named = choices.requested(head.layer)
    if not isinstance(problem, LinearProblem) or problem.dtype != "float16x2":
        served = choices.tuning.choose(problem, arch, named)
        return served and (problem, served, stored_parameters(graph, at, [head], problem, input_dtype))
    if scales is None and problem.input_dtype != "uint8":  # see UNSCALED
        return None
    for form in (replace(problem, exact=True), problem):
        served = choices.tuning.choose(form, arch, named)
        if served is not None:
            arrays = stored_parameters(graph, at, [head], form, input_dtype)
            arrays = arrays if scales is None else unscale_features(arrays, scales)
            if within_range(form, arrays) and _holds(form, *served, arrays):
                return form, served, arrays
    return None


def _holds(
    form: PairProblem | LinearProblem, row: Variant, settings: dict[str, int], arrays: Sequence[np.ndarray | None]
) -> bool:
    """Return whether float16 holds the weights as the kernel packs them, if it multiplies no low halves."""
    packing = row.config(form, settings).packing
    if form.exact and packing is not None:
        try:
            packing.pack(arrays)
        except Inexact:
            return False
    return True


def _why_unserved(
    graph: Graph, step: Step, arch: str, input_dtype: str, choices: Choices, scales: np.ndarray | None
) -> str:
    """Describe in one line the layer, and each variant's reason against it."""
    layer, named = step.layer, choices.requested(step.layer)
    problems = problems_of(graph, [step, graph.steps[-1]], 1, input_dtype, choices)  # last product: wide scores
    who = named.name if named else "auto"
    what = f"no {layer.operation} kernel ({who}) supports layer {layer.name} in {choices.precision}"
    if not problems:
        return f"{what} with {input_dtype} input: put a convolution or a fully connected layer first"
    rows = [named] if named else registry.variants(layer.operation or "")
    # Reasons of rows with the type; only if there are none, reasons of rows with other types.
    able = [(row, problem) for row in rows for problem in problems if problem.dtype in row.dtypes]
    asked = able or [(row, problems[0]) for row in rows]
    otherwise = UNSCALED if scales is None else LOSSY  # of a kernel that serves the problem, but not these numbers
    refusals = {row.name: row.refusal(problem, arch) or otherwise for row, problem in reversed(asked)}
    reasons = "; ".join(f"{name} {reason}" for name, reason in refusals.items())
    return f"{what} ({reasons}): choose another kernel or --precision"
