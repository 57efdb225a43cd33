"""Evaluate the formulas in lessons, which count a kernel's work from its parameters and the layer's shape.

A formula is an arithmetic expression in this package's data files, such as ``2 * C * K * K``. It may use these names:
the problem's sizes C, H, W, M, K, S, PADDING, OH, OW, and N of a matrix product; DEPTH, the products of one sum; BATCH,
the number of images; OUTPUTS of one image; the row's compile-time constants (TILE, BM, …); THREADS and SHARED of a
block; BLOCKS, its grid; BYTES_IN, BYTES_W and BYTES_OUT of an input, a weight and an output; SMS of the card; and
``FUNCTIONS``.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from operator import mul

from app.base.precision import storage_dtype
from app.kernels.conv.rows.toom_cook import toom_cook_matrices
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import ConvProblem, LinearProblem
from app.kernels.variant import Parameters, Variant

Number = int | float
Names = Mapping[str, Number]
LINE = 128  # bytes per cycle that the L1 cache looks up or shared memory delivers
WARP, BANKS = 32, 32
_BRACES = re.compile(r"\{([^{}]+?)(?::([^{}:]+))?\}")


def cache_lines_touched(span: float) -> float:
    """Return how many cache lines ``span`` consecutive bytes touch, averaged over the start address."""
    return 1 + max(span - 4, 0) / LINE


def warp_cache_lines(columns: float, pitch: float, size: float) -> float:
    """Return how many cache lines a warp's load touches if each thread reads a value for one of 32 consecutive outputs.

    columns: width of the output in pixels. pitch: width of the input in values. size: bytes of a value.
    """
    rows = min(WARP / columns, WARP)  # of the output, that a warp covers
    if pitch * size >= LINE:
        return max(rows, 1) * cache_lines_touched(min(WARP, columns) * size)
    return cache_lines_touched((max(rows - 1, 0) * pitch + min(WARP, columns)) * size)


def bank_conflict_cycles(columns: int, pitch: int, stride: int) -> int:
    """Return the cycles of a warp's load from shared memory: the most different words that it reads from one bank.

    Thread t reads the word in row (t ÷ columns) × stride and column (t mod columns) × stride; a row has ``pitch``
    words.
    """
    words = {thread // columns * stride * pitch + thread % columns * stride for thread in range(WARP)}
    return max(Counter(word % BANKS for word in words).values())


def shared_load_cycles(threads: int, width: int, *digits: int) -> float:
    """Return the cycles of a load of ``width`` words from shared memory, averaged over the warps of a block.

    digits: size and stride in words of each digit of a thread's number, the fastest digit first. The thread reads at
    the sum of digit × stride: with ``8, 4, 4, 0``, at word 4 * (thread % 8). Threads beyond the digits read nothing.
    Shared memory serves loads of 8 bytes for half a warp at a time, and loads of 16 bytes for a quarter. Two such
    groups share a cycle if each thread reads the same words as thread number ^ 1, or number ^ 2.
    """
    sizes, strides = digits[::2], digits[1::2]
    spent = []
    for warp in range(0, threads, WARP):
        starts: list[int | None] = []
        for thread in range(warp, warp + WARP):
            values, rest = [], thread
            for size in sizes:
                rest, digit = divmod(rest, size)
                values.append(digit)
            starts.append(sum(map(mul, values, strides)) if rest == 0 and thread < threads else None)
        spent.append(sum(_load_cycles(starts[at : at + 64 // width], width) for at in range(0, WARP, 64 // width)))
    return sum(spent) / len(spent)


def _load_cycles(starts: Sequence[int | None], width: int) -> int:
    """Return the cycles that shared memory needs for one load by a group of threads.

    starts: first word of each thread, None if it reads nothing. width: words per thread. The two halves of the group
    share cycles if neighbouring threads read the same words.
    """
    wanted = {thread: start for thread, start in enumerate(starts) if start is not None}
    alike = any(all(wanted.get(thread ^ by, start) == start for thread, start in wanted.items()) for by in (1, 2))
    halves = [range(len(starts))] if alike or width == 1 else [range(at, at + 32 // width) for at in (0, 32 // width)]
    spent = 0
    for half in halves:
        words = {wanted[thread] + word for thread in half if thread in wanted for word in range(width)}
        spent += max(Counter(word % BANKS for word in words).values(), default=0)
    return spent


def banks_touched(rows: int, pitch: int) -> int:
    """Return in how many banks of shared memory the first words of ``rows`` rows of ``pitch`` words lie."""
    return len({row * pitch % BANKS for row in range(rows)})


def input_transform_products(taps: int) -> int:
    """Return the number of multiply-adds that transform taps + 1 consecutive pixels for a Toom-Cook convolution."""
    return sum(factor != 0 for row in toom_cook_matrices(taps)[0] for factor in row) - taps - 1  # each begins with 1


def widest_vector_load(count: int) -> int:
    """Return how many values the widest vector load takes by which ``count`` can be divided: 4, 2 or 1."""
    return 4 if count % 4 == 0 else 2 if count % 2 == 0 else 1


FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "banks": banks_touched,
    "ceil": ceil,
    "conflicts": bank_conflict_cycles,
    "cycles": shared_load_cycles,
    "input_products": input_transform_products,
    "max": max,
    "min": min,
    "pixel_lines": warp_cache_lines,
    "vector": widest_vector_load,
}


def formula_variables(
    row: Variant, problem: ConvProblem | LinearProblem, parameters: Parameters, images: int, multiprocessors: int
) -> dict[str, Number]:
    """Return name → value of the variables that formulas may use. parameters: tunables that are not the default."""
    config = row.launch_config(problem, parameters)
    if isinstance(problem, ConvProblem):
        sizes: dict[str, Number] = dict(zip("CHWMKS", problem.sizes, strict=True))
        sizes |= {"PADDING": problem.padding, "DEPTH": problem.reduction_length}
        sizes |= dict(zip(("OH", "OW"), problem.conv_output_size, strict=True))
        outputs = problem.maps * prod(problem.conv_output_size)
    else:
        sizes, outputs = {"DEPTH": problem.inputs, "N": problem.outputs}, problem.outputs
    own = [launch for launch in config.launches if launch.entry in ("", row.entry)]
    threads = own[0].threads if own else 0
    return {
        **row.defaults(problem),
        **parameters,
        **{name: value for name, value in config.defines.items() if isinstance(value, int)},
        **sizes,
        "BATCH": images,
        "OUTPUTS": outputs,
        "THREADS": threads,
        "BLOCKS": sum(prod(launch.grid(images)) for launch in own),
        "SHARED": max((launch.shared_bytes for launch in own), default=0),
        "BYTES_IN": ITEMSIZE[problem.input_dtype],
        "BYTES_W": ITEMSIZE[storage_dtype(problem.dtype)],
        "BYTES_OUT": ITEMSIZE[problem.output_dtype],
        "SMS": multiprocessors,
    }


def evaluate_formula(formula: str, names: Names) -> Number:
    """Return the value of a formula. Raises ValueError if it cannot be computed."""
    try:
        found = eval(formula, {"__builtins__": {}, **FUNCTIONS}, dict(names))
    except (ArithmeticError, NameError, SyntaxError, TypeError) as error:
        raise ValueError(f"{formula}: {error}") from None
    if not isinstance(found, int | float):
        raise ValueError(f"{formula}: is no number")
    return found


def fill_formulas(text: str, names: Names) -> str:
    """Return the text with the formulas' values in place of ``{formula}`` and ``{formula:format}``."""
    return _BRACES.sub(lambda found: format(evaluate_formula(found[1], names), found[2] or ",.4g"), text)


def format_count(number: Number) -> str:
    """Return a number as text: without decimals if whole or at least 1,000, otherwise with three significant digits."""
    if number == round(number):
        return f"{round(number):,}"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
