"""Run kernels of two layers on the GPU: provide weights, images and poisoned shared memory; compute errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from app.cuda.compiler import compile_kernel
from app.kernels.problems import ConvPairProblem, PairProblem
from app.network.definitions import LENET5
from app.network.graph import build_graph
from app.network.weights import load_weights
from app.planning.matching import Choices, Node
from app.planning.plan import plan
from tests.support.kernel_cases import Case, architecture
from tests.support.kernel_device import POISON, bits, host_arrays, kernel_of
from tests.support.kernel_grid import convolution_pair, product_pair, typed

POISON_FILE = Path(__file__).with_name("poison_shared.cu")
GUARD_IMAGES = 64  # behind the results: more than any block has at a time
PIECE = 2000  # images that the oracle takes at a time
Arrays = list[np.ndarray | None]


@cache
def _shipped() -> tuple[Node, ...]:
    return plan(build_graph(LENET5, load_weights()), "sm_90a", Choices("fp32x")).nodes


def weights(problem: PairProblem, kind: str) -> Arrays:
    """Return weights for the problem. kind: ``random``, or ``shipped`` for problems of lenet5 without biases."""
    if kind == "random":
        return host_arrays(problem, 1)[1]
    convolutions, products = _shipped()
    if not isinstance(problem, ConvPairProblem):
        return list(products.parameters)
    w1, *others = convolutions.parameters
    planned = convolutions.problem
    assert w1 is not None and isinstance(planned, ConvPairProblem)
    return [w1 * np.float32(planned.pixel_scale / problem.pixel_scale), *others]


def has_shipped_weights(problem: PairProblem) -> bool:
    """Return whether the shipped weights fit the problem."""
    planned = [node.problem for node in _shipped()]
    return problem in (
        *planned,
        *(typed(pair, problem.dtype) for pair in (convolution_pair(), product_pair(1024, 128, 10))),
    )


def images(problem: PairProblem, count: int, kind: str = "noise") -> np.ndarray:
    """Return inputs (count, elements): bytes, or positive features. kind: ``noise``, or a number for all elements."""
    argument = problem.arguments()[0]
    shape = (count, argument.per_image)
    if kind != "noise":
        return np.full(shape, int(kind), argument.dtype)
    rng = np.random.default_rng(7)
    if argument.dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return np.abs(rng.standard_normal(shape, dtype=np.float32)).astype(argument.dtype)


class Runner:
    """A case bound to weights and to images on the GPU; each run starts with poisoned outputs."""

    def __init__(self, case: Case, arrays: Arrays, x: np.ndarray) -> None:
        from app.cuda.memory import device_array, upload

        self.case, self.images = case, len(x)
        kernel = kernel_of(case)
        self._x = upload(np.ascontiguousarray(x).reshape(-1))
        parameters = [None if array is None else upload(array) for array in kernel.pack(arrays)]
        results = kernel.arguments()[1 + len(parameters) :]
        self._sizes = [argument.per_image for argument in results]
        self._outputs = [device_array(a.per_image * (len(x) + GUARD_IMAGES), a.dtype) for a in results]
        self._launch = kernel.bind([self._x, *parameters, *self._outputs], len(x))

    def __call__(self, count: int | None = None) -> list[Any]:
        """Return results (images, elements) of the first ``count`` images, on the GPU; check the memory behind them."""
        import cupy

        count = count or self.images
        for output in self._outputs:
            output.data.memset_async(POISON, output.nbytes, cupy.cuda.Stream.null)
        self._launch(cupy.cuda.Stream.null.ptr, count)
        cupy.cuda.Stream.null.synchronize()
        found = []
        for output, size in zip(self._outputs, self._sizes, strict=True):
            behind = output[count * size :].view(np.uint8)
            assert bool((behind == POISON).all()), f"{self.case} wrote behind its output"
            found.append(output[: count * size].reshape(count, size).copy())
        return found


@cache
def _poison() -> tuple[Any, int]:
    """Return the kernel that fills a block's shared memory, and the most bytes of shared memory of a block."""
    import cupy

    from app.kernels.function import KernelFunction
    from app.kernels.launch import load_cubin

    nbytes = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    module = load_cubin(compile_kernel(POISON_FILE, {}, architecture()))
    return KernelFunction(module, "poison_shared", threads=256, shared_bytes=nbytes), nbytes


def poison_shared(word: int) -> None:
    """Fill all shared memory of the GPU with ``word``."""
    import cupy

    function, nbytes = _poison()
    blocks, stream = 16 * cupy.cuda.Device().attributes["MultiProcessorCount"], cupy.cuda.Stream.null
    function(stream, (blocks, 1, 1), np.int32(nbytes // 4), np.uint32(word).view(np.int32))
    stream.synchronize()


@dataclass(frozen=True)
class Errors:
    """The greatest and the RMS error over all elements."""

    most: float
    rms: float


def errors(problem: PairProblem, arrays: Arrays, x: np.ndarray, y: Any) -> tuple[Errors, Errors]:
    """Return the errors of y, and those of a plain implementation stored in y's type, against float64. On the GPU."""
    import cupy

    from app.lab.bench.oracle import expected_results

    parameters = [None if array is None else cupy.asarray(array) for array in arrays]
    most, squares = np.zeros(2), np.zeros(2)
    for first in range(0, len(x), PIECE):
        part = slice(first, first + PIECE)
        wanted = expected_results(problem, cupy.asarray(x[part]), *parameters)
        assert wanted.plain is not None
        stored = wanted.plain.astype(y.dtype)
        for at, values in enumerate((y[part], stored)):
            error = abs(values.astype(np.float64) - wanted.exact)
            # Written so that NaN, an element never written, is the greatest.
            most[at] = np.inf if bool(cupy.isnan(error).any()) else max(most[at], float(error.max()))
            squares[at] += float((error**2).sum())
    own, plain = (Errors(m, s) for m, s in zip(most, np.sqrt(squares / y.size), strict=True))
    return own, plain


def same_bits(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Return whether all results are bit-identical."""
    return all(bool((bits(a) == bits(b)).all()) for a, b in zip(found, wanted, strict=True))
