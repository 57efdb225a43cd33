"""Test training's matrix products: tiles and parts, compilation, and on a GPU every element against float64."""

from itertools import product
from math import prod
from pathlib import Path

import pytest

from app.cuda.compiler import ARCHITECTURES, resource_report
from app.kernels import variant
from app.kernels.problems import ConvProblem
from app.kernels.train.train import FOLDER
from app.layers import Conv2d
from app.network.definitions import NETWORKS
from app.training.gpu import tiles
from app.training.gpu.tiles import ALL_TILES, GEMM_TILES, Tile

pytest.importorskip("cupy", reason="CuPy is not installed")

from app.training.gpu import products
from tests.support.kernel_cases import architecture
from tests.support.product_cases import ConvCase, GemmCase, built, check_conv, check_gemm
from tests.support.training_device import Build, compile_all, poisoned


def network_convolutions() -> dict[str, ConvProblem]:
    found = {}
    for network in NETWORKS.values():
        shape = network.input_shape
        for layer in network.layers:
            if isinstance(layer, Conv2d):
                channels, height, width = shape
                sizes = ConvProblem(channels, height, width, layer.maps, layer.kernel, layer.stride)
                found[f"{network.name}.{layer.name}"] = sizes
            shape = layer.output_shape(shape)
    return found


CONVOLUTIONS = network_convolutions()
EACH_CONVOLUTION = pytest.mark.parametrize("sizes", CONVOLUTIONS.values(), ids=CONVOLUTIONS)


@pytest.mark.parametrize("tile", {*ALL_TILES, *GEMM_TILES}, ids=str)
def test_tiles_satisfy_the_kernels_assertions(tile: Tile) -> None:
    """These are the assertions of train_product.cuh, at most 48 KB of shared memory, and whole warps."""
    assert tile.is_feasible and tile.threads % 32 == 0 and 32 <= tile.threads <= 256
    assert tile.bm % tile.tm == tile.bn % tile.tn == tile.tm % 4 == tile.tn % 4 == 0
    assert (tile.bn // tile.tn) % tile.lanes_per_row == 0 and (tile.bm // tile.tm) % (32 // tile.lanes_per_row) == 0
    assert 2 * tiles.SLICES[-1] * (tile.bm + 4 + tile.bn + 4) * 4 <= 48 << 10


@pytest.mark.parametrize("depth", [1, 63, 64, 1000, 3_000_000])
def test_parts_cover_long_sums_exactly(depth: int) -> None:
    sizes = product([1, 3, 10, 25, 64, 800, 5000], [1, 4, 12, 64, 100, 100_000])
    for (rows, columns), candidates in product(sizes, (ALL_TILES, GEMM_TILES)):
        choice = tiles.best_split(rows, columns, depth, candidates)
        assert 1 <= choice.parts <= max(depth // 64, 1) and choice.tile in candidates
        length = tiles.split_k_length(depth, choice.parts)
        assert length % tiles.GEMM_SLICE == 0 and choice.parts * length >= depth
        assert length < variant.ceil_div(depth, choice.parts) + tiles.GEMM_SLICE
        assert tiles.best_tile(rows, columns, depth) in ALL_TILES


@EACH_CONVOLUTION
def test_convolutions_occupy_the_gpu_with_little_padding(sizes: ConvProblem) -> None:
    pixels, inputs = (
        tiles.TYPICAL_IMAGES * prod(sizes.conv_output_size),
        tiles.TYPICAL_IMAGES * sizes.height * sizes.width,
    )
    cut = tiles.best_split(sizes.reduction_length, sizes.maps, pixels)
    for tile, parts, rows, columns in (
        (tiles.best_tile(sizes.maps, pixels, sizes.reduction_length), 1, sizes.maps, pixels),
        (tiles.best_tile(sizes.channels, inputs, sizes.kernel**2 * sizes.maps), 1, sizes.channels, inputs),
        (cut.tile, cut.parts, sizes.reduction_length, sizes.maps),
    ):
        down, across = tile.block_counts(rows, columns)
        assert down * across * parts * tile.threads >= tiles.MULTIPROCESSORS * 128
        if rows > 1:
            assert down * tile.bm * across * tile.bn <= 2.7 * rows * columns


@pytest.mark.parametrize(
    ("inner", "depth", "expected"),
    [(32, 800, 16), (64, 1600, 16), (12, 300, 12), (24, 600, 12), (1, 25, 13), (1, 49, 10), (4, 196, 14), (1, 1, 8)],
)
def test_slices_divide_a_tap_or_pad_little(inner: int, depth: int, expected: int) -> None:
    assert tiles.choose_k_slice(inner, depth) == expected


def test_long_sums_have_many_parts_and_threads() -> None:
    assert [tiles.threads_per_sum(parts) for parts in (1, 2, 31, 32, 1024)] == [1, 1, 1, 8, 8]
    assert tiles.best_split(800, 64, 16384).parts > 8


def test_products_compile_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_form: bool) -> None:
    """All kernels compile for two architectures; in the long form, one more for each other architecture."""
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path))
    jobs: list[tuple[Build, str]] = []
    for arch, name in (("sm_75", "minidnn86.conv2"), ("sm_90a", "lenet5.conv2")):
        whole_one = GemmCase(99, 9, 9, transpose_a=True, bias=True, activation="relu")
        conv = ConvCase(CONVOLUTIONS[name], (1,), "tanh", True)
        jobs += [(build, arch) for build in built([conv, whole_one, GemmCase(256, 128, 1024, transpose_b=True)], arch)]
    assert len({name for (name, _), _ in jobs}) == 5
    others = [arch for arch in ARCHITECTURES if long_form and arch not in ("sm_75", "sm_90a")]
    jobs += [(build, arch) for (build, _), arch in zip(list(jobs), others, strict=False)]
    for name, cubin in compile_all(jobs):
        assert cubin.startswith(b"\x7fELF") and f"\0{name}\0".encode() in cubin


@pytest.mark.parametrize(
    ("case", "arch"),
    [(GemmCase(4096, 1000, 784), "sm_80"), (ConvCase(CONVOLUTIONS["minidnn86.conv1"], (1,), "tanh", True), "sm_90a")],
    ids=["most sums", "most gathered"],
)
def test_no_register_is_spilled(case: GemmCase | ConvCase, arch: str) -> None:
    """These kernels need the most registers per thread."""
    name, constants = built([case], arch)[0]
    report = resource_report(FOLDER / f"train_{name}.cu", dict(constants), arch)
    assert " 0 bytes spill stores" in report, report


# --- on a GPU, with outputs that begin as NaN; two runs give the same bits

SMALL_CONV = ConvCase(ConvProblem(3, 9, 7, 10, 3, stride=2), (3, 1), "relu", True)
ON_CARD = [
    SMALL_CONV,
    *(ConvCase(ConvProblem(*sizes), (1,)) for sizes in [(1, 1, 1, 1, 1), (2, 5, 5, 3, 5), (5, 5, 9, 70, 5)]),
    *(
        ConvCase(ConvProblem(channels, 13, 10, maps, (1, 3, 4)[(stride + at) % 3], stride), (2, 1), "tanh", at % 2 == 0)
        for stride in (1, 2, 3)
        for at, (channels, maps) in enumerate([(1, 4), (4, 17), (16, 32), (7, 64), (33, 12)])
    ),
    *(
        ConvCase(ConvProblem(channels, height, 10, maps, 4, stride, padding=padding), (2, 1), "tanh", at % 2 == 0)
        for stride in (1, 2, 3)
        for at, (channels, height, maps, padding) in enumerate([(1, 13, 4, 1), (7, 1, 17, 3), (16, 9, 32, 2)])
    ),
    ConvCase(ConvProblem(1, 28, 28, 6, 5, padding=2), (256, 13), "tanh", True),
    ConvCase(ConvProblem(1, 28, 28, 32, 5), (256, 13)),
    ConvCase(ConvProblem(32, 12, 12, 64, 5), (256, 13)),
    ConvCase(ConvProblem(1, 70, 70, 12, 5), (5,)),
    ConvCase(ConvProblem(12, 33, 33, 24, 5), (5,), "sigmoid"),
    ConvCase(ConvProblem(1, 72, 72, 12, 7), (5,)),
    ConvCase(ConvProblem(12, 33, 33, 24, 7), (5,)),
    ConvCase(ConvProblem(1, 86, 86, 4, 7), (5,), "relu", True),
    ConvCase(ConvProblem(4, 40, 40, 16, 7), (5,), "relu", True),
]
SMALL_GEMM = GemmCase(33, 10, 300, transpose_a=True, bias=True, activation="relu", alpha=0.5, beta=2.0)
GEMMS = [
    SMALL_GEMM,
    *(
        GemmCase(m, n, k, transpose_a, transpose_b)
        for m, n, k in [(1, 1, 1), (7, 10, 33), (65, 31, 129), (256, 128, 1024), (130, 1000, 17), (4096, 10, 100)]
        for transpose_a in (False, True)
        for transpose_b in (False, True)
    ),
    *(
        GemmCase(67, 13, k, bias=bias, activation=activation, alpha=alpha, beta=beta)
        for k in (5, 513)
        for bias, activation in ((False, ""), (True, "relu"), (True, "tanh"), (False, "sigmoid"))
        for alpha, beta in ((1.0, 0.0), (0.0, 1.0), (-0.5, 0.25))
    ),
    GemmCase(4096, 1000, 784),
    GemmCase(784, 1000, 4096, transpose_a=True),
    GemmCase(1000, 10, 60_000, transpose_a=True),
]


@pytest.fixture(scope="module")
def compile_kernels() -> None:
    """Compile all kernels of this file in parallel."""
    compile_all([(build, architecture()) for build in built([*GEMMS, *ON_CARD], architecture())])


@pytest.fixture
def poison_workspaces(compile_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workspaces begin as NaN, each in a separate allocation, as the outputs do."""
    monkeypatch.setattr(products, "device_array", poisoned)


@pytest.mark.gpu
@pytest.mark.parametrize("case", GEMMS, ids=str)
def test_gemm_on_the_gpu(case: GemmCase, poison_workspaces: None) -> None:
    check_gemm(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ON_CARD, ids=str)
def test_convolutions_on_the_gpu(case: ConvCase, poison_workspaces: None) -> None:
    check_conv(case)


@pytest.mark.gpu
def test_nan_and_infinity_spread_as_in_the_reference(poison_workspaces: None) -> None:
    check_gemm(SMALL_GEMM, spoiled=True)
    check_conv(SMALL_CONV, spoiled=True)
