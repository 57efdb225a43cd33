"""Test kernels of any sizes with 2:4 sparse filters: every element, emulated and on a GPU; which weights use them."""

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cuda.device import why_no_gpu
from app.kernels.plain_problems import ArgmaxProblem, is_two_of_four
from app.kernels.problems import ConvPairProblem, ConvProblem, tuning_key
from app.layers import Argmax, Conv2d, Flatten, Linear, MaxPool, Relu
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import ExecutionPlan, notices, plan
from app.planning.tuning import TunedResult, Tuning
from tests.support.convolutions import SPARSE
from tests.support.kernel_cases import Case
from tests.support.kernel_device import compile_selected, device_parameters, host_arrays, kernel_of, launch
from tests.support.kernel_grid import SPARSE_PAIRS, row_of, served, sparsely, typed
from tests.support.kernel_oracle import check, expected, expected_of, layers_of, operands, run
from tests.support.networks_for_tests import multiplied, network, random_graph, rounded
from tests.support.on_processor import run_row, through
from tests.support.scaled_networks import errors, images, plain_errors
from tests.support.sparsity import sparsity_patterns, with_sparse_conv2

SINGLE, PAIR = row_of("conv", "warpgroup-sparse"), row_of("conv_pair", "wgmma-any-sparse")
IMAGES = 9  # more than a round of two blocks
ON = pytest.mark.parametrize("where", ["processor", pytest.param("card", marks=pytest.mark.gpu)])


@pytest.fixture(scope="module", autouse=True)
def compile_kernels(request: pytest.FixtureRequest) -> None:
    """Compile all kernels of the selected tests on all CPU cores, if there is a GPU."""
    if why_no_gpu() is None:
        compile_selected(request)


def run_case(case: Case, where: str, x: np.ndarray, arrays: list[np.ndarray | None]) -> np.ndarray:
    """Run the kernel, emulated or on the GPU, in poisoned memory; return y, flat. arrays: the problem's parameters."""
    if where == "card":
        return launch(kernel_of(case), x, arrays)[0]
    return run_row(case.row, case.problem, x, arrays, dict(case.parameters))[0]


def sparse_convolution(problem: Any) -> ConvProblem:
    """Return the convolution whose filters are sparse: the second of a pair, or the problem itself."""
    found: ConvProblem = problem.second if isinstance(problem, ConvPairProblem) else problem
    return found


def make_cases(problems: list[Any]) -> list[Case]:
    """Return a case for each problem that a row supports: in float16x2 if its weights are exact, else in float16."""
    cases = [
        Case(PAIR if isinstance(one, ConvPairProblem) else SINGLE, typed(one, "float16x2" if one.exact else "float16"))
        for one in problems
    ]
    return [case for case in cases if case.refusal is None]


def inexact_and_exact(problem: Any) -> list[Any]:
    """Return the problem as it is, for float16, and with exact weights, for float16x2."""
    bounded = {} if isinstance(problem, ConvPairProblem) else {"bounded": True}
    return [problem, replace(problem, exact=True, **bounded)]


@pytest.mark.grid
@pytest.mark.parametrize("case", make_cases([*SPARSE, *SPARSE_PAIRS]), ids=str)
@ON
def test_every_element(case: Case, where: str) -> None:
    """Check random patterns, in a batch whose last round is not full and in one of a single image."""
    x, arrays = host_arrays(case.problem, IMAGES)
    wanted = expected(case.problem, IMAGES, case.row)
    y = run_case(case, where, x, arrays)
    check(y, case.problem, wanted)
    part = run_case(case, where, x[:1], arrays)
    np.testing.assert_array_equal(part, y[: len(part)])


def test_cases_cover_all_branches_of_the_kernels() -> None:
    """Cases cover resident and streamed filters, stages of part of, one and several columns of taps, ragged columns."""
    seen: set[tuple[str, Any]] = set()
    for case in make_cases([*SPARSE, *SPARSE_PAIRS]):
        one, defines = sparse_convolution(case.problem), case.row.launch_config(case.problem).defines
        planes, stage = one.kernel * -(-one.channels // 8), int(defines["STAGE_STEPS"])
        run = -(-planes // 4)
        seen |= {("ragged", planes % 4 > 0), ("stride", one.stride), ("parts", defines["PARTS"])}
        seen |= {("ring", defines["STREAMED"]), ("columns", min(stage / run, 2) if stage >= run else 0)}
        seen |= {("channels", one.channels)} | {("long", not defines["STREAMED"] and run * one.kernel > 64)}
    wanted = {"ragged": (False, True), "stride": (1, 2, 3), "parts": (1, 2), "ring": (0, 1), "columns": (0, 1, 2)}
    wanted |= {"channels": (12, 24, 32, 64, 96, 128), "long": (True,)}
    assert seen >= {(name, value) for name, values in wanted.items() for value in values}


# --- Patterns: whole numbers, whose results are exact in any order of additions

PATTERNED = [
    ConvProblem(12, 9, 10, 33, 5, sparse=True, padding=1),
    ConvProblem(32, 8, 11, 70, 3, 2, pool=2, pool_is_max=True, sparse=True),
]
PATTERNED_PAIRS = [
    sparsely(
        ConvPairProblem(
            ConvProblem(1, 17, 14, 12, 3, activation="relu", input_dtype="uint8"),
            ConvProblem(12, 15, 12, 65, 3, activation="relu", padding=1),
        )
    )
]
OF_PATTERNS = make_cases([form for one in (*PATTERNED, *PATTERNED_PAIRS) for form in inexact_and_exact(one)])


def whole_number_operands(problem: Any, kept: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return images and parameters of small whole numbers. kept: mask (K, K, C, M) of the sparse filters' weights."""
    rng, last = np.random.default_rng(5), sparse_convolution(problem)
    weights = rng.integers(1, 9, kept.shape) * rng.choice([-1.0, 1.0], kept.shape) * kept
    if not isinstance(problem, ConvPairProblem):
        return rng.integers(0, 3, (5, last.channels, last.height, last.width)).astype(np.float64), {"layer": weights}
    first = problem.first
    shape = (first.kernel, first.kernel, first.channels, first.maps)
    x = np.where(rng.random((5, first.channels, first.height, first.width)) < 0.2, 2, 0).astype(np.uint8)
    return x, {"layer1": rng.integers(0, 2, shape).astype(np.float64) / problem.pixel_scale, "layer2": weights}


@pytest.mark.grid
@pytest.mark.parametrize("case", OF_PATTERNS, ids=str)
@ON
def test_results_are_exact_for_all_patterns(case: Case, where: str) -> None:
    """Results are exact for each pattern alone, so no pattern can hide an error in another."""
    problem, last = sparse_convolution(case.problem), case.problem
    for kept in sparsity_patterns((problem.kernel, problem.kernel, problem.channels, problem.maps)).values():
        assert is_two_of_four(kept)
        x, parameters = whole_number_operands(last, kept)
        scaled = x.astype(np.float64) * getattr(last, "pixel_scale", 1)
        wanted = run(layers_of(last), scaled, parameters)
        assert np.abs(wanted).max() < 2048 and (wanted.any() or not kept.any())
        arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(last, parameters)]
        x = x.astype(last.arguments()[0].dtype)
        y = run_case(case, where, x, arrays)
        np.testing.assert_array_equal(y, wanted.astype(y.dtype))


@pytest.mark.parametrize("case", OF_PATTERNS, ids=str)
@pytest.mark.parametrize("factor", [1e-8, 1e-3, 1e8])
@ON
def test_weights_of_any_size(case: Case, factor: float, where: str) -> None:
    """Scales keep weights that float16 would round to zero or infinity; less extreme ones if it stores the results."""
    problem: Any = case.problem
    if sparse_convolution(problem).output_dtype == "float16":
        factor = min(max(factor, 1e-2), 1e2)
    name = "layer2" if isinstance(problem, ConvPairProblem) else "layer"
    x, parameters = operands(problem, 3)
    scale = 2.0 ** round(np.log2(factor))
    parameters = {**parameters, name: parameters[name] * scale}
    arrays = [None if a is None else a.astype(np.float32) for a in device_parameters(problem, parameters)]
    wanted = expected_of(problem, x.astype(np.float64), parameters)
    check(run_case(case, where, x.astype(problem.arguments()[0].dtype), arrays), problem, wanted)


# --- Which weights run on them


def make_two_convolutions() -> Graph:
    """Return a network of two convolutions, the second 2:4 sparse, with weights that float16 represents exactly."""
    layers = Conv2d("conv1", 32, 3), Relu("relu1"), MaxPool("pool1", 2), Conv2d("conv2", 64, 3), Relu("relu2")
    rest = MaxPool("pool2", 2), Flatten("flatten"), Linear("fc1", 10), Argmax("argmax")
    return with_sparse_conv2(rounded(random_graph(network("two", (1, 28, 28), *layers, *rest))))


def make_three_convolutions() -> Graph:
    """Return a network of three convolutions, the last two 2:4 sparse; no kernel fuses the third with another."""
    layers = (Conv2d("conv1", 32, 3), Relu("relu1"), Conv2d("conv2", 32, 3), Relu("relu2"), MaxPool("pool2", 2))
    rest = (Conv2d("conv3", 64, 3, padding=1), Relu("relu3"), Flatten("flatten"), Linear("fc1", 10), Argmax("argmax"))
    graph = rounded(random_graph(network("three", (1, 28, 28), *layers, *rest), bias=False))
    return with_sparse_conv2(graph, "conv3")


POWERS = (0, 0, 0, 0), (-13, -13, 0, 13), (27, -27, 27, -27), (0, -27, 27, 0)


def convolution_kernels(planned: ExecutionPlan) -> list[str]:
    """Return the names of the kernels that compute convolutions."""
    return [node.variant.name for node in planned.nodes if node.head.operation == "conv"]


def noted_layers(planned: ExecutionPlan, choices: Choices) -> list[str]:
    """Return the names of the layers in the plan's notices about sparse weights."""
    return [note.split(" ")[0] for note in notices(planned, choices) if "2:4 sparse: half" in note]


@pytest.mark.parametrize("precision", ["fp16", "fp32x"])
def test_one_weight_more_than_2_4_selects_dense_kernels(precision: str) -> None:
    graph, choices = make_three_convolutions(), Choices(precision)
    planned = plan(graph, "sm_90a", choices)
    assert convolution_kernels(planned) == ["wgmma-any-sparse", "warpgroup-sparse"]
    assert noted_layers(planned, choices) == ["conv2", "conv3"]
    for layer, wanted in (("conv2", ["wgmma-any", "warpgroup-sparse"]), ("conv3", ["wgmma-any-sparse", "warpgroup"])):
        filters = graph.parameters[layer].copy()
        filters[tuple(np.argwhere(filters == 0)[321])] = 0.5
        planned = plan(replace(graph, parameters={**graph.parameters, layer: filters}), "sm_90a", choices)
        assert convolution_kernels(planned) == wanted and len(noted_layers(planned, choices)) == 1
    planned = plan(graph, "sm_90a", replace(choices, sparse=False))
    assert convolution_kernels(planned) == ["wgmma-any", "warpgroup"] and not noted_layers(planned, choices)
    assert not {"wgmma-any-sparse", "warpgroup-sparse"} & {*convolution_kernels(plan(graph, "sm_80", choices))}


@pytest.mark.parametrize(
    ("precision", "powers"),
    [("fp16", {}), *(("fp32x", dict(zip(("conv1", "conv2", "conv3", "fc1"), own, strict=True))) for own in POWERS)],
)
def test_whole_networks_of_any_scale_are_exact(precision: str, powers: dict[str, int]) -> None:
    """Weights of layers are scaled by 2**-27 to 2**27; each kernel scales its results for the next."""
    graph = multiplied(make_three_convolutions(), **{name: 2.0**power for name, power in powers.items()})
    planned = plan(graph, "sm_90a", Choices(precision))
    assert convolution_kernels(planned) == ["wgmma-any-sparse", "warpgroup-sparse"]
    nodes = [node for node in planned.nodes if not isinstance(node.problem, ArgmaxProblem)]
    found = reduce(lambda x, node: through(node, x), nodes, images())
    allowed = 2 * plain_errors(graph, images(), precision)
    assert (errors(found.astype(np.float64), graph.reference(images())) <= allowed).all()


def test_weights_inexact_in_float16_use_dense_kernels_in_fp32x() -> None:
    graph = make_three_convolutions()
    changed = {name: graph.parameters[name] * np.float32(1.001) for name in ("conv2", "conv3")}
    inexact = replace(graph, parameters={**graph.parameters, **changed})
    assert convolution_kernels(plan(inexact, "sm_90a", Choices("fp32x"))) == ["wgmma-any", "warpgroup"]
    assert convolution_kernels(plan(inexact, "sm_90a", Choices("fp16"))) == ["wgmma-any-sparse", "warpgroup-sparse"]


def test_a_requested_kernel_runs_if_it_supports_the_weights() -> None:
    """A dense kernel requested by name runs on sparse weights; a sparse one refuses dense weights."""
    graph = make_three_convolutions()
    for row in (row_of("conv", "warpgroup"), SINGLE):
        assert convolution_kernels(plan(graph, "sm_90a", Choices("fp16", kernels={"conv3": row})))[1] == row.name
    for row in (row_of("conv_pair", "wgmma-any"), PAIR):
        assert convolution_kernels(plan(graph, "sm_90a", Choices("fp16", kernels={"conv_pair": row})))[0] == row.name
    dense = replace(graph, parameters={**graph.parameters, "conv3": graph.parameters["conv3"] + np.float32(0.25)})
    for given, choices in ((dense, Choices("fp16")), (graph, Choices("fp16", sparse=False))):
        with pytest.raises(UserError, match=r"supports layer conv3 .*warpgroup-sparse serves 2:4 sparse filters alone"):
            plan(given, "sm_90a", replace(choices, kernels={"conv3": SINGLE}))


def test_a_sparse_kernel_that_is_not_faster_is_not_chosen() -> None:
    """Estimated times decide, here against a 1 x 1 filter of 16 channels, or measured times if both were measured."""
    assert PAIR.worthwhile(served(PAIR, "sm_90a")[2], "sm_90a")
    pixel = typed(ConvProblem(16, 12, 12, 64, 1, sparse=True), "float16")
    assert SINGLE.refusal_reason(pixel, "sm_90a") is None and not SINGLE.worthwhile(pixel, "sm_90a")
    graph = make_two_convolutions()
    problem = plan(graph, "sm_90a", Choices("fp16")).nodes[0].problem
    assert isinstance(problem, ConvPairProblem) and problem.sparse

    def chosen_name(sparse: float, dense: float) -> str:
        times = {(problem, "wgmma-any-sparse"): sparse, (replace(problem, sparse=False), "wgmma-any"): dense}
        entries = {tuning_key(one): {name: TunedResult({}, ms, 100)} for (one, name), ms in times.items()}
        return plan(graph, "sm_90a", Choices("fp16", tuning=Tuning(entries))).nodes[0].variant.name

    assert [chosen_name(1.0, 1.1), chosen_name(1.1, 1.0)] == ["wgmma-any-sparse", "wgmma-any"]


def test_tuning_keys_of_dense_problems_do_not_name_sparse() -> None:
    """Tables of measured times find dense problems by keys that do not name ``sparse``."""
    dense = ConvProblem(32, 12, 12, 64, 5)
    assert "sparse" not in tuning_key(dense) and tuning_key(replace(dense, sparse=True)).endswith(" sparse=True")
