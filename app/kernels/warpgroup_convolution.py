"""Choose tiles and shared memory for ``include/warpgroup_convolution.cuh``, and pack its filters."""

from collections.abc import Callable, Iterable, Iterator
from math import prod

import numpy as np

from app.base.frozen import Frozen
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import ConvProblem
from app.kernels.variant import Unfit, ceil_div

TILE = 64  # maps of a product
STEP_BYTES = TILE * 16 * 2  # filters of a k step, one part
SHARED = 227 << 10  # most bytes of shared memory per block
ROWS_OF_PIXELS = (5, 8, 10, 12, 16, 20, 24, 32)  # of a tile, eight pixels each: products that wgmma.cuh defines
# Warpgroups of a block → most sums that a thread holds without spilling.
MOST_SUMS = {1: 160, 2: 128, 3: 96, 4: 40, 5: 40}
# The same → relative time: few hide little of each other's work.
RELATIVE_TIME = {1: 1.35, 2: 1.05, 3: 1.0, 4: 0.97, 5: 0.98}
STREAMED_TIME = 1.2  # relative time where filters stream: all warpgroups wait for the slowest
WAIT_CLOCKS, STORE_CLOCKS = 30, 4  # of a wait for products; of storing a row of eight pixels
LEAST_USE = 0.3  # share of a tile's products that must count, else mma serves better
PARTIAL_STEPS = 8  # most k steps that the tensor cores sum before sums are added in the usual way
STAGES = (8, 6, 4, 3)  # of a ring of filters


class WarpgroupConvolution(Frozen):
    """A convolution of maps that lie in shared memory. rows, columns: pixels of the result that pooling reads.

    padded_width: map width with padding. parts, weight_parts: number of float16 per number of the maps, of the filters.
    """

    channels: int
    padded_width: int
    maps: int
    kernel: int
    stride: int
    rows: int
    columns: int
    pool: int
    parts: int
    weight_parts: int

    @property
    def k_steps(self) -> int:
        """Return the number of k steps, of 16 channels each, per tap."""
        return ceil_div(self.channels, 16)

    @property
    def padded_maps(self) -> int:
        """Return the number of result maps, rounded up to whole tiles."""
        return ceil_div(self.maps, TILE) * TILE

    @property
    def factor_bytes(self) -> int:
        """Return the bytes of shared memory for factors and biases."""
        return 8 * self.padded_maps

    @property
    def filter_elements(self) -> int:
        """Return the number of float16 in all parts of the packed filters."""
        return self.weight_parts * self.padded_maps * self.kernel**2 * self.k_steps * 16

    def refusal_reason(self) -> str | None:
        """Return why no tiles suit the convolution, or None."""
        if self.pool > 2:
            return "pools at most 2 x 2 pixels"
        tiles = (16 * self.k_steps, self.padded_maps, ceil_div(self.columns, 8) * 8)
        if self.channels * self.maps * self.columns / prod(tiles) < LEAST_USE:
            return f"serves products that fill {LEAST_USE:.0%} of its tiles of {TILE} maps, 16 channels and 8 pixels"
        return None

    def input_rows_for(self, tile_rows: int) -> int:
        """Return the number of input rows that ``tile_rows`` result rows need."""
        return (tile_rows - 1) * self.stride + self.kernel

    def maps_bytes(self, height: int, tile_rows: int) -> int:
        """Return the bytes, for one float16 part, of maps of ``height`` rows, read by tiles of ``tile_rows`` rows."""
        phase_bytes = ceil_div(self.padded_width, self.stride) * 16
        row_bytes = self.stride * phase_bytes
        last_column = ceil_div(self.columns, 8) * 8 - 1 + (self.kernel - 1) // self.stride
        last_row = (self.input_rows_for(tile_rows) - 1) * row_bytes
        ends = last_row + (self.stride - 1) * phase_bytes + (last_column + 1) * 16
        return (2 * self.k_steps - 1) * height * row_bytes + max(ends, height * row_bytes)


class Tiles(Frozen):
    """The tiles of a convolution. warpgroups: number per block; each keeps its input maps in shared memory.

    rows: pixel rows per tile. chunks: tiles per band of an image, which a warpgroup computes one after another.
    """

    warpgroups: int
    rows: int
    chunks: int

    def check(self, convolution: WarpgroupConvolution) -> None:
        """Raise Unfit if the kernel has no such tiles for the convolution."""
        if self.warpgroups not in MOST_SUMS or self.rows not in ROWS_OF_PIXELS or self.rows % convolution.pool:
            raise Unfit("no product of so many rows of pixels, or no whole windows in it")
        if 4 * self.rows * convolution.parts > MOST_SUMS[self.warpgroups]:
            raise Unfit(f"there are no registers for {self.rows} rows in each of {self.warpgroups} warpgroups")


class FilterRing(Frozen):
    """The filters' place in shared memory: all filters at once, or a ring of stages with some taps each.

    staged: whether shared memory also collects the results.
    """

    staged: bool
    streamed: bool
    stages: int
    stage_taps: int
    shared_bytes: int

    @classmethod
    def choose(cls, others: int, results: int, convolution: WarpgroupConvolution) -> "FilterRing":
        """Choose a place beside ``others`` bytes of shared memory. results: bytes to collect results in; 0 for none.

        Results are collected if that does not change whether all filters fit at once. A stage has as many taps as the
        tensor cores may sum; in a ring, as few as leave room for its stages.
        """
        alone = cls._arrange(False, others + convolution.factor_bytes, convolution)
        staged = cls._arrange(True, others + results + convolution.factor_bytes, convolution) if results else alone
        return staged if staged.shared_bytes <= SHARED and staged.streamed == alone.streamed else alone

    @classmethod
    def _arrange(cls, staged: bool, others: int, convolution: WarpgroupConvolution) -> "FilterRing":
        taps, steps = convolution.kernel**2, convolution.k_steps
        tap_bytes = convolution.weight_parts * steps * STEP_BYTES
        counts = [n for n in range(taps, 0, -1) if taps % n == 0 and (n * steps <= PARTIAL_STEPS or n == 1)]
        resident = others + 2 * convolution.filter_elements + 16
        if resident <= SHARED:
            return cls(staged, False, 1, counts[0], resident)
        rings = [
            (n, stages, others + ceil_div(stages * (n * tap_bytes + 12), 16) * 16) for n in counts for stages in STAGES
        ]
        stage_taps, stages, size = next((ring for ring in rings if ring[2] <= SHARED), rings[-1])
        return cls(staged, True, stages, stage_taps, size)

    def defines(self) -> dict[str, str | int]:
        """Return the compile-time constants that describe the place of the filters."""
        return {
            "STAGED": int(self.staged),
            "STREAMED": int(self.streamed),
            "STAGES": self.stages,
            "STAGE_TAPS": self.stage_taps,
        }


def size_read_by_pooling(problem: ConvProblem) -> tuple[int, int]:
    """Return the rows and columns of the convolution's results that pooling reads."""
    rows, columns = (
        min(size, windows * problem.pool)
        for size, windows in zip(problem.conv_output_size, problem.pooled_size, strict=True)
    )
    return rows, columns


def collected_result_bytes(problem: ConvProblem) -> int:
    """Return the bytes of an image's results; 0 if they do not divide into pieces of 16 bytes, which copies require."""
    size = problem.maps * prod(problem.pooled_size) * ITEMSIZE[problem.output_dtype]
    return 0 if size % 16 else size


def estimated_clocks(convolution: WarpgroupConvolution, tiles: Tiles, ring: FilterRing) -> float:
    """Estimate the clock cycles of ``tiles.chunks`` chunks. The estimate ranks tiles; it predicts no absolute time."""
    taps = convolution.kernel**2
    products = taps * convolution.k_steps * (convolution.parts + convolution.weight_parts - 1)
    waits = taps // ring.stage_taps if ring.streamed or convolution.parts == 2 else 1
    # Clocks of a product of 8 x rows pixels: the tensor cores', or those of reading both operands.
    stores = STORE_CLOCKS * tiles.rows * (1 if ring.staged else 3)
    clocks = max(4 * tiles.rows, 16 + 2 * tiles.rows) * products + WAIT_CLOCKS * waits + stores
    across = ceil_div(convolution.columns, 8) * convolution.padded_maps // TILE
    return clocks * tiles.chunks * across * RELATIVE_TIME[tiles.warpgroups] * (STREAMED_TIME if ring.streamed else 1.0)


def fitting_tiles(
    fit: Callable[[Tiles], FilterRing], chunks: Callable[[int], Iterable[int]]
) -> Iterator[tuple[Tiles, FilterRing]]:
    """Yield all tiles that fit, and the filters' place in shared memory.

    fit: returns that place, or raises Unfit. chunks: returns the numbers of chunks to try for a number of rows.
    """
    for warpgroups in MOST_SUMS:
        for rows in ROWS_OF_PIXELS:
            for count in chunks(rows):
                tiles = Tiles(warpgroups, rows, count)
                try:
                    ring = fit(tiles)
                except Unfit:
                    continue
                if ring.shared_bytes <= SHARED:
                    yield tiles, ring


def pack_core_matrices(parts: list[np.ndarray]) -> np.ndarray:
    """Pack parts (C, K, K, M) as wgmma's operand A: flat, channels and maps padded with zeros.

    Axes: (tiles of 64 maps, taps, parts, planes of 8 channels, 8 groups of maps, 8 maps, 8 channels).
    """
    channels, kernel, _, maps = parts[0].shape
    planes, tiles = 2 * ceil_div(channels, 16), ceil_div(maps, TILE)
    padded = np.zeros((len(parts), planes * 8, kernel**2, tiles * TILE), parts[0].dtype)
    padded[:, :channels, :, :maps] = np.stack(parts).reshape(len(parts), channels, -1, maps)
    axes = padded.reshape(len(parts), planes, 8, kernel**2, tiles, 8, 8)
    return np.ascontiguousarray(axes.transpose(4, 3, 0, 1, 5, 6, 2)).reshape(-1)


def pad_to_tiles(numbers: np.ndarray | None) -> np.ndarray | None:
    """Pad numbers per map with zeros to whole tiles, as float32; None stays None."""
    if numbers is None:
        return None
    return np.pad(numbers.astype(np.float32), (0, -len(numbers) % TILE))
