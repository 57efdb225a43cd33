"""Choose tiles and split-K parts for the products of training, by pure functions of the sizes.

The order in which an element is summed depends on the number of parts, not on the tile. The number depends only on the
sizes, so results are bit-identical on every GPU.
"""

from functools import cache
from itertools import product

from app.base.frozen import Frozen
from app.kernels.variant import STATIC_SHARED_LIMIT, ceil_div

TYPICAL_IMAGES = 256  # images per batch, for choices made once for all batches
GEMM_SLICE = 16  # k values in shared memory at a time
SLICES = range(8, 17)
MOST_LOADS = {16: 68, 32: 36, 64: 32}  # sums per thread → most slice elements it loads: registers are scarce
MOST_PARTS = 1024
LEAST_PART = 64  # k values per part
# The GPU to fill, and estimated costs on it, in multiply-adds of one multiprocessor.
MULTIPROCESSORS = 132
FULL = 256  # threads that keep a multiprocessor busy
AROUND = 32  # a block's prologue and epilogue cost as much as this many k values
SUM_LAUNCH = 400_000
SUM_ELEMENT = 0.65


class Tile(Frozen):
    """A block's tile of bm x bn elements, of which each thread computes tm x tn."""

    bm: int
    bn: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        """Return the number of threads per block."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def lanes_per_row(self) -> int:
        """Return the threads along a row of a warp, for the squarest warp that tiles the block; 0 if none does."""
        down, across = self.bm // self.tm, self.bn // self.tn
        return next((n for n in (8, 4, 16, 2, 32, 1) if across % n == 0 and down % (32 // n) == 0), 0)

    @property
    def is_feasible(self) -> bool:
        """Return whether the tile has whole warps, not too many, and loads that fit registers and shared memory."""
        size = self.bm + self.bn
        shared = 2 * 4 * SLICES[-1] * (size + 8)
        few = size * SLICES[-1] <= self.threads * MOST_LOADS[self.tm * self.tn]
        return self.lanes_per_row > 0 and self.threads <= FULL and few and shared <= STATIC_SHARED_LIMIT

    @property
    def defines(self) -> dict[str, str | int]:
        """Return the compile-time constants of the kernels for this tile."""
        return {"BM": self.bm, "BN": self.bn, "TM": self.tm, "TN": self.tn, "LANES_N": self.lanes_per_row}

    def block_counts(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of blocks along rows and columns."""
        return ceil_div(rows, self.bm), ceil_div(columns, self.bn)


SIDES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
ALL_TILES = tuple(
    tile
    for tile in (Tile(bm, bn, tm, tn) for bm, bn, tm, tn in product(SIDES, SIDES, (4, 8), (4, 8)))
    if tile.bm % tile.tm == 0 and tile.bn % tile.tn == 0 and tile.is_feasible
)
# Few, because each tile is compiled as a separate kernel at run time.
GEMM_TILES = (Tile(128, 64, 8, 8), Tile(64, 64, 8, 4), Tile(32, 32, 4, 4), Tile(64, 16, 4, 4))


class SplitTile(Frozen):
    """A tile, and the number of split-K parts."""

    tile: Tile
    parts: int


@cache
def best_split(rows: int, columns: int, depth: int, candidates: tuple[Tile, ...] = ALL_TILES) -> SplitTile:
    """Return the tile and number of parts of least estimated cost for rows x columns sums of ``depth`` products."""
    choices = (SplitTile(tile, n) for tile in candidates for n in _candidate_part_counts(tile, rows, columns, depth))
    return min(choices, key=lambda choice: _estimated_cost(choice, rows, columns, depth))


@cache
def best_tile(rows: int, columns: int, depth: int) -> Tile:
    """Return the tile with the least estimated cost for rows x columns unsplit sums of ``depth`` products."""
    return min(ALL_TILES, key=lambda tile: _estimated_cost(SplitTile(tile, 1), rows, columns, depth))


def split_k_length(depth: int, parts: int) -> int:
    """Return the number of k values per part, a multiple of GEMM_SLICE; the last parts may have fewer, or none."""
    return max(ceil_div(ceil_div(depth, parts), GEMM_SLICE), 1) * GEMM_SLICE


def choose_k_slice(inner: int, depth: int) -> int:
    """Return how many k values to keep in shared memory at a time.

    This is the largest of SLICES that divides ``inner``, the k values per tap; else the one that pads ``depth`` least.
    """
    fitting = [size for size in SLICES if inner % size == 0]
    return max(fitting) if fitting else min(SLICES, key=lambda size: (ceil_div(depth, size) * size, -size))


def threads_per_sum(parts: int) -> int:
    """Return how many threads add the split-K partial sums of one element."""
    return 8 if parts >= 32 else 1


def _candidate_part_counts(tile: Tile, rows: int, columns: int, depth: int) -> set[int]:
    """Return the numbers of split-K parts to try: one, or enough to fill the GPU once, twice or four times."""
    threads = tile.threads * ceil_div(rows, tile.bm) * ceil_div(columns, tile.bn)
    most = max(min(depth // LEAST_PART, MOST_PARTS), 1)
    return {1} | {min(ceil_div(MULTIPROCESSORS * FULL * times, threads), most) for times in (1, 2, 4)}


def _estimated_cost(choice: SplitTile, rows: int, columns: int, depth: int) -> float:
    """Return an estimate of the busiest multiprocessor's multiply-adds, including delays by memory reads."""
    tile, (down, across) = choice.tile, choice.tile.block_counts(rows, columns)
    blocks = ceil_div(down * across * choice.parts, MULTIPROCESSORS)
    idle = max(FULL / (blocks * tile.threads), 1)
    delays = 1 + (tile.tm + tile.tn) / (tile.tm * tile.tn) + 6 * (tile.bm + tile.bn) / (tile.bm * tile.bn)
    cost = blocks * tile.bm * tile.bn * (ceil_div(depth, choice.parts) + AROUND) * delays * idle
    return cost if choice.parts == 1 else cost + SUM_LAUNCH + SUM_ELEMENT * choice.parts * rows * columns
