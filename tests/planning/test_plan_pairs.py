"""Test plans with kernels that compute two layers: when they are chosen, and when kernels of one layer are."""

import re
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.problems import PairProblem, tuning_key
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Relu
from app.network.definitions import K7, LENET5, MINIDNN86, MLP, Network
from app.network.graph import Graph
from app.planning.matching import Choices
from app.planning.plan import LOGITS, ExecutionPlan, notices, plan
from app.planning.tuning import TunedResult, Tuning
from tests.support.networks_for_tests import multiplied, network, random_graph
from tests.support.requests import named_choices
from tests.support.shell import user_error

HOPPER = "sm_90a"
BOTH = ["conv1+relu1+pool1+conv2+relu2+pool2", "flatten+fc1+relu3+fc2+argmax"]
APART = ["conv1+relu1+pool1", "conv2+relu2+pool2", "flatten+fc1+relu3", "fc2+argmax"]
SPLIT_PRECISIONS = pytest.mark.parametrize("precision", ["fp32x", "fp16"])


def lenet5(bias: bool = False) -> Graph:
    """Return lenet5 with random weights, by default without biases, as the shipped weights are."""
    return random_graph(LENET5, bias=bias)


def node_names(planned: ExecutionPlan) -> list[str]:
    return [node.name for node in planned.nodes]


def pair_problems(planned: ExecutionPlan) -> list[PairProblem]:
    return [node.problem for node in planned.nodes if isinstance(node.problem, PairProblem)]


@SPLIT_PRECISIONS
def test_parameters_of_both_layers_reach_the_kernel(precision: str) -> None:
    """conv1 includes the pixel scale, fc1's rows have the device's order, and fc1 divides by conv2's factors."""
    graph = lenet5()
    ordinary = {node.head.name: node.parameters[0] for node in plan(graph, HOPPER, Choices("fp32")).nodes}
    convolutions, products = plan(graph, HOPPER, Choices(precision)).nodes
    scales = convolutions.scales
    assert scales is not None and (np.frexp(scales)[0] == 0.5).all() and products.scales is None
    factors = {"conv2": scales, "fc1": 1 / np.repeat(scales, 16)[:, None]}
    for node, heads in ((convolutions, ("conv1", "conv2")), (products, ("fc1", "fc2"))):
        assert [array is None for array in node.parameters] == [False, True, False, True]
        for array, head in zip(node.parameters[::2], heads, strict=True):
            wanted = ordinary[head]
            assert array is not None and array.dtype == np.float32 and wanted is not None
            np.testing.assert_array_equal(array, wanted * factors.get(head, np.float32(1)))


@pytest.mark.parametrize(
    ("arch", "network", "options", "arithmetic"),
    [
        (HOPPER, LENET5, {}, "float16x2"),
        ("sm_75", LENET5, {}, "float32"),
        (HOPPER, K7, {}, "float16x2"),
        (HOPPER, MINIDNN86, {}, "float16x2"),
        (HOPPER, MLP, {}, "float16x2"),
        ("sm_80", MLP, {}, "float16x2"),
        (HOPPER, LENET5, {"fuse": False}, "float16x2"),
        ("sm_86", LENET5, {"fuse": False}, "float32"),
        (HOPPER, LENET5, {"kernels": {"fc2": "naive"}}, "float16x2"),
        (HOPPER, LENET5, {"kernels": {"fc1": "naive"}}, "float32"),
    ],
)
def test_auto_splits_operands_unless_a_named_kernel_does_not(
    arch: str, network: Network, options: dict[str, Any], arithmetic: str
) -> None:
    graph = random_graph(network, bias=False)
    planned = plan(graph, arch, named_choices("auto", **options))
    assert planned.arithmetic == arithmetic
    precision = {"float16x2": "fp32x", "float32": "fp32"}[arithmetic]
    same = plan(graph, arch, named_choices(precision, **options))
    assert [node.problem for node in planned.nodes] == [node.problem for node in same.nodes]


@SPLIT_PRECISIONS
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kernels": {"conv": "direct"}}, BOTH[1:]),
        ({"kernels": {"conv2": "register-tiled"}}, BOTH[1:]),
        ({"kernels": {"conv1": "auto", "conv2": "auto"}}, BOTH),
        ({"kernels": {"fc2": "naive"}}, BOTH[:1]),
        ({"kernels": {"gemm": "register-tiled", "conv": "direct"}}, []),
        ({"kernels": {"pool": "shared"}}, BOTH),
        ({"fuse": False}, []),
    ],
)
def test_a_layer_with_a_named_kernel_is_not_paired(
    precision: str, options: dict[str, Any], expected: list[str]
) -> None:
    planned = plan(lenet5(), HOPPER, named_choices(precision, **options))
    if precision == "fp32x" and options.get("kernels", {}).get("conv") == "direct":
        expected = []  # pooled separately, features may exceed the range of split operands
    assert [node.name for node in planned.nodes if isinstance(node.problem, PairProblem)] == expected
    named = {name: kernel for name, kernel in options.get("kernels", {}).items() if kernel != "auto"}
    for node in planned.nodes:
        wanted = named.get(node.head.name, named.get(node.head.operation or ""))
        assert wanted in (None, node.variant.name)


def test_tf32_products_of_bytes_are_fused() -> None:
    """They are fused only on Hopper and for uint8 images, which float16 represents without loss."""
    graph = random_graph(MLP)
    (node,) = plan(graph, HOPPER, Choices("tf32")).nodes
    assert node.variant.name == "wgmma-any" and node.problem.dtype == "tfloat32" and not node.few
    for floats in (plan(graph, HOPPER, Choices("tf32"), input_dtype="float32"), plan(graph, "sm_80", Choices("tf32"))):
        assert node_names(floats) == ["flatten+fc1+sigmoid", "fc2+softmax+argmax"]
        assert all(one.few and one.problem.dtype == "tfloat32" for one in floats.nodes)
    assert notices(plan(graph, HOPPER, Choices("tf32")), Choices("tf32")) == []


def test_float_images_run_on_kernels_of_one_layer() -> None:
    """Kernels for pairs read only pixels that float16 represents exactly; the kernels of one layer split them."""
    planned = plan(lenet5(), HOPPER, Choices("auto"), input_dtype="float32")
    assert node_names(planned) == APART
    assert {(node.variant.name, node.problem.dtype) for node in planned.nodes} == {("tensor-core", "float16x2")}


@SPLIT_PRECISIONS
@pytest.mark.parametrize(("name", "lost"), [("conv2", BOTH[0]), ("fc1", BOTH[1])])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_or_infinite_weights_run_layer_by_layer(precision: str, name: str, lost: str, value: float) -> None:
    graph = multiplied(lenet5())  # a copy
    graph.parameters[name].flat[-1] = value
    if precision == "fp16" and np.isinf(value):
        with pytest.raises(UserError, match=f"fp16 cannot represent the weights of {name}"):
            plan(graph, HOPPER, Choices(precision))
        return
    planned = plan(graph, HOPPER, Choices(precision))
    kept = set(BOTH) - {lost}
    if precision == "fp32x" and lost == BOTH[0]:
        kept = set()  # the products' inputs have no known bounds then
    assert {node.name for node in planned.nodes if isinstance(node.problem, PairProblem)} == kept
    assert all(node.scales is None for node in planned.nodes)
    alone = {node.head.name: node.problem.dtype for node in planned.nodes if not isinstance(node.problem, PairProblem)}
    split = {"fp32x": "float16x2", "fp16": "float16"}[precision]
    assert alone == {**dict.fromkeys(alone, split), name: {"fp32x": "float32"}.get(precision, split)}


@SPLIT_PRECISIONS
def test_pair_kernels_are_named_and_tuned_like_others(precision: str) -> None:
    graph = lenet5()
    kernels = {"conv_pair": "mma", "gemm_pair": "mma"}
    planned = plan(graph, HOPPER, named_choices(precision, kernels=kernels))
    assert [node.variant.name for node in planned.nodes] == ["mma", "mma"]
    convolutions, products = pair_problems(planned)
    settings, slower = {"ROWS": 48, "STAGES": 3}, TunedResult({}, 2.0, 10_000)
    times = {"mma": TunedResult({}, 1.0, 10_000), "wgmma": slower, "wgmma-split": slower}
    tuning = Tuning(
        {
            tuning_key(convolutions): times,
            tuning_key(products): {"mma": TunedResult(settings, 1.0, 10_000), "wgmma": slower},
        }
    )
    tuned = plan(graph, HOPPER, Choices(precision, tuning=tuning)).nodes
    assert [(node.variant.name, node.settings) for node in tuned] == [("mma", {}), ("mma", settings)]
    alone = {problem: {"mma": entries["mma"]} for problem, entries in tuning.entries.items()}
    untimed = plan(graph, HOPPER, Choices(precision, tuning=Tuning(alone))).nodes
    assert "mma" not in [node.variant.name for node in untimed], "nothing wins over a kernel that nobody timed"


RANGE = "with these weights it would lose numbers; take auto, or a kernel of single layers"


@pytest.mark.parametrize(
    ("precision", "kernels", "factor", "fault"),
    [
        ("fp32x", {"conv_pair": "wgmma-split"}, 1e30, f"kernel wgmma-split does not support conv1+conv2: {RANGE}"),
        ("auto", {"conv_pair": "wgmma-split"}, 1e30, f"kernel wgmma-split does not support conv1+conv2: {RANGE}"),
        ("fp16", {"conv_pair": "wgmma"}, 1e30, f"kernel wgmma does not support conv1+conv2: {RANGE}"),
        ("fp16", {"gemm_pair": "mma"}, 1e30, f"kernel mma does not support fc1+fc2: {RANGE}"),
        (
            "fp32x",
            {"conv": "direct", "gemm_pair": "wgmma"},
            1,
            "wgmma does not support fc1+fc2: in fp32x it reads only",
        ),
        ("auto", {"conv": "direct", "gemm_pair": "wgmma"}, 1, "wgmma does not support fc1+fc2: in fp32x it reads only"),
        ("fp32x", {"gemm_pair": "mma"}, 1e30, f"kernel mma does not support fc1+fc2: {RANGE}"),
        ("fp32x", {"conv_pair": "wgmma"}, 1, "kernel wgmma does not support conv1+conv2: it computes in float16"),
        ("fp32", {"conv_pair": "mma"}, 30, "mma does not support conv1+conv2: it computes in float16"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_named_pair_kernel_that_does_not_fit_gives_the_reason(
    precision: str, kernels: dict[str, str], factor: float, fault: str
) -> None:
    """Reasons are the range of float16, another type, or inputs without known bounds."""
    choices = named_choices(precision, kernels=kernels)
    assert fault in user_error(lambda: plan(multiplied(lenet5(), factor), HOPPER, choices))


@pytest.mark.parametrize("factor", [1, 30])
def test_products_after_ordinary_convolutions_are_paired_in_fp16(factor: float) -> None:
    """The error message in fp32x advises fp16 for this case."""
    choices = named_choices("fp16", kernels={"conv": "direct", "gemm_pair": "wgmma"})
    planned = plan(multiplied(lenet5(), factor), HOPPER, choices)
    assert (planned.nodes[-1].name, planned.nodes[-1].variant.name) == (BOTH[1], "wgmma")


def test_auto_follows_a_named_pair_kernel() -> None:
    """No kernel for pairs computes in float32, so ``auto`` is fp32x; the kernel named for fc1 computes in float32."""
    choices = named_choices("auto", kernels={"conv_pair": "wgmma-split", "fc1": "naive"})
    planned = plan(lenet5(), HOPPER, choices)
    assert [node.variant.name for node in planned.nodes][:2] == ["wgmma-split", "naive"]
    assert [node.problem.dtype for node in planned.nodes] == ["float16x2", "float32", "float16x2"]


@pytest.mark.parametrize(
    ("network", "options", "fault"),
    [
        (LENET5, {"fuse": False, "kernels": {"conv_pair": "mma"}}, "mma fits no layers of network lenet5: .*two conv"),
        (LENET5, {"kernels": {"gemm_pair": "mma", "fc2": "naive"}}, "mma fits no layers of network lenet5: .*two gemm"),
        (MLP, {"kernels": {"gemm_pair": "wgmma"}}, r"wgmma does not support fc1\+fc2: it takes multiples of 64 inputs"),
        (MLP, {"kernels": {"conv_pair": "wgmma"}}, "wgmma fits no layers of network mlp: it takes two conv layers"),
    ],
)
def test_a_pair_kernel_without_its_layers_is_refused(network: Network, options: dict[str, Any], fault: str) -> None:
    choices = named_choices(**{"precision": "fp32x", **options})
    assert re.search(fault, user_error(lambda: plan(random_graph(network, bias=False), HOPPER, choices)))


@pytest.mark.parametrize(
    ("arch", "network", "input_dtype", "options", "unpaired"),
    [
        (HOPPER, LENET5, "uint8", {}, ""),
        (HOPPER, LENET5, "float32", {}, "conv1, conv2, fc1, fc2"),
        ("sm_75", LENET5, "uint8", {}, "conv1, conv2, fc1, fc2"),
        ("sm_80", MLP, "uint8", {}, "fc1, fc2"),
        (HOPPER, LENET5, "float32", {"precision": "fp32"}, None),
        (HOPPER, LENET5, "uint8", {"fuse": False}, None),
        (HOPPER, LENET5, "uint8", {"kernels": {"conv": "direct"}}, None),
    ],
)
def test_a_notice_says_which_layers_no_fused_kernel_covers(
    arch: str, network: Network, input_dtype: str, options: dict[str, Any], unpaired: str | None
) -> None:
    """The notice names ``unpaired``: "" if all layers are fused, None if the choices exclude fusion."""
    choices = named_choices(**{"precision": "auto", **options})
    found = notices(plan(random_graph(network, bias=False), arch, choices, input_dtype=input_dtype), choices)
    assert len(found) == bool(unpaired)
    for note in found:
        assert "\n" not in note and f"run {unpaired}: " in note and f"{input_dtype} images on {arch}" in note


@SPLIT_PRECISIONS
def test_scores_of_a_last_convolution_are_float32(precision: str) -> None:
    """In fp16 the kernel for two convolutions stores float16, so the last convolution runs alone."""
    ends = network(
        "ends",
        (1, 10, 10),
        Conv2d("conv1", maps=6, kernel=3),
        Relu("relu1"),
        AvgPool("pool1", window=2),
        Conv2d("conv2", maps=10, kernel=4),
        Flatten("flatten"),
        Argmax("argmax"),
    )
    planned = plan(random_graph(ends), HOPPER, Choices(precision))
    assert planned.buffers[LOGITS] == ("float32", 10)
    assert [pair.dtype for pair in pair_problems(planned)] == {"fp32x": ["float16x2"], "fp16": []}[precision]
