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
from tests.kernels.test_gpu_kernels import held_against_the_reference
from tests.support.kernel_cases import Case, elements
from tests.support.kernel_device import compile_all
from tests.support.kernel_grid import any_product_pair, exactly, multiplied, product_pair

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
EXAMPLES = 25  # a row
FEW = 4  # where nothing is launched


@st.composite
def convolutions(draw: Any, row: Variant) -> Problem:
    """Small ones; also those that pool, where the row may."""
    kernel, stride = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    pool = draw(st.sampled_from((1, 2, 3, 4))) if row.pools else 1
    padding = draw(st.integers(0, kernel - 1))
    least = max(kernel + (pool - 1) * stride - 2 * padding, 1)
    return ConvProblem(
        *(draw(st.integers(1, 40)), draw(st.integers(least, least + 25)), draw(st.integers(least, least + 25))),
        *(draw(st.integers(1, 80)), kernel, stride, draw(st.booleans()), draw(functions(""))),
        pool=pool,
        pool_is_max=pool > 1 and draw(st.booleans()),
        pool_ceil=pool > 1 and draw(st.booleans()),
        input_dtype=draw(st.sampled_from(("uint8", "float16", "float32"))),
        output_dtype=draw(st.sampled_from(("float16", "float32"))),
        padding=padding,
    )


def functions(*others: str) -> Any:
    """Names of activations."""
    return st.sampled_from((*others, *ACTIVATIONS))


@st.composite
def products(draw: Any, row: Variant) -> Problem:
    """Small ones; with an argmax, where the row takes it; of whole steps for warpgroups."""
    inputs, of_warpgroups = draw(st.integers(1, 300)), row.instructions == "wgmma"
    return LinearProblem(
        *(inputs * 8 if of_warpgroups else inputs, draw(st.integers(1, 300 if of_warpgroups else 90))),
        *(draw(st.booleans()), draw(functions(""))),
        argmax=not of_warpgroups and draw(st.booleans()),
        input_dtype=draw(st.sampled_from(("uint8", "float16", "float32"))),
        output_dtype=draw(st.sampled_from(("float16", "float32"))),
    )


@st.composite
def product_pairs(draw: Any, row: Variant) -> Problem:
    """Those that fit whole tiles, or any that end with scores."""
    if row.name == "wgmma-any":
        return any_product_pair(
            8 * draw(st.integers(1, 150)),
            draw(st.integers(1, 192)),
            draw(st.integers(1, 64)),
            draw(functions("")),
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
    """Of bytes, and of what is made of them; sizes are such that each pools at least once."""

    def half(kernel: int, channels: int, height: int, width: int) -> Any:
        pool, stride, padding = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(0, kernel - 1))
        problem = ConvProblem(
            *(channels, height, width, draw(st.integers(1, 40)), kernel, stride, draw(st.booleans())),
            draw(functions("")),
            padding=padding,
        )
        pooling = {"pool": pool, "pool_is_max": pool > 1 and draw(st.booleans())}
        hypothesis.assume(min(height, width) + 2 * padding >= kernel and min(problem.conv_output_size) >= pool)
        return replace(problem, **pooling, pool_ceil=pool > 1 and draw(st.booleans()))

    height, width = (draw(st.integers(8, 60)) for _ in "HW")
    first = half(draw(st.integers(1, 8)), draw(st.sampled_from((1, 3))), height, width)
    second = half(draw(st.integers(1, 7)), first.maps, *first.pooled_size)
    resize = None
    if height == width or draw(st.booleans()):
        hypothesis.assume(height == width)
        rule = draw(st.sampled_from(tuple(RULES)))
        resize = ResizeProblem(first.channels, draw(st.integers(1, 40)), draw(st.integers(1, 40)), height, rule)
    return ConvPairProblem(replace(first, input_dtype="uint8"), second, resize=resize)


@st.composite
def poolings(draw: Any, _: Variant) -> Problem:
    """Windows that overlap, touch or leave gaps, also over the border."""
    window = draw(st.integers(1, 7))
    height, width = (draw(st.integers(window, window + 40)) for _ in "HW")
    stride, is_max, ceil = draw(st.integers(1, 8)), draw(st.booleans()), draw(st.booleans())
    return PoolProblem(draw(st.integers(1, 40)), height, width, window, stride, is_max, ceil=ceil)


@st.composite
def resizings(draw: Any, _: Variant) -> Problem:
    """Larger, smaller and of the same size, by both rules."""
    height, width, size = (draw(st.integers(1, 60)) for _ in range(3))
    return ResizeProblem(draw(st.integers(1, 5)), height, width, size, draw(st.sampled_from(tuple(RULES))))


PROBLEMS: dict[str, Callable[[Variant], Any]] = {
    "conv": convolutions,
    "gemm": products,
    "conv_pair": convolution_pairs,
    "gemm_pair": product_pairs,
    "pool": poolings,
    "resize": resizings,
    "activation": lambda _: st.builds(ActivationProblem, st.integers(1, 3000), functions()),
    "softmax": lambda _: st.builds(SoftmaxProblem, st.integers(1, 200)),
    "argmax": lambda _: st.builds(ArgmaxProblem, st.integers(1, 256)),
}
# The other kernels of two convolutions are lenet5's alone: there are no other problems to draw.
EXPLORED = [row for row in VARIANTS if row.operation != "conv_pair" or "-any" in row.name]


def with_sparse_filters(problem: Any) -> Any:
    """The problem for 2:4 sparse filters, which read a multiple of four maps; split, as it is served."""
    split = problem.dtype == "float16x2"
    if isinstance(problem, ConvPairProblem):
        maps = 4 * ceil_div(problem.first.maps, 4)
        first, second = replace(problem.first, maps=maps), replace(problem.second, channels=maps)
        return replace(exactly(problem) if split else problem, first=first, second=second, sparse=True)
    sizes = {"channels": 4 * ceil_div(problem.channels, 4), "input_dtype": storage_dtype(problem.dtype)}
    return replace(problem, **sizes, sparse=True, bounded=split, exact=split)


@st.composite
def cases(draw: Any, row: Variant) -> Case:
    """A problem that the row serves, in one of its types, with some of its parameters other than the defaults."""
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
    # The errors of a few rounded numbers tell nothing of those of other numbers: there is no tolerance for them. But
    # a pair's kernel keeps more digits of what is between the layers than the plain implementation does.
    enough = elements(problem) >= (16 if isinstance(problem, PairProblem) else 64)
    hypothesis.assume(
        case.refusal is None and (enough or not (has_rounded_operands(problem) or has_split_operands(problem)))
    )
    return case


def explore(row: Variant, body: Callable[[Case, int], None], examples: int = EXAMPLES) -> None:
    """Call ``body`` with so many cases of the row, the same ones each time, and a number of images for each."""

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
def compiled(request: pytest.FixtureRequest) -> None:
    """The kernels of all rows under test, by all processors at once."""
    found: list[Case] = []
    for item in request.session.items:
        if getattr(item, "originalname", "") == "test_kernels_on_any_problem":
            explore(item.callspec.params["row"], lambda case, _: found.append(case))  # type: ignore[attr-defined]
    compile_all(found)


@pytest.mark.gpu
@pytest.mark.parametrize("row", EXPLORED, ids=lambda row: row.source.removesuffix(".cu"))
def test_kernels_on_any_problem(row: Variant, compiled: None) -> None:
    explore(row, held_against_the_reference)


def test_examples_are_always_the_same_and_many() -> None:
    """Without a GPU: what is compiled beforehand is what is launched later, and rows refuse few of the cases."""
    first: list[str] = []
    again: list[str] = []
    explore(EXPLORED[0], lambda case, images: first.append(f"{case} {images}"), FEW)
    explore(EXPLORED[0], lambda case, images: again.append(f"{case} {images}"), FEW)
    assert first == again
    for row in EXPLORED:
        seen: set[str] = set()
        explore(row, lambda case, _, seen=seen: seen.add(str(case)), FEW)  # type: ignore[misc]
        assert len(seen) > FEW // 2, row.source
