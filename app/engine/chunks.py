"""Cut a batch into chunks. ``gpu.py`` rounds its size up, or halves it where memory is short."""

from collections.abc import Iterator

STREAMS = 4  # chunks in flight at once
LARGEST_CHUNK = 4096  # images; larger chunks gain nothing


def default_chunk(batch: int) -> int:
    """Return images per chunk: a fifth of the batch fills the card and hides its copies."""
    return min(max(-(-batch // 5), 1), LARGEST_CHUNK)


def chunk_size(asked: int | None, batch: int, *, streamed: bool = False) -> int:
    """Return images per chunk: ``asked`` or the default, and never more than the batch has.

    streamed: the batch is one of many passes; its first chunk need not come early, and fewer calls are better.
    """
    equal = -(-batch // -(-batch // LARGEST_CHUNK))
    return min(asked or (equal if streamed else default_chunk(batch)), batch)


def pieces(count: int, chunk: int) -> Iterator[slice]:
    """Cut a batch into chunks. The first and the last have half of ``chunk``, the others are of equal length.

    The ends are short because nothing runs beside the first chunk's copy, nor beside the last one's kernels.
    """
    if count <= chunk:
        yield slice(0, count)
        return
    half = -(-chunk // 2)
    yield slice(0, half)
    yield from equal_pieces(half, count - half, chunk)
    yield slice(count - half, count)


def equal_pieces(start: int, stop: int, chunk: int) -> Iterator[slice]:
    """Cut start to stop into as few chunks as possible; their lengths differ by one image at most."""
    count, many = stop - start, -(-(stop - start) // chunk)
    for i in range(many):
        yield slice(start + count * i // many, start + count * (i + 1) // many)
