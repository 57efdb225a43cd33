"""A batch in pieces whose activations stay in the L2 cache from layer to layer: what peers are tried with. Pure."""

from math import prod

from app.network.graph import Graph

WHOLE, PIECES = "whole", "pieces"
L2_BYTES = 50 << 20  # where the card does not say; the H100's


def piece_size(graph: Graph, images: int, itemsize: int, l2_bytes: int) -> int:
    """Images a piece, all of equal length: as many as let a layer's input and output lie in the cache together.

    The whole batch where it fits, and where no such length divides it well. itemsize: bytes of an activation's number.
    """
    most = max(prod(step.in_shape) + prod(step.out_shape) for step in graph.steps) * itemsize
    fitting = min(max(l2_bytes // most, 1), images)
    size = max(size for size in range(1, fitting + 1) if images % size == 0)
    return size if 4 * size >= fitting else images
