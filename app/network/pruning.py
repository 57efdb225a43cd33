"""Prune convolutions to 2:4 sparsity, at most two of four weights not 0; the weights that stay compensate.

A layer is a product y = x w with H = xᵀ x + λ I, as in ``rounding.py``. If a pair p of four weights of an output map
is removed and all other weights of the map compensate, the squared error of y grows by

    wₚᵀ ((H⁻¹)ₚₚ)⁻¹ wₚ

as in Hassibi and Stork's update (see ``rounding.py``), here for two weights at once. Of every four weights, the pair
with the least error is removed. Those that stay then get the values with the least squared error of y. Later layers now
read other inputs, so all their weights are fitted to the layers' former results by least squares, too.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import prod

import numpy as np

from app.kernels.plain_problems import GROUP, KEPT, is_two_of_four
from app.layers import Conv2d
from app.network.graph import Graph
from app.network.rounding import CompensatedLayer, add_damping, append_bias, gram_matrix, input_rows, split_bias


def sparsify_layers(graph: Graph, images: np.ndarray) -> Iterator[CompensatedLayer]:
    """Prune the convolutions that read a multiple of four maps, in order, and fit later layers; yield the results.

    images: (N, C, H, W) uint8. A layer reads the results of the changed earlier layers; its new results approximate
    its former ones. ``plain`` is the error if of every four weights the two greatest stay unchanged. Equal
    arguments give equal bits on one machine.
    """
    changed = graph
    for at, step in enumerate(graph.steps):
        names = [name for name in step.parameter_shapes if name in graph.parameters]
        prunes = isinstance(step.layer, Conv2d) and step.in_shape[0] % GROUP == 0
        prunes = prunes and not is_two_of_four(graph.parameters[step.layer.name])
        if not names or (not prunes and changed is graph):
            continue
        w = append_bias(graph, names)
        rows = prod(graph.parameters[names[0]].shape[:-1]) if prunes else 0
        products, across, before = _gram_matrices(changed, graph, at, images, len(w))
        found = fit_weights(w, products, across @ w, rows)
        plain = np.concatenate([keep_two_of_four(w[:rows]), w[rows:]])
        arrays = split_bias(graph, names, found)
        changed = replace(changed, parameters={**changed.parameters, **arrays})
        error, without = (_relative_change(w, new, products, across, before) for new in (found, plain))
        yield CompensatedLayer(step.layer.name, arrays, error, without)


def prune_filters(graph: Graph) -> Graph:
    """Return the graph whose convolutions keep of every four weights the two greatest, without compensation.

    Its labels are poor: it serves to choose and to time kernels. Convolutions keep their filters if they do not read a
    multiple of four maps.
    """
    filters = {
        step.layer.name: graph.parameters[step.layer.name]
        for step in graph.steps
        if isinstance(step.layer, Conv2d) and step.in_shape[0] % GROUP == 0
    }
    pruned = {name: keep_two_of_four(w.reshape(-1, w.shape[-1])).reshape(w.shape) for name, w in filters.items()}
    return replace(graph, parameters={**graph.parameters, **pruned})


def _gram_matrices(changed: Graph, graph: Graph, at: int, images: np.ndarray, inputs: int) -> tuple[np.ndarray, ...]:
    """Return x'ᵀ x', x'ᵀ x and xᵀ x, each (inputs, inputs); step ``at`` reads x' in ``changed`` and x in ``graph``."""
    if changed is graph:
        return (gram_matrix(graph, at, images, inputs),) * 3
    found = np.zeros((3, inputs, inputs))
    for new, old in input_rows([changed, graph], at, images, inputs):
        found += new.T @ new, new.T @ old, old.T @ old
    return tuple(found)


def _relative_change(
    w: np.ndarray, new: np.ndarray, products: np.ndarray, across: np.ndarray, before: np.ndarray
) -> float:
    """Return |x' new - x w| / |x w| over all rows. products, across, before: x'ᵀ x', x'ᵀ x and xᵀ x."""
    squares = np.sum((products @ new) * new), np.sum((across @ w) * new), np.sum((before @ w) * w)
    change = float(squares[0] - 2 * squares[1] + squares[2])
    return (max(change, 0.0) / float(squares[2])) ** 0.5 if squares[2] > 0 else 0.0


def keep_two_of_four(w: np.ndarray) -> np.ndarray:
    """Return weights (inputs, outputs) of the same dtype: of every four inputs, all but the two greatest are zero."""
    groups = np.abs(w).reshape(-1, GROUP, w.shape[1])
    ranks = np.argsort(np.argsort(-groups, axis=1, kind="stable"), axis=1)
    return np.where((ranks < KEPT).reshape(w.shape), w, 0).astype(w.dtype)


def fit_weights(w: np.ndarray, products: np.ndarray, wanted: np.ndarray, pruned: int) -> np.ndarray:
    """Return the weights (inputs, outputs), float64, whose results differ least from the wanted results y.

    w: former weights, towards which λ pulls the new ones. products: xᵀ x (inputs, inputs). wanted: xᵀ y (inputs,
    outputs). pruned: number of the first inputs whose weights are pruned to two of every four.
    """
    damped_products = add_damping(products)
    wanted = wanted + (damped_products - products) @ w
    if not pruned:
        return np.linalg.solve(damped_products, wanted)
    kept, found = np.ones(w.shape, bool), np.zeros_like(w)
    kept[:pruned] = _least_error_mask(w[:pruned], np.linalg.inv(damped_products)[:pruned, :pruned])
    for output, rows in enumerate(kept.T):
        found[rows, output] = np.linalg.solve(damped_products[np.ix_(rows, rows)], wanted[rows, output])
    return found


def _least_error_mask(w: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Return the mask of the weights that stay if of every four the pair with the least error goes. inverse: H⁻¹."""
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
