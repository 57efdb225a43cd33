"""Test how precision, named kernels and measured times determine a plan."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.base.precision import BY_NAME, epilogue_dtype
from app.kernels import registry
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearPairProblem, tuning_key, without_epilogue
from app.network.definitions import FA19, LENET5, MLP, Network
from app.network.graph import Graph, build_graph
from app.network.weights import load_weights
from app.planning.matching import Choices
from app.planning.plan import LABELS, LOGITS, ExecutionPlan, notices, plan
from app.planning.tuning import TunedResult, Tuning
from tests.support.kernel_grid import row_of
from tests.support.networks_for_tests import GENERAL, TEST_NETWORKS, random_graph, with_bytes
from tests.support.requests import named_choices
from tests.support.shell import user_error

ARCH = "sm_90a"
TOO_OLD = "needs sm_80 or later, this is sm_75"


def _kernels_by_layer(planned: ExecutionPlan) -> dict[str, str]:
    """Return the kernel's name by the main layer of each node."""
    return {node.head.name: node.variant.name for node in planned.nodes}


def runs_in_float32(problem: Any, precision: str) -> bool:
    """Return whether the problem is a convolution that CUDA cores are estimated to compute faster."""
    dtype, row = BY_NAME[precision].dtype, row_of("conv", "tensor-core")
    return isinstance(problem, ConvProblem) and not row.worthwhile(replace(problem, dtype=dtype), ARCH)


@pytest.mark.grid
@pytest.mark.parametrize("network", TEST_NETWORKS)
@pytest.mark.parametrize("precision", GENERAL)
@pytest.mark.parametrize("fuse", [True, False])
def test_precision_determines_arithmetic_and_storage(network: Network, precision: str, fuse: bool) -> None:
    planned = plan(random_graph(network), ARCH, Choices(precision, fuse))
    row = BY_NAME[precision]
    multiplied, stored = row.dtype, row.stored
    products = [node.problem for node in planned.nodes if node.parameters]
    for problem in products:
        assert problem.dtype == ("float32" if runs_in_float32(problem, precision) else multiplied)
    assert planned.arithmetic == (multiplied if multiplied in {problem.dtype for problem in products} else "float32")
    types = {name: dtype for name, (dtype, _) in planned.buffers.items()}
    assert types[LOGITS] == epilogue_dtype(stored), "scores are never rounded to half precision"
    last = max(at for at, node in enumerate(planned.nodes) if node.parameters)
    for at, node in enumerate(planned.nodes):
        x, *rest = node.problem.arguments()
        if node.head.keeps_bytes:
            assert {argument.dtype for argument in node.problem.arguments()} == {"uint8"} and not node.parameters
            continue
        first = all(before.head.keeps_bytes for before in planned.nodes[:at])
        assert x.dtype == ("uint8" if first else stored if at <= last else epilogue_dtype(stored))
        y = [argument.dtype for argument in rest if argument.name == "y"]
        assert set(y) <= {stored if at < last else epilogue_dtype(stored)}


@pytest.mark.parametrize(
    ("arch", "precision", "kernels"),
    [(ARCH, "auto", "conv1, fc1"), (ARCH, "fp16", ""), ("sm_80", "auto", "conv1, fc1")],
)
def test_a_notice_says_that_weights_are_exact_in_float16(arch: str, precision: str, kernels: str) -> None:
    """For the shipped weights, the notice names the kernels that compute two products instead of three."""
    choices = Choices(precision, sparse=False)
    found = notices(plan(build_graph(LENET5, load_weights()), arch, choices), choices)
    assert found == [
        f"weights exact in float16: two products instead of three in the kernels of {each}"
        for each in [kernels]
        if each
    ]


@pytest.mark.parametrize(("kernel", "operation_"), [("half2", "conv"), ("tensor-core", "gemm")])
def test_a_named_kernel_of_another_type_keeps_the_storage(kernel: str, operation_: str) -> None:
    """With ``--conv half2`` in fp32, convolutions multiply float16, but activations are stored as float32."""
    planned = plan(random_graph(LENET5), ARCH, named_choices("fp32", kernels={operation_: kernel}))
    assert planned.arithmetic == "float16"
    for at, node in enumerate(planned.nodes):
        named = node.head.operation == operation_
        assert not named or node.variant.name == kernel
        if node.parameters:
            assert node.problem.dtype == ("float16" if named else "float32")
        assert node.problem.arguments()[0].dtype == ("uint8" if at == 0 else "float32")
        for buffer in node.writes:
            assert planned.buffers[buffer][0] == ("uint8" if buffer == LABELS else "float32")


def test_a_named_kernel_uses_the_precision_if_it_can() -> None:
    planned = plan(random_graph(LENET5), ARCH, named_choices("tf32", kernels={"gemm": "tensor-core"}))
    products = [node for node in planned.nodes if node.head.operation == "gemm"]
    assert [(node.variant.name, node.problem.dtype) for node in products] == [("tensor-core", "tfloat32")] * 2
    planned = plan(random_graph(LENET5), ARCH, named_choices("fp16", kernels={"gemm": "naive", "conv": "direct"}))
    assert planned.arithmetic == "float16" and all(n.problem.dtype == "float16" for n in planned.nodes if n.parameters)


def test_named_kernels_are_used() -> None:
    kernels = {"conv": "direct", "gemm": "naive", "fc2": "shared-tiled", "pool2": "shared", "conv1": "image-loop"}
    used = _kernels_by_layer(plan(random_graph(LENET5), ARCH, named_choices(kernels=kernels)))
    assert (used["conv1"], used["conv2"]) == ("image-loop", "direct")
    assert (used["fc1"], used["fc2"]) == ("naive", "shared-tiled")
    assert (used["pool1"], used["pool2"]) == ("direct", "shared")


def _result(ms: float, **parameters: int) -> TunedResult:
    return TunedResult(parameters, ms, 10_000)


def test_auto_uses_measured_times() -> None:
    graph = random_graph(LENET5)
    nodes = {node.head.name: node for node in plan(graph, ARCH, Choices(fuse=False)).nodes}
    first, second = nodes["conv1"].problem, nodes["conv2"].problem
    assert isinstance(first, ConvProblem) and without_epilogue(first) == first, "what op times are measured on"
    slowest = {"register-patch": _result(9.0)}  # ``auto`` chooses it without times
    of_first = {"direct": _result(3.0), "shared-tile": _result(1.0, TILE=8), "unrolled": _result(2.0), **slowest}
    of_second = {"unrolled": _result(1.0, TILE=16), "cublas": _result(0.1), **slowest}
    tuning = Tuning({tuning_key(first): of_first, tuning_key(second): of_second})
    tuned = {node.head.name: node for node in plan(graph, ARCH, Choices(fuse=False, tuning=tuning)).nodes}
    assert (tuned["conv1"].variant.name, tuned["conv1"].settings) == ("shared-tile", {"TILE": 8})
    # The cuBLAS kernel is faster, but not automatic.
    assert (tuned["conv2"].variant.name, tuned["conv2"].settings) == ("unrolled", {"TILE": 16})
    for name in nodes.keys() - {"conv1", "conv2"}:
        assert (tuned[name].variant, tuned[name].settings) == (nodes[name].variant, nodes[name].settings)
    # A named kernel gets its parameters from the table, too, if they are there.
    named = plan(graph, ARCH, named_choices(fuse=False, kernels={"conv": "shared-tile"}, tuning=tuning))
    assert [node.settings for node in named.nodes if node.head.operation == "conv"] == [{"TILE": 8}, {}]


def test_settings_of_a_convolution_without_its_epilogue() -> None:
    """Op times are measured without the fused layers, for which another tile may be the best."""
    graph, kernels = random_graph(LENET5), {"conv": "register-tiled"}
    nodes = [node for node in plan(graph, ARCH, named_choices(kernels=kernels)).nodes if node.head.operation == "conv"]
    first, second = (node.problem for node in nodes)
    assert isinstance(first, ConvProblem) and isinstance(second, ConvProblem) and without_epilogue(first) != first
    fused = {"register-tiled": _result(1.0, BN=128)}
    of_first = {"register-tiled": _result(1.0, BN=64), "direct": _result(0.1)}
    tuning = Tuning(
        {tuning_key(first): fused, tuning_key(without_epilogue(first)): of_first, tuning_key(second): fused}
    )
    tuned = plan(graph, ARCH, named_choices(kernels=kernels, tuning=tuning)).nodes
    settings = {node.head.name: (node.settings, node.settings_alone) for node in tuned}
    assert settings["conv1"] == ({"BN": 128}, {"BN": 64})
    assert settings["conv2"] == ({"BN": 128}, {}), "what was measured fused says nothing of it alone"
    assert settings["fc1"] == ({}, {})


@pytest.mark.parametrize(
    ("arch", "options", "fault"),
    [
        (ARCH, {"kernels": {"conv3": "direct"}}, "lenet5 has no layer 'conv3': choose one of conv1, relu1, pool1"),
        (
            "sm_75",
            {"kernels": {"gemm": "tensor-core"}},
            rf"no gemm kernel \(tensor-core\) supports layer fc1 in fp32 .*{TOO_OLD}",
        ),
        ("sm_75", {"precision": "fp32x"}, r"fp32x needs tensor cores \(sm_80 or later\), this is sm_75: use fp32"),
        (
            "sm_75",
            {"precision": "tf32"},
            rf"no conv kernel \(auto\) supports layer conv1 in tf32 \([\w-]+ {TOO_OLD}\): ",
        ),
    ],
)
def test_unsuitable_kernels_are_refused(arch: str, options: dict[str, Any], fault: str) -> None:
    assert re.search(fault, user_error(lambda: plan(random_graph(LENET5), arch, named_choices(**options))))


def test_a_kernel_of_another_operation_is_refused() -> None:
    direct = registry.find_variant("conv", "direct")
    with pytest.raises(UserError, match="lenet5 has no layer 'flatten'"):
        plan(random_graph(LENET5), ARCH, Choices(kernels={"flatten": direct}))
    for target, operation_ in {"fc1": "gemm", "pool": "pool", "conv_pair": "conv_pair"}.items():
        with pytest.raises(ValueError, match=f"{target} takes a {operation_} kernel, direct is a conv kernel"):
            plan(random_graph(LENET5), ARCH, Choices(kernels={target: direct}))


def test_the_refusal_gives_the_named_kernels_reason() -> None:
    """The reason is not the kernel's other type, which is allowed for named kernels."""
    wide_network = replace(LENET5, input_shape=(2048, 28, 28))
    with pytest.raises(UserError, match=r"\(half2\) supports layer conv1 in fp32 \(half2 .*constant memory") as caught:
        plan(random_graph(wide_network, bias=False), ARCH, named_choices(kernels={"conv": "half2"}))
    assert "float16" not in str(caught.value)


# --- int8


LOSS = "conv2 in 8-bit integers: coarser than fp16"


@cache
def int8_lenet5(bias: bool = False) -> Graph:
    return with_bytes(random_graph(LENET5, bias=bias))


def test_int8_convolutions_and_float16_products() -> None:
    graph, choices = int8_lenet5(), Choices("int8")
    planned = plan(graph, "sm_90a", choices)
    convolutions, products = planned.nodes
    assert isinstance(convolutions.problem, ConvPairProblem) and isinstance(products.problem, LinearPairProblem)
    assert (convolutions.variant.name, convolutions.problem.dtype, planned.arithmetic) == ("wgmma-int8", "int8", "int8")
    assert (products.variant.name, products.problem.dtype) == ("wgmma", "float16")
    assert any(LOSS in notice for notice in notices(planned, choices))
    assert graph.quantised is not None and convolutions.scales is not None
    filters = convolutions.parameters[2]
    assert filters is not None
    wanted = graph.quantised.filters * graph.quantised.steps * convolutions.scales
    np.testing.assert_allclose(filters.reshape(32, 5, 5, 64), wanted.transpose(2, 0, 1, 3), rtol=1e-6)


def test_other_precisions_ignore_the_8_bit_filters() -> None:
    graph = int8_lenet5()
    without = replace(graph, quantised=None)
    for precision in ("auto", "fp16", "fp32"):
        both = (plan(one, "sm_90a", Choices(precision)).nodes for one in (graph, without))
        for ours, other in zip(*both, strict=True):
            assert (ours.variant, ours.problem) == (other.variant, other.problem)
            for a, b in zip(ours.parameters, other.parameters, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("graph", "arch", "choices", "reason"),
    [
        (random_graph(LENET5, bias=False), "sm_90a", {}, "the weights have no 8-bit filters: run python -m data_tools"),
        (int8_lenet5(), "sm_80", {}, "wgmma-int8 needs sm_90 or later, this is sm_80"),
        (int8_lenet5(), "sm_100", {}, "wgmma-int8 needs sm_90 itself, this is sm_100"),
        (int8_lenet5(bias=True), "sm_90a", {}, "wgmma-int8 adds no bias"),
        (int8_lenet5(), "sm_90a", {"fuse": False}, "it takes two convolutions in a row, fused"),
        (int8_lenet5(), "sm_90a", {"kernels": {"conv": row_of("conv", "direct")}}, "with no kernel named for either"),
        (random_graph(FA19), "sm_90a", {}, "no kernel serves network fa19: wgmma-int8 "),
        (random_graph(MLP), "sm_90a", {}, "no kernel serves network mlp: it takes two convolutions"),
    ],
)
def test_int8_errors_give_the_reason(graph: Graph, arch: str, choices: dict[str, object], reason: str) -> None:
    message = user_error(lambda: plan(graph, arch, Choices("int8", **choices)))  # type: ignore[arg-type]
    assert message.startswith("--precision int8: ") and reason in message and message.endswith("use --precision fp16")


def test_a_named_int8_kernel_gives_the_reason() -> None:
    graph = replace(int8_lenet5(), quantised=None)
    named = Choices("int8", kernels={"conv": None, "conv_pair": row_of("conv_pair", "wgmma-int8")})
    message = user_error(lambda: plan(graph, "sm_90a", named))
    assert message.startswith("kernel wgmma-int8 does not support conv1+conv2: the weights have no 8-bit filters: run")


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_8_bit_limits_of_other_weights_are_refused(factor: float) -> None:
    """With such limits, float16 could not represent conv1's filters, or all bytes would be 0."""
    graph = int8_lenet5()
    assert graph.quantised is not None
    other = replace(graph, quantised=replace(graph.quantised, limits=graph.quantised.limits * np.float32(factor)))
    message = user_error(lambda: plan(other, "sm_90a", Choices("int8")))
    assert "with these weights it would lose numbers" in message
