"""Test every kernel on random problems, parameters and batches against the float64 reference."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.base.precision import storage_dtype
from app.kernels.plain_problems import ActivationProblem, ArgmaxProblem, ResizeProblem, SoftmaxProblem
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearProblem, PairProblem, PoolProblem, Problem
from app.kernels.registry import VARIANTS
from app.kernels.variant import Variant, ceil_div
from app.lab.bench.tolerance import has_rounded_operands, has_split_operands
from app.layers import ACTIVATIONS
from app.layers.resize import RULES
from tests.kernels.test_gpu_kernels import check_against_reference
from tests.support.kernel_cases import Case, elements
from tests.support.kernel_device import compile_all
from tests.support.kernel_grid import any_product_pair, exactly, multiplied, product_pair

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
EXAMPLES = 25  # per row
FEW = 4  # examples in tests that launch nothing


@st.composite
def convolutions(draw: Any, row: Variant) -> Problem:
    """Draw a small convolution, with pooling if the row supports it."""
    kernel, stride = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    pool = draw(st.sampled_from((1, 2, 3, 4))) if row.pools else 1
    padding = draw(st.integers(0, kernel - 1))
    least = max(kernel + (pool - 1) * stride - 2 * padding, 1)
    return ConvProblem(
        *(draw(st.integers(1, 40)), draw(st.integers(least, least + 25)), draw(st.integers(least, least + 25))),
        *(draw(st.integers(1, 80)), kernel, stride, draw(st.booleans()), draw(activation_names(""))),
        pool=pool,
        pool_is_max=pool > 1 and draw(st.booleans()),
        pool_ceil=pool > 1 and draw(st.booleans()),
        input_dtype=draw(st.sampled_from(("uint8", "float16", "float32"))),
        output_dtype=draw(st.sampled_from(("float16", "float32"))),
        padding=padding,
    )


def activation_names(*others: str) -> Any:
    """Return a strategy for names of activations, or one of ``others``."""
    return st.sampled_from((*others, *ACTIVATIONS))


@st.composite
def products(draw: Any, row: Variant) -> Problem:
    """Draw a small matrix product; for wgmma rows without argmax, and with inputs in multiples of eight."""
    inputs, of_warpgroups = draw(st.integers(1, 300)), row.instructions == "wgmma"
    return LinearProblem(
        *(inputs * 8 if of_warpgroups else inputs, draw(st.integers(1, 300 if of_warpgroups else 90))),
        *(draw(st.booleans()), draw(activation_names(""))),
        argmax=not of_warpgroups and draw(st.booleans()),
        input_dtype=draw(st.sampled_from(("uint8", "float16", "float32"))),
        output_dtype=draw(st.sampled_from(("float16", "float32"))),
    )


@st.composite
def product_pairs(draw: Any, row: Variant) -> Problem:
    """Draw a pair of matrix products whose sizes the row supports."""
    if row.name == "wgmma-any":
        return any_product_pair(
            8 * draw(st.integers(1, 150)),
            draw(st.integers(1, 192)),
            draw(st.integers(1, 64)),
            draw(activation_names("")),
            softmax=draw(st.booleans()),
            bias=draw(st.booleans()),
            reads=draw(st.sampled_from(("uint8", "float32"))),
        )
    if row.instructions == "wgmma":
        inputs, hidden, classes = 128 * draw(st.integers(1, 9)), 128, draw(st.integers(1, 16))
    else:
        inputs, hidden, classes = 64 * draw(st.integers(1, 9)), 32 * draw(st.integers(1, 8)), draw(st.integers(1, 32))
    return product_pair(inputs, hidden, classes, draw(st.booleans()), draw(st.booleans()))


@st.composite
def convolution_pairs(draw: Any, _: Variant) -> Problem:
    """Draw two convolutions of bytes, with or without enlarging; each has at least one pooling window."""

    def draw_convolution(kernel: int, channels: int, height: int, width: int) -> Any:
        pool, stride, padding = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(0, kernel - 1))
        problem = ConvProblem(
            *(channels, height, width, draw(st.integers(1, 40)), kernel, stride, draw(st.booleans())),
            draw(activation_names("")),
            padding=padding,
        )
        pooling = {"pool": pool, "pool_is_max": pool > 1 and draw(st.booleans())}
        hypothesis.assume(min(height, width) + 2 * padding >= kernel and min(problem.conv_output_size) >= pool)
        return replace(problem, **pooling, pool_ceil=pool > 1 and draw(st.booleans()))

    height, width = (draw(st.integers(8, 60)) for _ in "HW")
    first = draw_convolution(draw(st.integers(1, 8)), draw(st.sampled_from((1, 3))), height, width)
    second = draw_convolution(draw(st.integers(1, 7)), first.maps, *first.pooled_size)
    resize = None
    if height == width or draw(st.booleans()):
        hypothesis.assume(height == width)
        rule = draw(st.sampled_from(tuple(RULES)))
        resize = ResizeProblem(first.channels, draw(st.integers(1, 40)), draw(st.integers(1, 40)), height, rule)
    return ConvPairProblem(replace(first, input_dtype="uint8"), second, resize=resize)


@st.composite
def poolings(draw: Any, _: Variant) -> Problem:
    """Draw a pooling whose windows overlap, touch or leave gaps, also over the border."""
    window = draw(st.integers(1, 7))
    height, width = (draw(st.integers(window, window + 40)) for _ in "HW")
    stride, is_max, ceil = draw(st.integers(1, 8)), draw(st.booleans()), draw(st.booleans())
    return PoolProblem(draw(st.integers(1, 40)), height, width, window, stride, is_max, ceil=ceil)


@st.composite
def resizings(draw: Any, _: Variant) -> Problem:
    """Draw a resizing to a larger, smaller or equal size, by one of the rules."""
    height, width, size = (draw(st.integers(1, 60)) for _ in range(3))
    return ResizeProblem(draw(st.integers(1, 5)), height, width, size, draw(st.sampled_from(tuple(RULES))))


PROBLEMS: dict[str, Callable[[Variant], Any]] = {
    "conv": convolutions,
    "gemm": products,
    "conv_pair": convolution_pairs,
    "gemm_pair": product_pairs,
    "pool": poolings,
    "resize": resizings,
    "activation": lambda _: st.builds(ActivationProblem, st.integers(1, 3000), activation_names()),
    "softmax": lambda _: st.builds(SoftmaxProblem, st.integers(1, 200)),
    "argmax": lambda _: st.builds(ArgmaxProblem, st.integers(1, 256)),
}
# The other kernels of two convolutions support lenet5's sizes alone: there is nothing to draw.
EXPLORED = [row for row in VARIANTS if row.operation != "conv_pair" or "-any" in row.name]


def with_sparse_filters(problem: Any) -> Any:
    """Return the problem with 2:4 sparse filters, which read a multiple of four maps; float16x2 gets exact weights."""
    split = problem.dtype == "float16x2"
    if isinstance(problem, ConvPairProblem):
        maps = 4 * ceil_div(problem.first.maps, 4)
        first, second = replace(problem.first, maps=maps), replace(problem.second, channels=maps)
        return replace(exactly(problem) if split else problem, first=first, second=second, sparse=True)
    sizes = {"channels": 4 * ceil_div(problem.channels, 4), "input_dtype": storage_dtype(problem.dtype)}
    return replace(problem, **sizes, sparse=True, bounded=split, exact=split)


@st.composite
def cases(draw: Any, row: Variant) -> Case:
    """Draw a problem that the row supports, in one of its types, with some tunables other than the defaults."""
    drawn, dtype = draw(PROBLEMS[row.operation](row)), draw(st.sampled_from(row.dtypes))
    problem = multiplied(drawn, dtype)
    if getattr(problem, "argmax", False):
        problem = replace(problem, activation="")
    if isinstance(problem, LinearProblem) and row.instructions == "wgmma":
        problem = replace(problem, input_dtype=storage_dtype(dtype))
    if dtype == "float16x2" and not isinstance(problem, ConvProblem) and draw(st.booleans()):
        problem = exactly(problem) if isinstance(problem, ConvPairProblem) else replace(problem, exact=True)
    if row.sparse:
        problem = with_sparse_filters(problem)
    choices = {name: st.sampled_from(values) for name, values in row.tunables.items()}
    parameters = draw(st.fixed_dictionaries({}, optional=choices))
    case = Case(row, problem, tuple(parameters.items()))
    # The tolerance of rounded operands needs many results: errors of a few say nothing about others. A kernel of
    # two layers needs fewer, because it keeps more digits between the layers than the plain implementation does.
    enough = elements(problem) >= (16 if isinstance(problem, PairProblem) else 64)
    hypothesis.assume(
        case.refusal is None and (enough or not (has_rounded_operands(problem) or has_split_operands(problem)))
    )
    return case


def run_examples(row: Variant, body: Callable[[Case, int], None], examples: int = EXAMPLES) -> None:
    """Call ``body`` with drawn cases of the row and a number of images for each; every call draws the same ones."""

    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=cases(row), images=st.integers(1, 9))
    def example(case: Case, images: int) -> None:
        body(case, images)

    example()


@pytest.fixture(scope="module")
def compile_kernels(request: pytest.FixtureRequest) -> None:
    """Compile the kernels of all rows under test on all CPU cores."""
    found: list[Case] = []
    for item in request.session.items:
        if getattr(item, "originalname", "") == "test_kernels_on_any_problem":
            run_examples(item.callspec.params["row"], lambda case, _: found.append(case))  # type: ignore[attr-defined]
    compile_all(found)


@pytest.mark.gpu
@pytest.mark.parametrize("row", EXPLORED, ids=lambda row: row.source.removesuffix(".cu"))
def test_kernels_on_any_problem(row: Variant, compile_kernels: None) -> None:
    run_examples(row, check_against_reference)


def test_examples_are_many_and_always_the_same() -> None:
    """Drawing twice gives the same cases, so kernels can be compiled beforehand; and rows refuse few of them."""
    first: list[str] = []
    again: list[str] = []
    run_examples(EXPLORED[0], lambda case, images: first.append(f"{case} {images}"), FEW)
    run_examples(EXPLORED[0], lambda case, images: again.append(f"{case} {images}"), FEW)
    assert first == again
    for row in EXPLORED:
        seen: set[str] = set()
        run_examples(row, lambda case, _, seen=seen: seen.add(str(case)), FEW)  # type: ignore[misc]
        assert len(seen) > FEW // 2, row.source
