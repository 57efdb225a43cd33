"""Choose tile sizes and the layout of shared memory for the kernels of ``include/warpgroup_convolution.cuh``."""

from collections.abc import Callable, Iterable, Iterator
from math import inf, prod

from app.base.frozen import Frozen
from app.kernels.plain_problems import ITEMSIZE
from app.kernels.problems import ConvPairProblem, ConvProblem
from app.kernels.variant import Unfit, ceil_div

TILE = 64  # maps per tensor-core product
STEP_BYTES = TILE * 16 * 2  # of one float16 part of the filters of a k step
WORD_BYTES = 4 * 128  # of the metadata of two sparse k steps
SHARED = 227 << 10  # most bytes of shared memory per block
ROWS_OF_PIXELS = (5, 8, 10, 12, 16, 20, 24, 32)  # rows of eight pixels per tile: the products that wgmma.cuh defines
# Warpgroups of a block → most sums that a thread holds without spilling.
MOST_SUMS = {1: 160, 2: 128, 3: 96, 4: 40, 5: 40}
# Warpgroups of a block → relative time: few warpgroups hide little of each other's latency.
RELATIVE_TIME = {1: 1.35, 2: 1.05, 3: 1.0, 4: 0.97, 5: 0.98}
STREAMED_TIME = 1.2  # relative time with streamed filters: all warpgroups wait for the slowest
WAIT_CLOCKS, STORE_CLOCKS = 30, 4  # clock cycles to wait for products, and to store a row of eight pixels
LEAST_USE = 0.3  # least share of a tile's products that the layer needs; below, mma is faster
MMA_USE = 0.5  # mma is as fast as tiles with this share: whole kernels of fa19 and k7 on an H100
PARTIAL_STEPS = 8  # most k steps that the tensor cores sum before sums are added in the usual way
MOST_UNROLLED = 64  # most k steps that the kernel unrolls; with more, sparse kernels wait after each stage
STAGES = (8, 6, 4, 3)  # numbers of stages to try for a ring of filters


class WarpgroupConvolution(Frozen):
    """The sizes of a convolution of maps in shared memory. rows, columns: pixels of the result that pooling reads.

    padded_width: map width with padding. parts, weight_parts: how many float16 represent a number of the maps, of the
    filters. sparse: the filters are 2:4 sparse, so a k step covers 32 channels instead of 16, with as many weights.
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
    sparse: bool = False

    @classmethod
    def of_layer(cls, layer: ConvProblem, whole: ConvProblem | ConvPairProblem) -> "WarpgroupConvolution":
        """Return the convolution of a layer. whole: the kernel's problem, the layer or a pair that ends with it."""
        sizes = layer.channels, layer.width + 2 * layer.padding, layer.maps, layer.kernel, layer.stride
        parts = whole.activation_parts, whole.weight_parts
        return cls(*sizes, *size_read_by_pooling(layer), layer.pool, *parts, whole.sparse)

    @property
    def planes(self) -> int:
        """Return the number of planes of eight channels that the padded maps consist of."""
        return ceil_div(self.channels, 8) if self.sparse else 2 * ceil_div(self.channels, 16)

    @property
    def run_steps(self) -> int:
        """Return the number of k steps for one tap; for sparse filters, for one column of taps."""
        return ceil_div(self.kernel * self.planes, 4) if self.sparse else self.planes // 2

    @property
    def steps(self) -> int:
        """Return the number of k steps for all taps."""
        return self.kernel * self.run_steps * (1 if self.sparse else self.kernel)

    @property
    def padded_maps(self) -> int:
        """Return the number of result maps, rounded up to whole tiles."""
        return ceil_div(self.maps, TILE) * TILE

    @property
    def factor_bytes(self) -> int:
        """Return the bytes of shared memory for a float32 factor and bias per map."""
        return 8 * self.padded_maps

    def stage_bytes(self, steps: int) -> int:
        """Return the bytes of 64 maps' filters for ``steps`` k steps: both halves if split, metadata if sparse."""
        return self.weight_parts * steps * STEP_BYTES + ceil_div(steps, 2) * WORD_BYTES * self.sparse

    @property
    def utilisation(self) -> float:
        """Return the convolution's products, also those of zero weights, ÷ those that its padded tiles compute."""
        tiles = 16 * self.steps, self.padded_maps, ceil_div(self.columns, 8) * 8
        return self.channels * self.kernel**2 * self.maps * self.columns / prod(tiles)

    def refusal_reason(self) -> str | None:
        """Return why no tiles suit the convolution, or None."""
        if self.pool > 2:
            return "pools at most 2 x 2 pixels"
        if self.sparse and self.weight_parts > 1:
            return "serves sparse weights that float16 holds"
        if self.utilisation < LEAST_USE:
            return f"serves products that fill {LEAST_USE:.0%} of its tiles of {TILE} maps, 16 channels and 8 pixels"
        return None

    def input_rows_for(self, tile_rows: int) -> int:
        """Return the number of input rows that ``tile_rows`` result rows need."""
        return (tile_rows - 1) * self.stride + self.kernel

    def maps_bytes(self, height: int, tile_rows: int) -> int:
        """Return the bytes of maps of ``height`` rows (one half if split), and of what tiles read beyond them."""
        phase_bytes = ceil_div(self.padded_width, self.stride) * 16
        line_bytes = self.stride * phase_bytes
        last_column = ceil_div(self.columns, 8) * 8 - 1 + (self.kernel - 1) // self.stride
        ends = (self.stride - 1) * phase_bytes + (last_column + 1) * 16
        if self.sparse:  # a row of all planes lies together, and the last step of a tile's last row ends below
            last_line = (tile_rows - 1) * self.stride * self.planes + 4 * self.run_steps - 1
            return max(last_line * line_bytes + ends, height * self.planes * line_bytes)
        last_line = self.input_rows_for(tile_rows) - 1
        return (self.planes - 1) * height * line_bytes + max(last_line * line_bytes + ends, height * line_bytes)


class Tiles(Frozen):
    """How a convolution is divided into tiles. warpgroups: number per block; each has its own maps in shared memory.

    rows: pixel rows per tile. chunks: tiles per band of an image, which a warpgroup computes one after another.
    """

    warpgroups: int
    rows: int
    chunks: int

    def check(self, convolution: WarpgroupConvolution) -> None:
        """Raise Unfit if the kernel cannot compute the convolution with these tiles."""
        if self.warpgroups not in MOST_SUMS or self.rows not in ROWS_OF_PIXELS or self.rows % convolution.pool:
            raise Unfit("no product of so many rows of pixels, or no whole windows in it")
        if 4 * self.rows * convolution.parts > MOST_SUMS[self.warpgroups]:
            raise Unfit(f"there are no registers for {self.rows} rows in each of {self.warpgroups} warpgroups")


class FilterRing(Frozen):
    """The layout of the filters in shared memory: all at once, or streamed through a ring of stages.

    staged: whether shared memory also collects the results. stage_steps: k steps per stage. shared_bytes: of the whole
    block. filter_elements: number of float16 in the packed filters.
    """

    staged: bool
    streamed: bool
    sparse: bool
    stages: int
    stage_steps: int
    shared_bytes: int
    filter_elements: int

    @classmethod
    def choose(cls, others: int, results: int, convolution: WarpgroupConvolution) -> "FilterRing":
        """Choose a layout if others use ``others`` bytes of shared memory. results: bytes to collect results in, or 0.

        Results are collected if that does not change whether all filters fit at once. A stage has as many k steps as
        the tensor cores may sum, or fewer if a ring then fits. It has whole taps; if sparse, columns or part of one.
        """
        alone = cls._fit_stages(False, others + convolution.factor_bytes, convolution)
        staged = cls._fit_stages(True, others + results + convolution.factor_bytes, convolution) if results else alone
        return staged if staged.shared_bytes <= SHARED and staged.streamed == alone.streamed else alone

    @classmethod
    def _fit_stages(cls, staged: bool, others: int, convolution: WarpgroupConvolution) -> "FilterRing":
        steps, run = convolution.steps, convolution.run_steps
        counts = [n for n in range(steps, 0, -1) if steps % n == 0 and n % run == 0]
        counts += [n for n in range(run - 1, 0, -1) if run % n == 0 and convolution.sparse]
        counts = [n for n in counts if n <= PARTIAL_STEPS] or counts[-1:]
        tiles = convolution.padded_maps // TILE

        def make_ring(streamed: bool, stages: int, steps_each: int) -> "FilterRing":
            stage = convolution.stage_bytes(steps_each)
            packed = tiles * (steps // steps_each) * stage
            shared = others + (ceil_div(stages * (stage + 12), 16) * 16 if streamed else packed + 16)
            return cls(staged, streamed, convolution.sparse, stages, steps_each, shared, packed // 2)

        resident = make_ring(False, 1, counts[0])
        if resident.shared_bytes <= SHARED:
            return resident
        rings = [make_ring(True, stages, n) for n in counts for stages in STAGES]
        return next((ring for ring in rings if ring.shared_bytes <= SHARED), rings[-1])

    def defines(self) -> dict[str, str | int]:
        """Return the compile-time constants that describe the layout of the filters."""
        return {
            "STAGED": int(self.staged),
            "STREAMED": int(self.streamed),
            "STAGES": self.stages,
            "STAGE_STEPS": self.stage_steps,
            "SPARSE": int(self.sparse),
        }


def size_read_by_pooling(problem: ConvProblem) -> tuple[int, int]:
    """Return the rows and columns of the convolution's results that pooling reads."""
    rows, columns = (
        min(size, windows * problem.pool)
        for size, windows in zip(problem.conv_output_size, problem.pooled_size, strict=True)
    )
    return rows, columns


def collected_result_bytes(problem: ConvProblem) -> int:
    """Return the bytes of an image's results; 0 unless they are a multiple of 16, as bulk copies require."""
    size = problem.maps * prod(problem.pooled_size) * ITEMSIZE[problem.output_dtype]
    return 0 if size % 16 else size


def estimated_clocks(convolution: WarpgroupConvolution, tiles: Tiles, ring: FilterRing) -> float:
    """Roughly estimate a warpgroup's clocks for a band of an image, to rank ``tiles``. ring: layout of the filters."""
    products = convolution.steps * (convolution.parts + convolution.weight_parts - 1)
    one_by_one = ring.streamed or convolution.parts == 2 or (convolution.sparse and convolution.steps > MOST_UNROLLED)
    waits = convolution.steps // ring.stage_steps if one_by_one else 1
    # Clocks of a product of 8 x rows pixels: the tensor cores', or those of reading both operands.
    reads = 16 + (4 if convolution.sparse else 2) * tiles.rows
    stores = STORE_CLOCKS * tiles.rows * (1 if ring.staged else 3)
    clocks = max(4 * tiles.rows, reads) * products + WAIT_CLOCKS * waits + stores
    across = ceil_div(convolution.columns, 8) * convolution.padded_maps // TILE
    return clocks * tiles.chunks * across * RELATIVE_TIME[tiles.warpgroups] * (STREAMED_TIME if ring.streamed else 1.0)


def beats_dense(dense: WarpgroupConvolution, dense_clocks: float, sparse_clocks: float) -> bool:
    """Return whether sparse wgmma is estimated to be faster than the dense kernel: wgmma, or mma if wgmma fits badly.

    dense: the same convolution with dense filters. dense_clocks, sparse_clocks: estimates for wgmma.
    """
    return sparse_clocks < dense_clocks * (1.0 if dense.utilisation >= LEAST_USE else dense.utilisation / MMA_USE)


def fastest_tiles(
    fit: Callable[[Tiles], FilterRing],
    chunks: Callable[[int], Iterable[int]],
    clocks: Callable[[Tiles, FilterRing], float],
) -> tuple[Tiles, float]:
    """Return the tiles with the least estimated time, and this time in clock cycles; the smallest tiles if none fits.

    fit, chunks: as in ``fitting_tiles``. clocks: returns the estimate for tiles and their layout of filters.
    """
    timed = ((tiles, clocks(tiles, ring)) for tiles, ring in fitting_tiles(fit, chunks))
    return min(timed, key=lambda one: one[1], default=(Tiles(1, 8, 1), inf))


def fitting_tiles(
    fit: Callable[[Tiles], FilterRing], chunks: Callable[[int], Iterable[int]]
) -> Iterator[tuple[Tiles, FilterRing]]:
    """Yield all tiles that fit in shared memory, and the layout of the filters for each.

    fit: returns that layout, or raises Unfit. chunks: returns the numbers of chunks to try for a number of rows.
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
