"""Test training's kernels without a GPU: compilation, arena layout, launch checks, and runs emulated on the CPU."""

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.cuda.compiler import ARCHITECTURES
from app.kernels.problems import ConvProblem
from app.kernels.train.train import TRAINING_KERNELS
from app.layers import AvgPool, LeakyRelu, MaxPool, Relu, Sigmoid, Tanh
from app.network.definitions import NETWORKS
from app.training.optimisers import AdamW, Sgd
from tests.support.networks_for_tests import ODD, ORDERS, OVERHANG, POOLED, SMOOTH
from tests.support.training_device import Build, builds, compile_all, settings_of

pytest.importorskip("cupy", reason="CuPy is not installed")
import cupy

from app.kernels import launch
from app.kernels.function import KernelFunction
from app.training.gpu.kernels import ALIGNMENT, MOST_PARTS, arena_layout, partial_sum_count
from tests.support.host_kernels import on_the_processor
from tests.support.product_cases import ConvCase, GemmCase, check_conv, check_gemm
from tests.training import test_gpu_training as whole
from tests.training import test_gpu_training_kernels as card

PRODUCTS = {"gemm", "conv", "conv_input", "conv_filters", "sum_parts"}  # tested in test_training_products.py


@pytest.fixture(scope="module")
def needed_builds() -> list[Build]:
    """Return the builds that all networks, odd test networks, and each optimiser with and without L2 need."""
    wanted = [builds(network, settings_of(network)) for network in (*NETWORKS.values(), ODD, SMOOTH, OVERHANG, *ORDERS)]
    for optimiser in ("sgd", "adamw"):
        wanted += [builds(NETWORKS["mlp"], settings_of(NETWORKS["mlp"], optimiser=optimiser, l2=x)) for x in (0.0, 1.0)]
    return list(dict.fromkeys(chain(*wanted)))


def remove_sizes(build: Build) -> tuple[Any, ...]:
    """Return a build's name and constants without sizes, which select no other code in these kernels."""
    name, constants = build
    return name, *(pair for pair in constants if isinstance(pair[1], str) or pair[1] in (0, 1))


def test_every_needed_build_compiles(needed_builds: list[Build], long_form: bool) -> None:
    """The long form compiles each build for one architecture and each kernel for all; the short form fewer."""
    own = [build for build in needed_builds if build[0] not in PRODUCTS]
    assert {name for name, _ in own} == {row.name for row in TRAINING_KERNELS} - PRODUCTS
    first = {build[0]: build for build in reversed(own)}
    kinds = {remove_sizes(build): build for build in reversed(own)}
    architectures = ARCHITECTURES if long_form else (ARCHITECTURES[0], "sm_90a")
    some = own if long_form else kinds.values()
    jobs = {(build, architectures[at % len(architectures)]) for at, build in enumerate(some)}
    jobs |= {(build, arch) for build in first.values() for arch in architectures}
    for name, cubin in compile_all(jobs):
        assert f"\0{name}\0".encode() in cubin, name


def test_convolutions_keep_whole_taps_in_shared_memory() -> None:
    """Slices divide the 32 maps that lenet5's second convolution reads at a tap, and pad the 25 terms of the first."""
    found = builds(NETWORKS["lenet5"], settings_of(NETWORKS["lenet5"]))
    assert {dict(constants)["BK"] for name, constants in found if name == "conv"} == {13, 16}


def test_weights_come_first_and_all_are_aligned() -> None:
    shapes = {"a_bias": (3,), "a": (5, 3), "b": (2, 2, 1, 7), "b_bias": (7,)}
    layout = arena_layout(shapes)
    starts = {name: place.start for name, place in layout.slices.items()}
    assert all(start % ALIGNMENT == 0 for start in starts.values())
    assert starts["a"] < starts["b"] < layout.weights <= starts["a_bias"] < starts["b_bias"]
    rng = np.random.default_rng(1)
    arrays = {name: rng.random(shape, np.float32) for name, shape in shapes.items()}
    flat = layout.pack(arrays)
    assert flat.size == layout.size and np.count_nonzero(flat) == sum(array.size for array in arrays.values())
    np.testing.assert_equal(layout.unpack(flat), arrays)
    np.testing.assert_equal({name: layout.view(flat, name).reshape(shape) for name, shape in shapes.items()}, arrays)
    assert list(layout.unpack(flat)) == list(shapes) and layout.view(flat, "c") is None
    assert np.count_nonzero(flat[: layout.weights]) == arrays["a"].size + arrays["b"].size


@pytest.mark.parametrize("pixels", [1, 7, 784])
def test_larger_sums_have_at_least_as_many_parts(pixels: int) -> None:
    """A workspace for the largest batch therefore serves every batch. Each part has at least one image."""
    parts = [partial_sum_count(images, pixels) for images in range(1, 5000)]
    assert parts == sorted(parts) and parts[0] == 1 and parts[-1] <= MOST_PARTS
    assert all(part <= images for images, part in enumerate(parts, 1))


def test_launches_are_checked_and_arguments_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Impossible launches are refused; each argument is passed in the size of its NumPy type."""
    found: list[tuple[Any, ...]] = []

    def launch_kernel(*arguments: Any) -> None:
        pointers = (ctypes.c_void_p * 3).from_address(arguments[-2])
        kinds: tuple[Any, ...] = (ctypes.c_uint64, ctypes.c_float, ctypes.c_int32)
        values = [kind.from_address(at or 0).value for kind, at in zip(kinds, pointers, strict=True)]
        found.append((*arguments[:-2], *values))

    monkeypatch.setattr(launch, "driver", SimpleNamespace(launchKernel=launch_kernel))
    module: Any = SimpleNamespace(get_function=lambda name: SimpleNamespace(ptr=7))
    stream = SimpleNamespace(ptr=99)
    for threads in (0, 1025):
        with pytest.raises(ValueError, match=f"f cannot have {threads} threads"):
            KernelFunction(module, "f", threads=threads)
    function = KernelFunction(module, "f", threads=64)
    for grid in ((0, 1, 1), (2**31, 1, 1), (1, 65_536, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="f cannot be launched on a grid"):
            function(stream, grid)
    for value in (3, 0.5, np.int64(3), np.zeros(3)):
        with pytest.raises(TypeError, match=f"not {type(value).__name__}"):
            function(stream, (1, 1, 1), value)
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(1 << 40, 256, None, 0), 0)
    array = cupy.ndarray((4, 4), "float32", memory)
    with pytest.raises(ValueError, match="contiguous"):
        function(stream, (1, 1, 1), array[:, 1])
    function(stream, (5, 4, 3), None, np.float32(0.1), np.int32(-2))
    function(stream, (1, 1, 1), array, np.float32(2), np.int32(8))
    with pytest.raises(ValueError, match="shorter"):
        function(stream, (1, 1, 1), array)
    assert found == [
        (7, 5, 4, 3, 64, 1, 1, 0, 99, 0, np.float32(0.1), -2),
        (7, 1, 1, 1, 64, 1, 1, 0, 99, 1 << 40, 2, 8),
    ]


# --- GPU tests with the kernels emulated on the CPU

GEMM = GemmCase(5, 65, 300, transpose_a=True, alpha=0.5, beta=-2.0, bias=True)
CONV = ConvCase(ConvProblem(16, 8, 9, 16, 3, stride=2), (2,), "sigmoid")
CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (card.test_gather, ((3, 7, 9), 2, True, "float32", 1 / 255)),
    (card.test_gather, ((2, 5, 3), 0, False, "uint8", 0.5)),
    (card.test_scale, (3.7e-5,)),
    (card.test_dropout, (1, 0.5, False)),
    (card.test_activation_gradient, (Sigmoid("f"),)),
    (card.test_pool_gradient, (MaxPool("p", window=3, stride=1), (4, 7, 6), Tanh("f"))),
    (card.test_pool_gradient, (AvgPool("p", window=2, stride=3), (3, 12, 10), Relu("f"))),
    (card.test_pool_gradient, (MaxPool("p", window=3, stride=2, ceil=True), (3, 8, 10), None)),
    (card.test_pool_gradient, (AvgPool("p", window=3, stride=2, ceil=True), (3, 8, 10), Tanh("f"))),
    (card.test_pool_gradient, (AvgPool("p", window=2, stride=4, ceil=True), (2, 9, 7), None)),
    (card.test_pool_gradient, (MaxPool("p", window=3, stride=2, padding=1), (3, 8, 10), Tanh("f"))),
    (card.test_pool_gradient, (AvgPool("p", 3, 1, True, 1, 1, count_padding=True), (2, 5, 7), LeakyRelu("f", 0.3))),
    (card.test_transpose, (33, 65)),
    (card.test_column_sums, (1500, 33, 1)),
    (card.test_column_sums, (13, 4, 1000)),
    (card.test_cross_entropy, (77, 3, 0.05)),
    (card.test_cross_entropy_with_a_teacher, (77, 3)),
    (card.test_update, (Sgd(0.1), 0.02)),
    (card.test_update, (AdamW(0.1), 0.0)),
    (check_gemm, (GemmCase(1, 1, 1),)),
    (check_gemm, (GemmCase(33, 10, 7, transpose_b=True, bias=True, activation="tanh"),)),
    (check_gemm, (GEMM,)),
    (check_gemm, (GEMM, True)),
    (check_gemm, (GemmCase(70, 12, 130, transpose_a=True, transpose_b=True, alpha=-1.5),)),
    (check_conv, (CONV,)),
    (check_conv, (CONV, True)),
    (check_conv, (ConvCase(ConvProblem(1, 8, 5, 6, 5, padding=2), (2, 1), "tanh", True),)),
    (check_conv, (ConvCase(ConvProblem(16, 7, 4, 5, 3, stride=3, padding=1), (2,), "relu"),)),
    (check_conv, (ConvCase(ConvProblem(2, 2, 3, 16, 7, padding=6), (1,)), True)),
]


@pytest.fixture(scope="module")
def cpu_emulation() -> Iterator[None]:
    """Run kernels of this file's tests on the CPU."""
    with on_the_processor():
        yield


@pytest.mark.parametrize(("check", "arguments"), CASES, ids=lambda value: getattr(value, "__name__", ""))
def test_kernels_on_the_cpu(check: Callable[..., None], arguments: tuple[Any, ...], cpu_emulation: None) -> None:
    check(*arguments)


def test_trainer_on_the_cpu(cpu_emulation: None, long_form: bool) -> None:
    """The networks share one test, because another process would compile their kernels again."""
    with ThreadPoolExecutor(2) as pool:
        for network in (OVERHANG, *[POOLED] * long_form):
            whole.test_gradients_equal_the_cpus(network, pool)
            whole.test_repeated_training_gives_the_same_bits(network, pool)
