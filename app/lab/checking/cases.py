"""List the cases on which a kernel is checked, small shapes or a named one, and describe its first wrong output."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from app.base.errors import UserError, choices_hint
from app.base.frozen import Frozen
from app.base.precision import storage_dtype
from app.kernels.problems import ConvProblem, LinearProblem, PoolProblem, Problem
from app.kernels.registry import served_form
from app.kernels.variant import Variant
from app.lab.bench.cases import network_items
from app.lab.bench.oracle import apply_variant_error_bound, expected_results, random_images, random_parameters
from app.lab.bench.tolerance import allowed_errors
from app.network.graph import network_graph

Single = ConvProblem | LinearProblem | PoolProblem
# Operation → problems whose sizes hardly any tile size divides.
SHAPES: dict[str, Sequence[Single]] = {
    "conv": [
        ConvProblem(3, 13, 10, 17, 3, bias=True, activation="relu"),
        ConvProblem(1, 9, 14, 2, 5),
        ConvProblem(2, 21, 37, 5, 4, bias=True),  # more than one tile
        ConvProblem(5, 11, 9, 33, 2, 2, bias=True),
        ConvProblem(2, 4, 9, 5, 5, bias=True, padding=2),
        ConvProblem(1, 12, 15, 7, 3, input_dtype="uint8"),
        ConvProblem(2, 9, 13, 19, 3, activation="tanh", pool=2),
        ConvProblem(2, 9, 12, 6, 3, bias=True, pool=2, pool_is_max=True, pool_ceil=True),
        ConvProblem(16, 7, 8, 43, 3, activation="relu", padding=1),  # for tiles of 64 maps and 16 channels
    ],
    "gemm": [
        LinearProblem(37, 19, bias=True, activation="relu"),
        LinearProblem(5, 3),
        LinearProblem(130, 70, bias=True),
        LinearProblem(64, 33, input_dtype="uint8"),
        LinearProblem(136, 66, bias=True, activation="tanh"),  # for tiles of multiples of eight
        LinearProblem(45, 10, bias=True, argmax=True),
        LinearProblem(40, 13, bias=True, argmax=True, softmax=True),
    ],
    "pool": [
        PoolProblem(3, 7, 9, 3, 2, True),
        PoolProblem(2, 21, 18, 2, 2, False),
        PoolProblem(5, 37, 29, 2, 3, True),
        PoolProblem(3, 8, 10, 3, 2, False, ceil=True),
        PoolProblem(2, 9, 6, 3, 2, True, padding=1),
        PoolProblem(3, 7, 5, 4, 1, False, padding=1, extra_padding=1, count_padding=True),
    ],
}
IMAGES = {"conv": 3, "gemm": 70, "pool": 3}  # number of images, which are the rows of a matrix product
# Operation → the sizes that --shape takes.
SIZES = {"conv": "C,H,W,M,K,S", "gemm": "INPUTS,OUTPUTS", "pool": "C,H,W,WINDOW,STRIDE"}
# Two bytes that, repeated, are a NaN in every type → what an output of such bytes means.
NANS = {
    b"\xff\xff": "nothing was written, or only added (outputs begin as NaN)",
    b"\xfe\xff": "found NaN from shared memory that no thread had written",  # by the emulation
}


class Fault(Exception):  # noqa: N818 - a verdict, not an error
    """A kernel broke a rule of CUDA C++ or wrote outside its outputs; the text says how and, if known, where."""


class Case(Frozen):
    """A kernel (``row``), a problem to run it on, random weights, and ``images`` random images. seed: of both."""

    row: Variant
    problem: Problem
    images: int
    seed: int = 0

    @cached_property
    def input_images(self) -> np.ndarray:
        """Return the random input of the problem, (images, elements)."""
        return random_images(np.random.default_rng(self.seed), self.problem.arguments()[0], self.images)

    @cached_property
    def parameters(self) -> list[np.ndarray | None]:
        """Return random weights and bias in the layout that the problem defines; None for no bias."""
        return random_parameters(np.random.default_rng(1 + self.seed), self.problem)

    def inputs(self) -> list[np.ndarray | None]:
        """Return the input images, then weights and bias in the layout that the kernel reads."""
        packing = self.row.launch_config(self.problem).packing
        return [self.input_images, *(packing.pack(self.parameters) if packing else self.parameters)]

    @cached_property
    def expected_and_tolerance(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the correct results in float64 and the error allowed for each, both (images, elements)."""
        found = expected_results(self.problem, self.input_images, *self.parameters)
        found = apply_variant_error_bound(self.row, self.problem, found, self.input_images, *self.parameters)
        return found.exact, allowed_errors(self.problem, found)[0]

    @cached_property
    def rerun_case(self) -> "Case":
        """Return the same case with other images and weights, for a second run of the kernel."""
        return replace(self, seed=self.seed + 1)

    def describe_error_of_two_runs(self, outputs: Sequence[np.ndarray], order: str = "") -> str | None:
        """Return as text the first error of this case or of ``rerun_case``, which ran in ``order``; or None."""
        half = len(outputs) // 2
        first = self.describe_first_error(outputs[:half])
        if first is not None or (second := self.rerun_case.describe_first_error(outputs[half:])) is None:
            return first
        return f"run again on other images and weights{order}, {second}"

    def describe_first_error(self, outputs: Sequence[np.ndarray]) -> str | None:
        """Return as text the first wrong element of the flat ``outputs`` (y, perhaps labels); None if all are right."""
        exact, each = self.expected_and_tolerance
        y = outputs[0].reshape(exact.shape)
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(y.astype(np.float64) - exact) <= each)  # NaN is wrong, too
        if wrong.any():
            first = int(wrong.ravel().argmax())
            found = _describe_value(y.ravel()[first])
            count = f"the first of {wrong.sum():,} wrong among {wrong.size:,} outputs"
            return f"{self._describe_position(first)}: {found}, expected {exact.ravel()[first]:.7g} ({count})"
        if len(outputs) > 1:
            return _describe_wrong_label(outputs[1], exact, each)
        return None

    def _describe_position(self, at: int) -> str:
        """Return as text which image, map and pixel of the output lies at the flat index ``at``."""
        if isinstance(self.problem, LinearProblem):
            image, output = divmod(at, self.problem.outputs)
            return f"image {image}, output {output}"
        assert isinstance(self.problem, ConvProblem | PoolProblem)
        maps = self.problem.maps if isinstance(self.problem, ConvProblem) else self.problem.channels
        places = np.unravel_index(at, (self.images, maps, *self.problem.pooled_size))
        return "image {}, map {}, row {}, column {}".format(*places)


def _describe_value(value: Any) -> str:
    """Return a wrong output element as text; for a NaN that marks unwritten memory (key of ``NANS``), what it means."""
    words = (value.tobytes()[at : at + 2] for at in range(0, value.nbytes, 2))
    return NANS.get(b"".join(set(words)), f"found {value:.7g}")


def _describe_wrong_label(labels: np.ndarray, exact: np.ndarray, allowed: np.ndarray) -> str | None:
    """Return as text the first label whose score in ``exact`` is too far below the best (``allowed``), or None."""
    for image, (label, scores, slack) in enumerate(zip(labels, exact, allowed, strict=True)):
        best = int(scores.argmax())
        if label >= len(scores) or scores[best] - scores[label] > slack[best] + slack[label]:
            found = "nothing was written" if label == 255 else f"found {label}"
            return f"image {image}, label: {found}, expected {best}"
    return None


def describe_problem(problem: Problem) -> str:
    """Return a problem's sizes and options as short text: ``C3 13x10 M17 K3 S1, bias, relu``."""
    match problem:
        case ConvProblem():
            parts = ["C{} {}x{} M{} K{} S{}".format(*problem.sizes)]
            parts += [f"padding {problem.padding}"] * (problem.padding > 0)
            parts += ["bias"] * problem.bias + [problem.activation] * bool(problem.activation)
            pool = f"{'max' if problem.pool_is_max else 'mean'} of {problem.pool}x{problem.pool}"
            parts += [pool + ", cut at the border" * problem.pool_ceil] * (problem.pool > 1)
        case LinearProblem():
            parts = [f"{problem.inputs} to {problem.outputs}"]
            parts += ["bias"] * problem.bias + [problem.activation] * bool(problem.activation)
            parts += ["softmax"] * problem.softmax + ["argmax"] * problem.argmax
        case PoolProblem():
            parts = [f"C{problem.channels} {problem.height}x{problem.width} window {problem.window} S{problem.stride}"]
            parts += ["max" if problem.is_max else "mean"] + ["cut at the border"] * problem.ceil
            parts += [f"padding {problem.padding}"] * (problem.padding > 0)
        case _:
            parts = []
    return ", ".join(parts)


def type_names(problem: Problem) -> str:
    """Return the type of the input in memory and, if it differs, the arithmetic type: ``uint8, float32``."""
    read = problem.arguments()[0].dtype
    return problem.dtype if read == problem.dtype else f"{read}, {problem.dtype}"


def small_cases(row: Variant, arch: str) -> list[Case]:
    """Return a case for each of ``SHAPES`` that the kernel supports in its first number type; one per other type."""
    found = []
    for dtype in row.dtypes:
        problems = [problem_in_type(row, problem, dtype) for problem in SHAPES[row.operation]]
        served = [problem for problem in problems if row.refusal_reason(problem, arch) is None]
        if not served and dtype == "float16x2":  # such a kernel reads only numbers in the range of float16
            single = [problem for problem in problems if isinstance(problem, ConvProblem)]
            bounded = [replace(problem, bounded=True, exact=exact) for exact in (False, True) for problem in single]
            served = [problem for problem in bounded if row.refusal_reason(problem, arch) is None]
        found += served if dtype == row.dtypes[0] else served[:1]
    return [Case(row, problem, IMAGES[row.operation]) for problem in found]


def requested_cases(row: Variant, arch: str, network: str, layer: str | None, shape: str | None) -> list[Case]:
    """Return a case of the layer, or of ``shape`` if given, in each of the kernel's number types. Raises UserError."""
    if shape is not None:
        problems: list[Problem] = [_simplify_if_refused(row, problem, arch) for problem in _parse_shape(row, shape)]
    else:
        graph = network_graph(network)
        items = [item for item in network_items(graph) if item.operation == row.operation and len(item.layers) == 1]
        item = next((item for item in items if item.name == layer), None)
        if item is None:
            known = choices_hint(str(layer), [item.name for item in items]) if items else "name another --network"
            raise UserError(f"network {graph.network.name} has no {row.operation} layer '{layer}': {known}")
        problems = [served_form(row, problem) for dtype, problem in item.problems.items() if dtype in row.dtypes]
    reasons = {problem: row.refusal_reason(problem, arch) for problem in problems}
    served = [problem for problem, reason in reasons.items() if reason is None]
    if not served:
        why = next(iter(reasons.values()), None) or "it serves the layer in none of its types"
        raise UserError(f"{row.operation} kernel '{row.name}' cannot compute that: {why}")
    return [Case(row, problem, 2) for problem in served]


def _simplify_if_refused(row: Variant, problem: Single, arch: str) -> Single:
    """Return the problem if the kernel supports it; otherwise without bias or, for pooling, with mean, not max."""
    if row.refusal_reason(problem, arch) is None:
        return problem
    return replace(problem, is_max=False) if isinstance(problem, PoolProblem) else replace(problem, bias=False)


def _parse_shape(row: Variant, text: str) -> Iterator[Single]:
    """Return a problem of the sizes in ``text`` (``3,13,10,17,3,1``) in each type of the kernel. Raises UserError."""
    names = SIZES[row.operation]
    try:
        sizes = [*map(int, text.split(","))]
    except ValueError:
        sizes = []
    if len(sizes) != len(names.split(",")) or min(sizes) < 1:
        raise UserError(f"--shape {text}: give {names} as whole numbers of at least 1, with commas between them")
    problem: Single
    if row.operation == "conv":
        channels, height, width, maps, window, stride = sizes
        problem = ConvProblem(channels, height, width, maps, window, stride, bias=True)
    elif row.operation == "pool":
        channels, height, width, window, stride = sizes
        problem = PoolProblem(channels, height, width, window, stride, is_max=True)
    else:
        height = width = window = 1
        problem = LinearProblem(sizes[0], sizes[1], bias=True)
    if window > min(height, width):
        raise UserError(f"--shape {text}: the window must be at most as large as the image")
    return (problem_in_type(row, problem, dtype) for dtype in row.dtypes)


def problem_in_type(row: Variant, problem: Single, dtype: str) -> Single:
    """Return the problem in the arithmetic type ``dtype``, with inputs and outputs stored to suit it, or uint8 input.

    For a kernel for 2:4 sparse filters, the problem has such filters.
    """
    if isinstance(problem, ConvProblem | LinearProblem):
        stored = storage_dtype(dtype)
        read = "uint8" if problem.input_dtype == "uint8" else stored
        typed = replace(problem, dtype=dtype, input_dtype=read, output_dtype=stored)
        return served_form(row, typed)
    return replace(problem, dtype=dtype)
