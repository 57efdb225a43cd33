"""Choose tiles for training's products and, for long sums, the number of parts: pure functions of the sizes.

The order of an element's sum does not depend on the tile, only on the number of parts. That depends on the sizes alone,
not on the card, so results are bit-identical on every card.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

from app.kernels.variant import STATIC_SHARED_LIMIT, tiles

TYPICAL_IMAGES = 256  # images per batch, for choices made once for all batches
GEMM_SLICE = 16  # values of k in shared memory at a time
SLICES = range(8, 17)
MOST_LOADS = {16: 68, 32: 36, 64: 32}  # sums per thread → most elements of a slice per thread: registers are scarce
MOST_PARTS = 1024
LEAST_PART = 64  # values of k per part
# The card to fill, and estimated costs on it, in multiply-adds of one multiprocessor.
MULTIPROCESSORS = 132
FULL = 256  # threads that keep a multiprocessor busy
AROUND = 32  # a block's beginning and end take as long as so many values of k
SUM_LAUNCH = 400_000
SUM_ELEMENT = 0.65


@dataclass(frozen=True)
class Tile:
    """A block's tile of bm x bn elements; each thread computes tm x tn of them."""

    bm: int
    bn: int
    tm: int
    tn: int

    @property
    def threads(self) -> int:
        """Number of threads per block."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def lanes(self) -> int:
        """Columns of threads in a warp: the squarest shape with whole warps per block; 0 if there is none."""
        down, across = self.bm // self.tm, self.bn // self.tn
        return next((n for n in (8, 4, 16, 2, 32, 1) if across % n == 0 and down % (32 // n) == 0), 0)

    @property
    def fits(self) -> bool:
        """Whether a block has whole warps, not too many, and its loads fit its registers and shared memory."""
        size = self.bm + self.bn
        shared = 2 * 4 * SLICES[-1] * (size + 8)
        few = size * SLICES[-1] <= self.threads * MOST_LOADS[self.tm * self.tn]
        return self.lanes > 0 and self.threads <= FULL and few and shared <= STATIC_SHARED_LIMIT

    @property
    def defines(self) -> dict[str, str | int]:
        """The sizes as compile-time constants of the kernels."""
        return {"BM": self.bm, "BN": self.bn, "TM": self.tm, "TN": self.tn, "LANES_N": self.lanes}

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the number of blocks along rows and along columns."""
        return tiles(rows, self.bm), tiles(columns, self.bn)


SIDES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
ALL_TILES = tuple(
    tile
    for tile in (Tile(bm, bn, tm, tn) for bm, bn, tm, tn in product(SIDES, SIDES, (4, 8), (4, 8)))
    if tile.bm % tile.tm == 0 and tile.bn % tile.tn == 0 and tile.fits
)
# Few: sizes come at run time, and each tile is a separate kernel to compile.
GEMM_TILES = (Tile(128, 64, 8, 8), Tile(64, 64, 8, 4), Tile(32, 32, 4, 4), Tile(64, 16, 4, 4))


@dataclass(frozen=True)
class Split:
    """A tile, and the number of parts that sums are cut into."""

    tile: Tile
    parts: int


@cache
def split(rows: int, columns: int, depth: int, candidates: tuple[Tile, ...] = ALL_TILES) -> Split:
    """Return the tile and the number of parts with the least estimated cost for sums of ``depth`` products."""
    choices = (Split(tile, n) for tile in candidates for n in _parts(tile, rows, columns, depth))
    return min(choices, key=lambda choice: _cost(choice, rows, columns, depth))


@cache
def whole(rows: int, columns: int, depth: int) -> Tile:
    """Return the tile with the least estimated cost for sums in one piece."""
    return min(ALL_TILES, key=lambda tile: _cost(Split(tile, 1), rows, columns, depth))


def part_length(depth: int, parts: int) -> int:
    """Return the values of k per part, a multiple of the slice; the last parts have fewer, or none."""
    return max(tiles(tiles(depth, parts), GEMM_SLICE), 1) * GEMM_SLICE


def slice_depth(inner: int, depth: int) -> int:
    """Return how many values of k to hold in shared memory at a time.

    It is the largest slice that divides ``inner``, the values per tap, else the one that pads ``depth`` products least.
    """
    together = [size for size in SLICES if inner % size == 0]
    return max(together) if together else min(SLICES, key=lambda size: (tiles(depth, size) * size, -size))


def sum_groups(parts: int) -> int:
    """Return how many threads share an element's parts."""
    return 8 if parts >= 32 else 1


def _parts(tile: Tile, rows: int, columns: int, depth: int) -> set[int]:
    """Numbers of parts to try: one, or enough to fill a card once, twice or four times."""
    threads = tile.threads * tiles(rows, tile.bm) * tiles(columns, tile.bn)
    most = max(min(depth // LEAST_PART, MOST_PARTS), 1)
    return {1} | {min(tiles(MULTIPROCESSORS * FULL * times, threads), most) for times in (1, 2, 4)}


def _cost(choice: Split, rows: int, columns: int, depth: int) -> float:
    """Estimated multiply-adds of the busiest multiprocessor, with delays by loads and reads of shared memory."""
    tile, (down, across) = choice.tile, choice.tile.blocks(rows, columns)
    blocks = tiles(down * across * choice.parts, MULTIPROCESSORS)
    idle = max(FULL / (blocks * tile.threads), 1)
    delays = 1 + (tile.tm + tile.tn) / (tile.tm * tile.tn) + 6 * (tile.bm + tile.bn) / (tile.bm * tile.bn)
    cost = blocks * tile.bm * tile.bn * (tiles(depth, choice.parts) + AROUND) * delays * idle
    return cost if choice.parts == 1 else cost + SUM_LAUNCH + SUM_ELEMENT * choice.parts * rows * columns
