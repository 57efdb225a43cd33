"""Find two layers in a row that one kernel may compute."""

from dataclasses import replace
from typing import Any

from app.base.precision import BY_DTYPE, INTEGERS
from app.kernels.problems import ConvPairProblem, LinearPairProblem, PairProblem
from app.layers import Resize
from app.network.graph import Graph
from app.network.network import Step
from app.planning.matching import PAIRS, Choices, candidates


def pair_at(
    graph: Graph, at: int, input_dtype: str, choices: Choices
) -> tuple[PairProblem, tuple[Step, Step], int] | None:
    """Find the problem of step ``at`` and the next layer of its kind, whether or not a kernel serves it.

    A Resize at step ``at`` belongs to the two convolutions behind it. Also returns both layers' steps and the number of
    steps taken. None if a kernel was named for either layer.
    """
    first = graph.steps[at]
    if isinstance(first.layer, Resize):
        found = pair_at(graph, at + 1, input_dtype, choices)
        resize = first.layer.own_problem(first.in_shape, input_dtype, input_dtype)
        if found is None or resize is None or not isinstance(found[0], ConvPairProblem):
            return None
        return replace(found[0], resize=resize), found[1], found[2] + 1
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
        half = next(candidates(graph, steps[taken:], reads, choices), None)
        if half is None:
            return None
        heads.append(head)
        halves.append(half[0])
        taken, reads = taken + half[1], halves[-1].output_dtype
    return PAIRS[kind](*halves), (heads[0], heads[1]), taken


def forms(problem: PairProblem, pixel_scale: float | None, integers: bool) -> list[PairProblem]:
    """Return the problem as kernels may solve it, the fastest first: in float16x2 for exact weights, then for any.

    pixel_scale: of the first layer's input, None if it reads no pixels. Weights that include it are not exact.
    integers: whether the weights have 8-bit filters.
    """
    if problem.dtype == INTEGERS:
        if isinstance(problem, ConvPairProblem):
            return [problem] if integers else []
        wider = BY_DTYPE[INTEGERS].fallback
        return [LinearPairProblem(replace(problem.first, dtype=wider), replace(problem.second, dtype=wider))]
    if problem.dtype != "float16x2":
        return [problem]
    if isinstance(problem, ConvPairProblem) and pixel_scale is not None:
        return [replace(problem, exact=True, pixel_scale=pixel_scale), problem]
    return [replace(problem, exact=True), problem]
