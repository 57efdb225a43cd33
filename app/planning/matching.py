"""Define a plan's choices and nodes; list the problems of the next layers that one kernel could solve."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeGuard

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.base.precision import BY_DTYPE, BY_NAME, INTEGERS, epilogue_dtype
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearPairProblem, LinearProblem, PairProblem, Problem
from app.kernels.scaling import MOST_LAYERS_OF_HALVES, FeatureScaling
from app.kernels.variant import Variant
from app.layers import Flatten, Layer
from app.network.graph import Graph
from app.network.network import LayerStep
from app.planning.tuning import Tuning

PAIRS: dict[str, Any] = {"conv": ConvPairProblem, "gemm": LinearPairProblem}  # by operation of both layers


class Choices(Frozen):
    """The user's choices: precision (a name of app/base/precision.py), fusion, and kernels by layer or operation.

    A kernel that is None or absent is chosen by ``auto``, from the measured results in ``tuning``. sparse: whether
    kernels for 2:4 sparse weights may run.
    """

    precision: str = "fp32"
    fuse: bool = True
    kernels: Mapping[str, Variant | None] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    sparse: bool = True

    @property
    def named_pair_kernels(self) -> dict[str, Variant]:
        """Return the kernels that the user named for pairs of layers, by the pair's operation."""
        rows = ((f"{kind}_pair", self.kernels.get(f"{kind}_pair")) for kind in PAIRS)
        return {pair: row for pair, row in rows if row is not None}

    def requested_kernel(self, layer: Layer) -> Variant | None:
        """Return the kernel named for a layer, or else for its operation; None if ``auto`` chooses."""
        return self.kernels.get(layer.name, self.kernels.get(layer.operation or ""))


class FewImagesKernel(Frozen):
    """A kernel with its settings, which runs instead of the node's kernel for at most ``most`` images."""

    variant: Variant
    settings: dict[str, int]
    most: int


class Node(Frozen):
    """A node of the plan: a kernel and the layers that it computes in one launch.

    head: the main layer, into which the others are fused. steps: all layers, in the network's order. settings: the
    variant's parameters that differ from its defaults; settings_alone: the same for a convolution measured without its
    epilogue. few: kernels for few images, the fewest first. parameters: weights and biases in
    the problem's layout and dtype, None if absent. features: scales and bounds of the results, if the next kernel reads
    them scaled. reads, writes: buffer names, in the order of the arguments.
    """

    head: Layer
    steps: tuple[LayerStep, ...]
    problem: Problem
    variant: Variant
    settings: dict[str, int]
    parameters: tuple[np.ndarray | None, ...] = field(repr=False)
    features: FeatureScaling | None = field(default=None, repr=False)
    settings_alone: dict[str, int] = field(default_factory=dict)
    few: tuple[FewImagesKernel, ...] = ()
    reads: str = ""
    writes: tuple[str, ...] = ()

    @property
    def kernels(self) -> tuple[tuple[Variant, dict[str, int]], ...]:
        """Return the kernel and its settings, then the kernels for few images with their settings."""
        return (self.variant, self.settings), *((one.variant, one.settings) for one in self.few)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return all layers of the node."""
        return tuple(step.layer for step in self.steps)

    @property
    def scales(self) -> np.ndarray | None:
        """Return the factors of the result's channels; None for unscaled results."""
        return None if self.features is None else self.features.scales

    @property
    def name(self) -> str:
        """Return the layers' names, joined as in ``conv1+relu1+pool1``."""
        return "+".join(layer.name for layer in self.layers)

    @property
    def flops(self) -> int:
        """Return the FLOPs of all layers for one image."""
        return sum(step.layer.flops(step.in_shape) for step in self.steps)


def fusion_candidates(
    graph: Graph, steps: Sequence[LayerStep], input_dtype: str, choices: Choices
) -> Iterator[tuple[Problem, int]]:
    """Yield the problem of the first step with each possible epilogue, and how many steps it covers.

    The chosen precision comes first, and in each precision the longest epilogue.
    """
    wanted, named = BY_NAME[choices.precision], choices.requested_kernel(steps[0].layer)
    for dtype in dict.fromkeys((*wanted.dtypes, *(named.dtypes if named else ()))):
        for taken in range(len(steps) if choices.fuse else 1, 0, -1):
            problem = _candidate_problem(graph, steps, taken, input_dtype, dtype, wanted.stored)
            if problem is not None:
                yield problem, taken


def _candidate_problem(
    graph: Graph, steps: Sequence[LayerStep], taken: int, input_dtype: str, dtype: str, stored: str
) -> Problem | None:
    """Return the problem of the first ``taken`` steps; None if they do not fuse. stored: type of activations."""
    step, epilogue, after = steps[0], [fused.layer for fused in steps[1:taken]], steps[taken:]
    # Scores are never rounded to half precision: the last matrix product and later layers store float32.
    last = not any(later.layer.operation in ("conv", "gemm") for later in after)
    return step.layer.kernel_problem(
        step.in_shape,
        epilogue,
        bias=f"{step.layer.name}_bias" in graph.parameters,
        input_dtype=input_dtype,
        dtype=dtype,
        output_dtype=epilogue_dtype(stored) if last else stored,
    )


def stored_parameters(
    graph: Graph, at: int, heads: Sequence[LayerStep], problem: Problem, input_dtype: str
) -> tuple[np.ndarray | None, ...]:
    """Return the parameters of steps ``heads`` as stored on the GPU. The first layer's include the pixel scale.

    at: index of the node's first step. Raises UserError if weights to be stored as float16 exceed its range.
    """
    first = graph.steps[at]
    apart = isinstance(problem, ConvPairProblem) and problem.exact  # the kernel applies the scale to its results
    scale = graph.pixel_scale(np.dtype(input_dtype)) if at == graph.pixel_scale_step and not apart else 1.0
    flattened = first.in_shape if isinstance(first.layer, Flatten) else None
    arrays: list[np.ndarray | None] = []
    names: list[str] = []
    for head in heads:
        arrays += head.layer.device_parameters(head.in_shape, graph.parameters, scale=scale, flattened=flattened)
        names += [head.layer.name, f"{head.layer.name}_bias"]
        scale, flattened = 1.0, None  # only the first head reads pixels or flattened input
    dtypes = [argument.dtype for argument in problem.arguments()[1:]]
    return tuple(
        None if array is None else _convert_parameter(name, array, dtype)
        for name, array, dtype in zip(names, arrays, dtypes, strict=False)
    )


def _convert_parameter(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a parameter to its dtype on the GPU. Raises UserError if float16 cannot hold its greatest number."""
    if dtype == "float16":
        largest, limits = np.abs(array).max(), np.finfo(np.float16)
        if largest > limits.max or 0 < largest < limits.smallest_normal:
            raise UserError(
                f"fp16 cannot represent the weights of {name}: the largest, as stored on the card, is {largest:.2g}, "
                f"and float16 ranges from {limits.smallest_normal:.1g} to {limits.max:,.0f}; use --precision fp32"
            )
    return np.ascontiguousarray(array, dtype=dtype)


def is_split(problem: Problem) -> TypeGuard[ConvProblem | LinearProblem]:
    """Return whether the problem is a single layer whose numbers are split into the sum of two float16."""
    return isinstance(problem, ConvProblem | LinearProblem) and problem.dtype == "float16x2"


def layer_forms(problem: Problem, source: FeatureScaling | None, *, sparse: bool = False) -> list[Problem]:
    """Return the forms of a layer's problem (such as exact or sparse) for kernels to try, the fastest first.

    source: scales and bounds of its input; None: unscaled. sparse: whether its filters are 2:4 sparse and kernels for
    them may run; forms for these come first.
    """
    if sparse and isinstance(problem, ConvProblem):
        dense = layer_forms(problem, source)
        return [*(replace(form, sparse=True) for form in dense if isinstance(form, ConvProblem)), *dense]
    if not is_split(problem):
        return [problem]
    if isinstance(problem, ConvProblem):
        bounded = source is not None and source.layers <= MOST_LAYERS_OF_HALVES
        halves = [replace(problem, bounded=True, exact=True), replace(problem, bounded=True)] if bounded else []
        return [*halves, problem]
    ranges = (False, True) if source is not None or problem.input_dtype == "uint8" else (True,)
    return [replace(problem, exact=exact, unbounded=beyond) for beyond in ranges for exact in (True, False)]


def pair_forms(problem: PairProblem, pixel_scale: float | None, *, integers: bool, sparse: bool) -> list[PairProblem]:
    """Return the problem's forms for kernels to try: for weights that float16 holds exactly, then for any weights.

    The first form is the fastest. pixel_scale: the factor of the first layer's pixels, None if that layer reads none.
    The exact form keeps this factor out of the weights, which would become inexact. integers: whether the weights have
    8-bit filters. sparse: whether the second filters are 2:4 sparse and kernels for them may run, which come first.
    """
    if sparse and isinstance(problem, ConvPairProblem):
        dense = pair_forms(problem, pixel_scale, integers=integers, sparse=False)
        return [*(replace(form, sparse=True) for form in dense if isinstance(form, ConvPairProblem)), *dense]
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
