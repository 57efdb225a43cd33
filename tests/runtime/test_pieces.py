"""How a batch is cut into chunks."""

from itertools import pairwise

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from app.runtime.session import chunk_size, default_chunk, equal_pieces, pieces


def lengths(count: int, chunk: int) -> list[int]:
    return [part.stop - part.start for part in pieces(count, chunk)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 10, 64, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 9, 10, 11, 15, 64, 65, 127, 999, 1001])
def test_pieces_cover_the_batch_in_order(count: int, chunk: int) -> None:
    parts = list(pieces(count, chunk))
    assert parts[0].start == 0 and parts[-1].stop == count
    assert all(before.stop == after.start for before, after in pairwise(parts))
    assert all(0 < length <= chunk for length in lengths(count, chunk))


def test_the_ends_are_short() -> None:
    assert lengths(10, 10) == [10]
    assert lengths(10_000, 2000) == [1000, 2000, 2000, 2000, 2000, 1000]
    assert lengths(10_001, 2000) == [1000, 1600, 1600, 1600, 1600, 1601, 1000]
    assert lengths(11, 10) == [5, 1, 5]
    assert lengths(3, 1) == [1, 1, 1]


def test_equal_pieces() -> None:
    assert [part.stop - part.start for part in equal_pieces(0, 10_000, 4096)] == [3333, 3333, 3334]
    assert list(equal_pieces(5, 6, 4)) == [slice(5, 6)]
    assert list(equal_pieces(5, 5, 4)) == []


def test_default_chunk() -> None:
    assert default_chunk(10_000) == 2000
    assert default_chunk(1) == default_chunk(5) == 1
    assert default_chunk(10**9) == 4096
    assert chunk_size(None, 10_000) == 2000 and chunk_size(None, 10_000, streamed=True) == 3334
    assert chunk_size(700, 10_000) == chunk_size(700, 10_000, streamed=True) == 700
    assert chunk_size(700, 60) == chunk_size(None, 60, streamed=True) == 60
