"""How shards are cut into pieces, and which images --start and --count name."""

from pathlib import Path

import numpy as np
import pytest

from app.base.errors import UserError
from app.classify.pieces import cut, windows
from app.classify.shards import Shard, open_shard
from data_tools.idx import write_idx


def shard(folder: Path, count: int, name: str = "images") -> Shard:
    write_idx(folder / name, np.zeros((count, 2, 3), np.uint8))
    return open_shard(folder / name)


@pytest.mark.parametrize(
    ("start", "count", "found"),
    [
        (0, None, [(0, 3), (0, 0), (0, 5)]),
        (2, 3, [(2, 1), (0, 0), (0, 2)]),
        (3, 5, [(3, 0), (0, 0), (0, 5)]),
        (7, None, [(3, 0), (0, 0), (4, 1)]),
        (0, 1, [(0, 1), (0, 0), (0, 0)]),
    ],
)
def test_windows(start: int, count: int | None, found: list[tuple[int, int]]) -> None:
    assert windows([3, 0, 5], start, count) == found


@pytest.mark.parametrize(("start", "count"), [(8, None), (0, 9), (5, 4)])
def test_windows_beyond_the_shards(start: int, count: int | None) -> None:
    with pytest.raises(UserError, match="beyond the 8 images"):
        windows([3, 0, 5], start, count)


def test_pieces_end_at_multiples_of_their_size(tmp_path: Path) -> None:
    """So an image is in the same piece wherever the window begins."""
    one = shard(tmp_path, 25)
    assert [(piece.first, piece.count) for piece in cut(4, one, 3, 20, 8)] == [(3, 5), (8, 8), (16, 7)]
    assert [piece.number for piece in cut(4, one, 0, 8, 8)] == [4]
    assert not [*cut(4, one, 5, 0, 8)]
    assert next(cut(0, one, 0, 8, 8)).nbytes == 8 * 6


def test_a_compressed_shard_is_one_piece(tmp_path: Path) -> None:
    (piece,) = cut(0, shard(tmp_path, 25, "images.gz"), 3, 20, 8)
    assert (piece.first, piece.count) == (3, 20)
