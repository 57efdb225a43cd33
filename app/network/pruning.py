"""Prune convolutions to 2:4 structured sparsity (app/kernels/sparsity.py); the weights that stay compensate.

A layer is a product y = x w, as in ``rounding.py``, with the same H. Removing the pair p of the four weights of an
output map, with all its other weights compensating, adds

    wₚᵀ ((H⁻¹)ₚₚ)⁻¹ wₚ

to the squared error of y: Hassibi and Stork's update (see ``rounding.py``) for two weights at once. Every four weights
lose the pair with the least error. Those that stay then get the values with the least squared error of y.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np

from app.kernels.sparsity import GROUP, KEPT, is_two_of_four
from app.layers import Conv2d
from app.network.graph import Graph
from app.network.rounding import CompensatedLayer, damped, gram_matrix, relative_error


def sparsify_layers(graph: Graph, images: np.ndarray) -> Iterator[CompensatedLayer]:
    """Prune the convolutions that read a multiple of four maps, in order; yield each that had more weights.

    images: (N, C, H, W) uint8. A layer's input uses pruned earlier layers. ``plain`` is the error if the two greatest
    weights of every four stay as they are. Equal arguments give equal bits on one machine.
    """
    for at, step in enumerate(graph.steps):
        if not isinstance(step.layer, Conv2d) or step.in_shape[0] % GROUP:
            continue
        name = step.layer.name
        filters = graph.parameters[name]
        if is_two_of_four(filters):
            continue
        w = filters.reshape(-1, filters.shape[3]).astype(np.float64)
        products = gram_matrix(graph, at, images, len(w))
        found = prune_with_compensation(w, products)
        arrays = {name: found.astype(np.float32).reshape(filters.shape)}
        graph = replace(graph, parameters={**graph.parameters, **arrays})
        error, plain = (relative_error(w, pruned, products) for pruned in (found, np.where(greatest_two(w), w, 0)))
        yield CompensatedLayer(name, arrays, error, plain)


def greatest_two(w: np.ndarray) -> np.ndarray:
    """Return which weights (inputs, outputs) are among the two greatest magnitudes of their four inputs, as bools."""
    groups = np.abs(w).reshape(-1, GROUP, w.shape[1])
    ranks = np.argsort(np.argsort(-groups, axis=1, kind="stable"), axis=1)
    return (ranks < KEPT).reshape(w.shape)


def prune_with_compensation(w: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return weights w (inputs, outputs), float64, pruned 2:4 along the inputs. products: xᵀ x (inputs, inputs)."""
    products = damped(products)
    kept = _least_error_pairs(w, np.linalg.inv(products))
    wanted, found = products @ w, np.zeros_like(w)
    for output, rows in enumerate(kept.T):
        found[rows, output] = np.linalg.solve(products[np.ix_(rows, rows)], wanted[rows, output])
    return found


def _least_error_pairs(w: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Return which weights stay if each four inputs lose the pair with the least error. inverse: H⁻¹."""
    groups = w.reshape(-1, GROUP, w.shape[1])
    at = np.arange(len(w)).reshape(-1, GROUP)
    pairs = list(combinations(range(GROUP), KEPT))
    errors = []
    for i, j in pairs:
        a, b, c = (inverse[at[:, p], at[:, q]][:, None] for p, q in ((i, i), (i, j), (j, j)))
        first, second = groups[:, i], groups[:, j]
        errors.append((c * first**2 - 2 * b * first * second + a * second**2) / (a * c - b**2))
    removed = np.array(pairs)[np.argmin(errors, axis=0)]  # (groups, outputs, 2)
    kept = np.ones(groups.shape, bool)
    np.put_along_axis(kept, removed.swapaxes(1, 2), False, axis=1)
    return kept.reshape(w.shape)
