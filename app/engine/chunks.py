"""Cut a batch into chunks. ``gpu.py`` rounds the chunk size up, or halves it where memory is short."""

from collections.abc import Iterator

STREAMS = 4  # chunks in flight at once
LARGEST_CHUNK = 4096  # images; larger chunks gain nothing


def default_chunk(batch: int) -> int:
    """Return the default images per chunk: a fifth of the batch, which fills the GPU and hides the copies."""
    return min(max(-(-batch // 5), 1), LARGEST_CHUNK)


def chunk_size(asked: int | None, batch: int, *, streamed: bool = False) -> int:
    """Return images per chunk: ``asked`` or the default, at most the batch.

    streamed: more batches follow, so the first chunk need not be early and fewer, larger chunks are better.
    """
    equal = -(-batch // -(-batch // LARGEST_CHUNK))
    return min(asked or (equal if streamed else default_chunk(batch)), batch)


def pieces(count: int, chunk: int) -> Iterator[slice]:
    """Yield a batch's chunks as slices. The first and the last have half of ``chunk`` images, the others equal lengths.

    The ends are short because nothing overlaps the first chunk's copy or the last chunk's kernels.
    """
    if count <= chunk:
        yield slice(0, count)
        return
    half = -(-chunk // 2)
    yield slice(0, half)
    yield from equal_pieces(half, count - half, chunk)
    yield slice(count - half, count)


def equal_pieces(start: int, stop: int, chunk: int) -> Iterator[slice]:
    """Yield the fewest slices of at most ``chunk`` images that cover start to stop; lengths differ by one at most."""
    count, many = stop - start, -(-(stop - start) // chunk)
    for i in range(many):
        yield slice(start + count * i // many, start + count * (i + 1) // many)
