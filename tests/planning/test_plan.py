"""Test plans: which layers are fused, and which kernels, buffers and parameters they have."""

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.kernels.plain_problems import ArgmaxProblem, bytes_moved
from app.kernels.problems import (
    ConvPairProblem,
    ConvProblem,
    LinearProblem,
    PairProblem,
    PoolProblem,
    Problem,
    operation,
    tuning_key,
)
from app.layers import Argmax, AvgPool, Conv2d, Flatten, Layer, Linear, Relu, Softmax
from app.network.definitions import LENET5, NETWORKS, Network
from app.planning.kernel_selection import defer_flattens
from app.planning.matching import Choices
from app.planning.plan import IMAGES, LABELS, LOGITS, PIXELS, plan
from tests.planning.test_plan_choices import runs_in_float32
from tests.support.networks_for_tests import GENERAL, ODD, TEST_NETWORKS, multiplied, random_graph
from tests.support.random_networks import uncentred_network
from tests.support.random_networks_checked import graph_of, network_from_chain
from tests.support.requests import named_choices

ARCH = "sm_90a"
FUSED = ["conv1+relu1+pool1", "conv2+relu2+pool2", "flatten+fc1+relu3", "fc2+argmax"]
UNFUSED = ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten+fc1", "relu3", "fc2", "argmax"]
DIRECT = ["conv1+relu1", "pool1", "conv2+relu2", "pool2", "flatten+fc1+relu3", "fc2+argmax"]
NAIVE = ["conv1+relu1+pool1", "conv2+relu2+pool2", "flatten+fc1+relu3", "fc2", "argmax"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"kernels": {"conv": "register-tiled"}}, FUSED),
        ({"fuse": False}, UNFUSED),
        ({"kernels": {"conv": "direct"}}, DIRECT),
        ({"kernels": {"conv": "register-tiled", "gemm": "naive"}}, NAIVE),
        ({"kernels": {"conv": "register-tiled", "conv2": "direct"}}, [FUSED[0], *DIRECT[2:]]),
    ],
    ids=["fused", "unfused", "direct", "naive", "mixed"],
)
@pytest.mark.parametrize("input_dtype", ["uint8", "float32"])
def test_nodes_of_lenet5(options: dict[str, Any], names: list[str], input_dtype: str) -> None:
    planned = plan(random_graph(LENET5), ARCH, named_choices(**options), input_dtype=input_dtype)
    assert [node.name for node in planned.nodes] == names
    assert planned.nodes[0].problem.arguments()[0].dtype == planned.input_dtype == input_dtype
    assert all(node.problem.arguments()[0].dtype == "float32" for node in planned.nodes[1:])
    assert planned.buffers[LOGITS] == ("float32", 10)
    assert planned.buffers[LABELS] == ("uint8", 1)
    assert planned.buffers[IMAGES] == (input_dtype, 784)


KERNELS: list[dict[str, str]] = [{"conv": "direct"}, {"conv": "half2", "gemm": "tensor-core"}, {"gemm": "split-k"}]


@pytest.mark.grid
@pytest.mark.parametrize("network", TEST_NETWORKS)
@pytest.mark.parametrize(
    ("precision", "fuse", "kernels"),
    [*product(GENERAL, (True, False), [{}]), *(("fp32", True, kernels) for kernels in KERNELS)],
)
def test_every_plan_is_consistent(network: Network, precision: str, fuse: bool, kernels: dict[str, str]) -> None:
    graph = random_graph(network)
    planned = plan(graph, ARCH, named_choices(precision, fuse, kernels))
    for node in planned.nodes:
        assert kernels.get(node.head.operation or "") in (None, node.variant.name)
    planned_layers = [layer for node in planned.nodes for layer in node.layers]
    assert planned_layers == [step.layer for step in defer_flattens(graph).steps]
    assert sum(node.flops for node in planned.nodes) == sum(s.layer.flops(s.in_shape) for s in graph.steps)
    written = {IMAGES}
    latest, shape = IMAGES, graph.network.input_shape
    for node in planned.nodes:
        assert node.steps[0].in_shape == shape
        shape = node.steps[-1].out_shape
        assert node.variant.refusal_reason(node.problem, ARCH, node.settings) is None
        # It reads the buffer that the previous node wrote, and writes others.
        assert node.reads == latest and node.reads in written and node.reads not in node.writes
        latest = node.writes[0]
        written.update(node.writes)
        x, *rest = node.problem.arguments()
        assert (x.name, x.per_image) == ("x", prod(node.steps[0].in_shape))
        arguments = [x, *rest[len(node.parameters) :]]
        for buffer, argument in zip([node.reads, *node.writes], arguments, strict=True):
            dtype, elements = planned.buffers[buffer]
            assert dtype == argument.dtype and elements >= argument.per_image, (node.name, buffer)
        for parameter, argument in zip(node.parameters, rest[: len(node.parameters)], strict=True):
            if parameter is None:
                assert argument.optional
            else:
                assert (parameter.dtype.name, parameter.size) == (argument.dtype, argument.fixed)
                assert parameter.flags.c_contiguous
    assert written == planned.buffers.keys() and {LOGITS, LABELS} <= written
    assert planned.nodes[-1].writes[-1] == LABELS and planned.buffers[LOGITS][1] == graph.class_count
    # Images, logits, labels, two for activations, one for scores of a wider type; perhaps enlarged images.
    assert len(planned.buffers) <= 6 + (PIXELS in planned.buffers)
    assert (PIXELS in planned.buffers) == any(node.head.keeps_bytes for node in planned.nodes)


@pytest.mark.parametrize("input_scale", [1 / 255, 0.3 / 255])
@pytest.mark.parametrize("input_dtype", ["uint8", "float32"])
def test_the_pixel_scale_is_folded_into_the_first_weights(input_dtype: str, input_scale: float) -> None:
    graph = replace(random_graph(LENET5), input_scale=input_scale)
    nodes = {node.head.name: node for node in plan(graph, ARCH, input_dtype=input_dtype).nodes}
    filters = graph.parameters["conv1"].transpose(2, 0, 1, 3).astype(np.float64)
    scale = input_scale if input_dtype == "uint8" else input_scale * 255
    folded, bias = nodes["conv1"].parameters
    assert folded is not None
    np.testing.assert_allclose(folded, (filters * scale).astype(np.float32), rtol=1e-7, strict=True)
    np.testing.assert_array_equal(bias, graph.parameters["conv1_bias"])
    np.testing.assert_array_equal(nodes["conv2"].parameters[0], graph.parameters["conv2"].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(nodes["fc2"].parameters[0], graph.parameters["fc2"])


def test_only_biases_of_the_file_reach_kernels() -> None:
    graph = random_graph(LENET5, bias=False)
    shift = np.arange(10, dtype=np.float32)
    nodes = plan(replace(graph, parameters={**graph.parameters, "fc2_bias": shift}), ARCH).nodes
    biases = {node.head.name: node.parameters[1] for node in nodes if node.parameters}
    assert {name for name, bias in biases.items() if bias is not None} == {"fc2"}
    np.testing.assert_array_equal(biases["fc2"], shift)
    assert {node.head.name for node in nodes if getattr(node.problem, "bias", False)} == {"fc2"}


@pytest.mark.parametrize(("precision", "fuse"), [("fp16", True), ("fp16", False), ("fp32x", True), ("tf32", True)])
def test_biases_are_float32_whatever_the_weights_are(precision: str, fuse: bool) -> None:
    """In fp16, kernels of one layer get float16 weights; kernels of two layers get float32 and round or split it."""
    biases = 0
    for node in plan(random_graph(LENET5), ARCH, Choices(precision, fuse)).nodes:
        narrow = precision == "fp16" and not isinstance(node.problem, PairProblem)
        for weights, bias in zip(node.parameters[::2], node.parameters[1::2], strict=True):
            assert weights is not None and bias is not None
            assert (weights.dtype, bias.dtype) == (np.float16 if narrow else np.float32, np.float32)
            biases += 1
    assert biases == 4


def test_rows_after_a_flatten_follow_the_devices_order() -> None:
    graph = random_graph(LENET5)
    node = next(node for node in plan(graph, ARCH).nodes if node.head.name == "fc1")
    maps = np.random.default_rng(3).normal(size=(2, 64, 4, 4))
    weights, _ = node.parameters
    assert weights is not None
    features = Flatten("flatten").reference(maps, {})
    np.testing.assert_allclose(maps.reshape(2, -1) @ weights, features @ graph.parameters["fc1"], atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "fault"),
    [
        ([Flatten("flatten"), Relu("relu")], "supports layer relu .*uint8"),
        (
            [Conv2d("conv", 2, 2), Flatten("flatten"), Softmax("softmax")],
            "layer softmax reads features in the order of flatten, .*: put one between them, or use --device cpu",
        ),
        ([AvgPool("pool", 2), Flatten("flatten")], "supports layer pool .*uint8"),
    ],
)
def test_networks_without_gpu_kernels_are_refused(layers: list[Layer], fault: str) -> None:
    network = Network("bad", "for tests", (1, 8, 8), (*layers, Linear("fc", 3), Argmax("argmax")))
    with pytest.raises(UserError, match=fault):
        plan(random_graph(network), ARCH)


def test_bytes_moved_counts_every_argument_once() -> None:
    assert (
        bytes_moved(ConvProblem(1, 6, 6, 2, 3, input_dtype="uint8").arguments(), 10)
        == 10 * 36 + 4 * 9 * 2 + 10 * 4 * 16 * 2
    )
    assert bytes_moved(LinearProblem(5, 3, bias=True, argmax=True).arguments(), 7) == 4 * (7 * 5 + 15 + 3 + 7 * 3) + 7
    assert bytes_moved(PoolProblem(2, 4, 4, 2, 2, True, "float64").arguments(), 3) == 8 * 3 * (32 + 8)
    assert bytes_moved(ArgmaxProblem(10).arguments(), 4) == 4 * 4 * 10 + 4


def test_tuning_keys_are_short_and_distinct() -> None:
    one = ConvProblem(1, 28, 28, 32, 5)
    others: list[Problem] = [LinearProblem(1, 28), one]
    others += [replace(one, stride=2), replace(one, bias=True), replace(one, dtype="float16")]
    assert len({tuning_key(problem) for problem in others}) == len(others)
    assert tuning_key(one) == "conv channels=1 height=28 width=28 maps=32 kernel=5"
    assert operation(one) == "conv"


FACTORS = pytest.mark.parametrize("factor", [1e9, 1e-9])
OVERFLOW_IS_AN_ERROR = pytest.mark.filterwarnings("error")  # NumPy warns of an overflow


@FACTORS
@OVERFLOW_IS_AN_ERROR
@pytest.mark.parametrize("network", [LENET5, NETWORKS["mlp"], ODD])
def test_weights_beyond_float16_are_refused_only_in_fp16(network: Network, factor: float) -> None:
    """This holds for any layer of any network; ``auto`` and fp32 run the same weights."""
    graph = random_graph(network, bias=False)
    for arch, name in zip(["sm_75", "sm_80", "sm_90a", "sm_120"], graph.parameters, strict=False):
        changed = multiplied(graph, **{name: factor})
        with pytest.raises(UserError, match=f"^fp16 cannot represent the weights of {name}: .*; use --precision fp32$"):
            plan(changed, arch, Choices("fp16", fuse=False))
    plan(changed, arch, Choices("fp32"))
    plan(changed, arch, Choices("auto"))


@FACTORS
@OVERFLOW_IS_AN_ERROR
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_for_pairs_accept_weights_beyond_float16(arch: str, factor: float) -> None:
    graph = random_graph(LENET5, bias=False)
    for name in graph.parameters:
        nodes = plan(multiplied(graph, **{name: factor}), arch, Choices("fp16")).nodes
        assert all(isinstance(node.problem, PairProblem) for node in nodes)


# --- random networks; python -m tests.support.random_networks --seed N repeats a failure


SEEDS = range(120)


@pytest.mark.grid
@pytest.mark.parametrize("seed", SEEDS)
def test_every_precision_serves_every_network(seed: int) -> None:
    graph = graph_of(uncentred_network(seed))
    for precision in ("fp32", "tf32", "fp16"):
        plan(graph, "sm_90a", Choices(precision))
    plan(graph, "sm_80", Choices("fp16"))
    for arch in ("sm_80", "sm_90a"):
        planned = plan(graph, arch, Choices("auto"))
        assert planned.arithmetic == "float16x2"
        for node in planned.nodes:
            slow = runs_in_float32(node.problem, "fp32x") and node.variant.name != "warpgroup"
            assert not node.parameters or node.problem.dtype == ("float32" if slow else "float16x2"), node.name


def test_random_networks_are_varied() -> None:
    """One and three channels, up to 128 maps, kernels up to 11, five convolutions and four products occur."""
    drawn = [uncentred_network(seed) for seed in SEEDS]
    kinds = [[layer.operation for layer in network_from_chain(one).layers] for one in drawn]
    assert {found.count("conv") for found in kinds} == {0, 1, 2, 3, 4, 5}
    assert {found.count("gemm") for found in kinds} == {1, 2, 3, 4}
    nodes = [node for one in drawn[:30] for node in plan(graph_of(one), "sm_90a", Choices("auto")).nodes]
    convolutions = [node.problem for node in nodes if isinstance(node.problem, ConvProblem)]
    assert {1, 3} < {problem.channels for problem in convolutions}
    assert max(problem.maps for problem in convolutions) > 64 and max(p.kernel for p in convolutions) > 8
    assert any(isinstance(node.problem, ConvPairProblem) for node in nodes)
    names = {(node.variant.name, node.features is not None) for node in nodes}
    assert {("tensor-core", True), ("tensor-core", False), ("warpgroup", False), ("wgmma-any", False)} <= names
