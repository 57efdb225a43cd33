"""Define the registry row of a kernel: which problems it can compute, and how it is launched for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from app.base.frozen import Frozen
from app.base.precision import epilogue_dtype, storage_dtype
from app.cuda.compiler import KERNEL_DIR, architecture_number
from app.kernels.plain_problems import DEFAULT_SLOPE, Argument
from app.kernels.problems import LONG_SUM, ConvProblem, LinearProblem, PoolProblem, Problem

Grid = tuple[int, int, int]
NO_BLOCKS: Grid = (0, 0, 0)  # of a kernel that is not launched for this number of images
Parameters = Mapping[str, int]  # tunable parameter of a variant → value
# Architecture → KB of shared memory per block (CUDA C++ Programming Guide, table of compute capabilities).
SHARED_LIMIT = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
STATIC_SHARED_LIMIT = 48 << 10
BLOCK = 256  # threads per block in kernels with one output element per thread
MAX_GRID_Y = 65_535
FLOATS = ("float32", "float64")
STORED = (*FLOATS, "float16")
# Operation → folder of its kernels; all other operations are pointwise.
FAMILIES = {"conv": "conv", "gemm": "gemm", "conv_pair": "fused", "gemm_pair": "fused"}


class Unfit(Exception):  # noqa: N818 - a verdict, not an error
    """Raised by ``configure`` if the parameters do not suit the problem; the text is the reason."""


class KernelLaunch(Frozen):
    """One launch of a kernel. Its arguments are, in order, the problem's arrays, workspace, ``int images``, scalars.

    threads: per block. grid: images → grid; one without blocks is not launched. entry: the function's name; empty for
    the variant's. shared_bytes: dynamic shared memory. persistent: at most one block per multiprocessor; blocks loop
    over the work. dependent: it starts early and itself waits for the previous kernel (programmatic dependent launch).
    cluster: images → blocks per cluster (sm_90 and later), 1 for none. block: threads along x, y, z if not only x.
    """

    threads: int
    grid: Callable[[int], Grid]
    entry: str = ""
    scalars: tuple[int, ...] = ()
    shared_bytes: int = 0
    persistent: bool = False
    dependent: bool = False
    cluster: Callable[[int], int] | None = None
    block: Grid | None = None


class ConstantCopy(Frozen):
    """Copy ``count`` elements of w, from element ``first``, to the file's ``__constant__`` array ``symbol``."""

    symbol: str
    first: int
    count: int


class LibraryGemm(Frozen):
    """Compute c (m, n) = a (m, k) b (k, n) by cuBLAS, row-major float32. a, b, c: names. sizes: images → (m, n, k)."""

    a: str
    b: str
    c: str
    sizes: Callable[[int], tuple[int, int, int]]


Action = KernelLaunch | ConstantCopy | LibraryGemm


class Packing(Frozen):
    """The form in which a kernel takes the problem's parameters; ``pack`` runs once, when weights are loaded.

    takes: the kernel's arguments between x and the outputs. pack: computes the arrays of these arguments from the
    problem's parameters; an optional parameter that is absent is None.
    """

    takes: tuple[Argument, ...]
    pack: Callable[[Sequence[np.ndarray | None]], list[np.ndarray | None]]


class LaunchConfig(Frozen):
    """The configuration of a variant for one problem.

    defines: compile-time constants. actions: what a launch does, in order. workspace: scratch arrays. images_at_a_time:
    larger batches run in chunks of this size; 0: no limit. packing: None if the kernel takes the parameters unchanged.
    """

    defines: dict[str, str | int]
    actions: tuple[Action, ...]
    workspace: tuple[Argument, ...] = ()
    images_at_a_time: int = 0
    packing: Packing | None = None

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """Return the kernel launches among the actions."""
        return tuple(action for action in self.actions if isinstance(action, KernelLaunch))


class Variant(Frozen):
    """One kernel. ``configure`` returns its configuration for a problem; ``refuses`` returns why none suits, or None.

    system: the earlier systems that had it. since: name of the row of this operation that it continues, if any.
    summary: the idea; empty if the file's head comment begins with it. limits: the problems that it supports, in words.
    pools: it can fuse pooling. reads_host: it reads its input just once and in long runs, so the input may be
    page-locked host memory. tunables: parameter → the values that a sweep tries; defaults: problem → parameters without
    a sweep. automatic: ``auto`` may choose it; other rows run only if requested. worthwhile: problem, architecture →
    False if a kernel of another type is estimated to be faster. only_arch: the one architecture with its instructions.
    instructions: the family that multiplies (fma, hfma2, mma or wgmma), whose peak rate reports compare with.
    error_bound: problem, x, w, bias → roundings and magnitudes that bound a convolution's errors, if it does not add
    the terms one by one. work: problem → products computed ÷ the layer's. folder: the file's folder, if not the
    operation's. taught: it is a step of the ladder, with its own text. has_ptx: the file contains PTX.
    sparse: it supports 2:4 sparse filters alone.
    """

    operation: str
    step: int
    technique: str
    system: str
    configure: Callable[[Any, Parameters], LaunchConfig]
    dtypes: tuple[str, ...]
    since: str | None = None
    summary: str = ""
    refuses: Callable[[Any], str | None] = lambda _: None
    limits: str = ""
    min_arch: int = 75
    only_arch: int | None = None
    pools: bool = False
    reads_host: bool = False
    tunables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    defaults: Callable[[Any], dict[str, int]] = lambda _: {}
    automatic: bool = False
    worthwhile: Callable[[Any, str], bool] = lambda _problem, _arch: True
    needs_cublas: bool = False
    instructions: str = "fma"
    error_bound: Callable[[Any, Any, Any, Any], tuple[int, Any]] | None = None
    work: Callable[[Any], float] = lambda _: 1.0
    folder: Path | None = None
    taught: bool = True
    has_ptx: bool = False
    sparse: bool = False

    @property
    def name(self) -> str:
        """Return the name that the command line uses."""
        return self.technique.replace("_", "-")

    @property
    def source(self) -> str:
        """Return the name of the .cu file."""
        return f"{self.operation}_{self.step:02}_{self.technique}.cu"

    @property
    def path(self) -> Path:
        """Return the path of the .cu file."""
        return (self.folder or KERNEL_DIR / FAMILIES.get(self.operation, "pointwise")) / self.source

    @property
    def idea(self) -> str:
        """Return the idea: ``summary``, or else the first paragraph of the comment at the head of the file."""
        if self.summary:
            return self.summary
        head = takewhile(lambda line: line.startswith("// "), self.path.read_text(encoding="utf-8").splitlines())
        return " ".join(line.removeprefix("// ") for line in head)

    @property
    def entry(self) -> str:
        """Return the name of the kernel's function in the file."""
        return f"{self.operation}_{self.technique}"

    def launch_config(self, problem: Problem, parameters: Parameters | None = None) -> LaunchConfig:
        """Return the configuration for the problem with these parameters, and defaults for others. Raises Unfit.

        The kernel checks that SHARED_BYTES, the launch's shared memory, equals the size of its ``SharedStorage``.
        """
        merged = {**self.defaults(problem), **(parameters or {})}
        for name, value in merged.items():
            if value < 1:
                raise Unfit(f"{name} must be at least 1, not {value}")
        config = self.configure(problem, merged)
        sizes = {launch.shared_bytes for launch in config.launches} - {0}
        return replace(config, defines=config.defines | {"SHARED_BYTES": max(sizes)}) if sizes else config

    def refusal_reason(self, problem: Problem, arch: str, parameters: Parameters | None = None) -> str | None:
        """Return why the variant cannot compute the problem on this architecture with these parameters, or None."""
        number = architecture_number(arch)
        if number < self.min_arch:
            return f"needs sm_{self.min_arch} or later, this is {arch}"
        if self.only_arch not in (None, number):
            return f"needs sm_{self.only_arch} itself, this is {arch}"
        if problem.dtype not in self.dtypes:
            return f"computes in {' or '.join(self.dtypes)}, not {problem.dtype}"
        if getattr(problem, "pool", 1) > 1 and not self.pools:
            return "does not pool"
        if isinstance(problem, LinearProblem) and problem.softmax > (problem.argmax and problem.inputs < LONG_SUM):
            return f"computes a softmax before an argmax alone, of sums of less than {LONG_SUM:,} terms"
        if (reason := self.refuses(problem)) is not None:
            return reason
        if getattr(problem, "sparse", False) != self.sparse:
            where = " of the second convolution" if self.operation == "conv_pair" else ""
            return f"serves {'2:4 sparse' if self.sparse else 'dense'} filters{where} alone"
        try:
            config = self.launch_config(problem, parameters)
        except Unfit as unfit:
            return str(unfit)
        limit = SHARED_LIMIT.get(number, 99) << 10
        most = max((launch.shared_bytes for launch in config.launches), default=0)
        if most > limit:
            return f"needs {most:,} bytes of shared memory, a block has at most {limit:,} on {arch}"
        fits = all(0 < launch.threads <= 1024 for launch in config.launches)
        return None if fits else "needs more than 1,024 threads a block"


# Rows of tensor-core kernels, which ``auto`` may choose; unless a row says otherwise, no earlier system had them.
ONLY_HOPPER = "sm_90 alone: its instructions are in no other card"
TENSOR_CORES = 80  # the first architecture whose tensor cores the kernels use
_new_row = partial(Variant, system="none of them", automatic=True)
mma_row = partial(_new_row, min_arch=TENSOR_CORES, instructions="mma")
wgmma_row = partial(_new_row, min_arch=90, only_arch=90, instructions="wgmma")


def weight_reordering_packing(problem: Problem, elements: int, reorder: Callable[[np.ndarray], np.ndarray]) -> Packing:
    """Return a packing that reorders the weights and keeps the bias. elements: number of weights with padding.

    reorder: maps the weights, (C, K, K, M) or (inputs, outputs), to an array of any shape.
    """

    def pack_weights(arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        w, *others = arrays
        assert w is not None
        return [np.ascontiguousarray(reorder(w), dtype=w.dtype), *others]

    _, w, *others = problem.arguments()
    return Packing((replace(w, fixed=elements), *(other for other in others if not other.per_image)), pack_weights)


def ceil_div(size: int, tile: int) -> int:
    """Return how many tiles cover ``size`` elements."""
    return -(-size // tile)


# --- common parts of rows: compile-time constants, and the simplest launch --------------------------------------------


def type_defines(problem: ConvProblem | LinearProblem) -> dict[str, str | int]:
    """Return the constants INPUT, WEIGHT, REAL, OUTPUT, and HAS_BIAS and ACTIVATION of the epilogue."""
    return {
        "INPUT": problem.input_dtype,
        "WEIGHT": storage_dtype(problem.dtype),
        "REAL": epilogue_dtype(problem.dtype),
        "OUTPUT": problem.output_dtype,
        "HAS_BIAS": int(problem.bias),
        "ACTIVATION": activation_name(problem.activation),
    }


def result_defines(problem: LinearProblem) -> dict[str, str | int]:
    """Return the constants ARGMAX and SOFTMAX: whether a kernel computes them from the sums of a row."""
    return {"ARGMAX": int(problem.argmax), "SOFTMAX": int(problem.softmax)}


def activation_name(function: str) -> str:
    """Return the name of a function's struct in ``include/activations.cuh``; NONE for ""."""
    kind, _, slope = function.partition(":")
    if kind == "leakyrelu":  # a struct for each slope, by the bits of its float64
        return f"LEAKYRELU<{np.float64(slope or DEFAULT_SLOPE).view(np.int64):#x}>"
    return function.upper() or "NONE"


def conv_size_defines(problem: ConvProblem) -> dict[str, str | int]:
    """Return C, H, W, M, K, S and PADDING as compile-time constants."""
    return {**dict(zip("CHWMKS", problem.sizes, strict=True)), "PADDING": problem.padding}


def pooling_defines(problem: ConvProblem) -> dict[str, str | int]:
    """Return the constants POOL, POOL_IS_MAX, PH and PW of convolutions that pool."""
    return {"POOL": problem.pool, "POOL_IS_MAX": int(problem.pool_is_max)} | pooled_size_defines(problem)


def pooled_size_defines(problem: ConvProblem | PoolProblem) -> dict[str, str | int]:
    """Return the constants PH and PW: height and width of the pooled output."""
    return dict(zip(("PH", "PW"), problem.pooled_size, strict=True))


def elementwise_grid(outputs: int) -> Callable[[int], Grid]:
    """Return a function from a number of images to a grid with a thread per element. outputs: elements per image."""
    return lambda images: (ceil_div(images * outputs, BLOCK), 1, 1)


def configure_elementwise(defines: dict[str, str | int], outputs: int, scalars: tuple[int, ...] = ()) -> LaunchConfig:
    """Return the configuration of one launch with one thread per output element. outputs: elements per image."""
    return LaunchConfig(defines, (KernelLaunch(BLOCK, elementwise_grid(outputs), scalars=scalars),))
