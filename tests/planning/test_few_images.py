"""Test kernels for few images: they give the bits of the kernel for many, and are chosen up to a limit."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from app.engine.request import default_chunk_size
from app.kernels.problems import ConvProblem, LinearProblem
from app.kernels.registry import variants
from app.network.definitions import NETWORKS
from app.planning.few_images import LARGE_TILE_PRODUCTS, kernels_for_few_images, long_sum_settings
from app.planning.matching import Choices
from app.planning.plan import plan
from tests.support.kernel_cases import Case, describe
from tests.support.kernel_device import host_arrays
from tests.support.kernel_grid import row_of
from tests.support.networks_for_tests import random_graph
from tests.support.on_processor import run_row
from tests.support.requests import named_choices

ARCH = "sm_90a"
ROWS = 21  # no multiple of a tile, and more than two tiles
PRODUCTS = [
    LinearProblem(37, 33, bias=True, activation="relu", input_dtype="uint8"),
    LinearProblem(130, 10, bias=True, argmax=True),
    *(LinearProblem(130, classes, bias=True, argmax=True, softmax=True) for classes in (2, 10, 21, 32)),
    LinearProblem(259, 45),
    LinearProblem(4099, 9, bias=True, activation="tanh"),  # a sum in parts, of which the last one is shorter
]
CONVOLUTIONS = [
    ConvProblem(1, 11, 9, 5, 3, bias=True, activation="relu", pool=2, input_dtype="uint8"),
    ConvProblem(5, 9, 13, 19, 3, stride=2, padding=1, bias=True),
    ConvProblem(12, 10, 7, 6, 2, pool=3, pool_is_max=True, pool_ceil=True),
]


def cases() -> Iterator[Any]:
    """Yield each kernel with large tiles and each problem that it supports; the long sum only if it has parts."""
    rows = [row for row in variants("gemm") if row.name in LARGE_TILE_PRODUCTS]
    rows += [row_of("conv", name) for name in ("register-patch", "tensor-core")]
    for row in rows:
        for dtype in ("float32", "tfloat32"):
            for problem in PRODUCTS if row.operation == "gemm" else CONVOLUTIONS:
                problem = replace(problem, dtype=dtype)
                long = problem == replace(PRODUCTS[-1], dtype=dtype)
                if row.refusal_reason(problem, ARCH) is None and (long_sum_settings(problem, row) or not long):
                    yield pytest.param(Case(row, problem), id=f"{row.name}-{describe(problem)}")


@pytest.mark.grid
@pytest.mark.parametrize("case", [*cases()])
def test_every_batch_size_gives_the_same_bits(case: Case) -> None:
    """The kernels for few images, with one, two and all images, equal the kernel for many."""
    settings = long_sum_settings(case.problem, case.row)
    kernels = kernels_for_few_images(case.problem, case.row, settings, ARCH)
    assert kernels and kernels[0].most >= 1
    x, arrays = host_arrays(case.problem, ROWS if case.row.operation == "gemm" else 3)
    wanted = run_row(case.row, case.problem, x, arrays, settings)
    assert np.isfinite(wanted[0]).all() and np.ptp(wanted[0]) > 0
    for few, images in product(kernels, (1, 2, len(x))):
        found = run_row(few.variant, case.problem, x[:images], arrays, few.settings)
        for result, whole in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(result.view(np.uint8), whole[: len(result)].view(np.uint8))


def test_long_sums_have_the_same_parts_for_any_batch() -> None:
    long, tiled = replace(PRODUCTS[-1], inputs=9216), row_of("gemm", "register-tiled")
    (few,) = kernels_for_few_images(long, tiled, settings := long_sum_settings(long, tiled), ARCH)
    assert few.settings == settings == {"PART": 512}
    first, last = few.variant.launch_config(long, few.settings).launches
    assert first.grid(1)[2] == 18 and last.entry == "gemm_few_rows_finish"
    for problem, row in ((replace(long, inputs=4095), tiled), (replace(long, argmax=True), tiled)):
        assert long_sum_settings(problem, row) == {}
    assert long_sum_settings(replace(long, dtype="float16"), row_of("gemm", "tensor-core")) == {}
    nodes = plan(random_graph(NETWORKS["fa19"]), ARCH, named_choices(precision="tf32")).nodes
    (node,) = (node for node in nodes if node.name.startswith("flatten+fc1"))
    assert node.settings["PART"] == 512 and node.few


def test_only_automatic_kernels_have_kernels_for_few_images() -> None:
    """Named kernels run for every batch, as do kernels that add in another order."""
    patch, tiled = row_of("conv", "register-patch"), row_of("gemm", "register-tiled")
    assert not kernels_for_few_images(PRODUCTS[0], row_of("gemm", "split-k"), {}, ARCH)
    assert not kernels_for_few_images(replace(PRODUCTS[0], dtype="float64"), row_of("gemm", "naive"), {}, ARCH)
    assert not kernels_for_few_images(CONVOLUTIONS[0], row_of("conv", "direct"), {}, ARCH)
    huge = ConvProblem(3, 512, 512, 64, 3)
    assert not kernels_for_few_images(huge, patch, {}, ARCH), "one image fills the card"
    graph = random_graph(NETWORKS["lenet5"])
    assert all(node.few for node in plan(graph, ARCH, Choices("fp32")).nodes)
    named = plan(graph, ARCH, named_choices(precision="fp32", kernels={"conv2": patch.name, "fc1": tiled.name}))
    assert [bool(node.few) for node in named.nodes] == [True, False, False, True]


def test_larger_layers_have_lower_limits() -> None:
    patch = row_of("conv", "register-patch")
    limits = []
    for maps in (8, 16, 64):
        small, middle = kernels_for_few_images(
            ConvProblem(8, 20, 20, maps, 3), patch, {"TM": 4, "TR": 2, "TC": 8}, ARCH
        )
        assert small.most < middle.most
        limits.append((small.most, middle.most))
    assert limits == sorted(limits, reverse=True) and limits[0] > limits[-1]
    for maps, most in ((1, [512]), (4, [222, 512])):
        problem = ConvProblem(8, 20, 20, maps, 3)
        found = kernels_for_few_images(problem, patch, {"TM": 4, "TR": 2, "TC": 8}, ARCH)
        assert [one.most for one in found] == most, "no kernel for few images serves more than 512"
    found = kernels_for_few_images(ConvProblem(9, 20, 20, 8, 3), patch, {}, ARCH)
    assert {one.settings["CK"] for one in found} == {3}, "at most eight channels are in shared memory at a time"
    for name, dtype, expected in (("naive", "float32", [960, 250, 31]), ("tensor-core", "tfloat32", [960, 250, 31])):
        outputs = (10, 512, 4096) if dtype == "float32" else (10, 256, 2064)
        layers = [LinearProblem(64, n, dtype=dtype) for n in outputs]
        assert [kernels_for_few_images(one, row_of("gemm", name), {}, ARCH)[0].most for one in layers] == expected


def test_chunks_of_large_batches_use_the_product_for_many() -> None:
    """Chunks run at the same time, and the kernel for few images occupies more of the GPU."""
    nodes = [
        node
        for network, precision in product(NETWORKS.values(), ("fp32", "tf32"))
        for node in plan(random_graph(network), ARCH, Choices(precision)).nodes
    ]
    limits = [few.most for node in nodes if isinstance(node.problem, LinearProblem) for few in node.few]
    assert limits and max(limits) < default_chunk_size(10_000) // 2, "the first chunk and the last have half the length"


def test_kernels_of_a_node_share_unpacked_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a kernel that packs weights has a copy of them, which may be large."""
    buffers = pytest.importorskip("app.engine.buffers", reason="CuPy is not installed")
    monkeypatch.setattr(buffers, "upload", np.copy)
    execution = plan(random_graph(NETWORKS["fa19"]), ARCH, Choices("tf32"))
    loaded = buffers.LoadedPlan(execution)
    layouts: list[Any] = []
    for node in execution.nodes:
        packings = [variant.launch_config(node.problem, settings).packing for variant, settings in node.kernels]
        layouts += [packing.pack(node.parameters) for packing in packings if packing is not None]
        layouts += [node.parameters] if None in packings else []
    assert loaded.nbytes == sum(array.nbytes for layout in layouts for array in layout if array is not None)


@pytest.mark.parametrize(
    ("images", "which"), [(1, "few"), (4, "few"), (5, "more"), (7, "more"), (8, "many"), (99, "many")]
)
def test_launch_by_count_chooses_by_the_number_of_images(images: int, which: str) -> None:
    """Adding the launch to a graph adds the chosen kernel; addresses are set for all kernels."""
    module = pytest.importorskip("app.kernels.by_count", reason="CuPy is not installed")
    calls: list[tuple[str, Any]] = []

    class RecordingLaunch:
        workspace = ()
        launches_only_kernels = True

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, stream: int, count: int) -> None:
            calls.append((self.name, (stream, count)))

        def add_to(self, graph: str, count: int) -> None:
            calls.append((self.name, (graph, count)))

        def set_argument_address(self, place: int, address: int) -> None:
            calls.append((self.name, (place, address)))

    names = ("few", "more", "many")
    launch = module.LaunchByCount([*map(RecordingLaunch, names)], [4, 7])
    launch(7, images)
    launch.add_to("graph", images)
    launch.set_argument_address(0, 99)
    assert calls == [(which, (7, images)), (which, ("graph", images)), *((name, (0, 99)) for name in names)]
    assert launch.launch_for(images).name == which and launch.launches_only_kernels
