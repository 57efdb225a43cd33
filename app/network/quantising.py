"""Quantise the second of two convolutions on training images (see ``quantised.py``).

The best limit of a map minimises the squared error of its bytes: a greater limit rounds all activations more coarsely,
a smaller one clips more. Small limits would need finer filter steps and coarsen all other filters, so every limit is
moved towards the greatest. Filters are then rounded with error compensation for these bytes (see ``rounding.py``).
"""

from functools import partial

import numpy as np

from app.base.errors import UserError
from app.layers import AvgPool, Conv2d, Relu
from app.network.graph import REFERENCE_CHUNK, Graph
from app.network.quantised import BYTE, SIGNED, Quantised
from app.network.rounding import gram_matrix, relative_error, round_with_compensation

SHARES = np.arange(16, 65) / 64  # candidate limits, as shares of a map's greatest activation
# A limit is best ** EXPONENT * greatest ** (1 - EXPONENT); chosen on training images that this module does not read.
EXPONENT = 0.7
SECOND = 3  # index of the second convolution's step
BINS = 1 << 14  # of the activations' histogram


def quantise_activations(x: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return positive activations (N, C, H, W) ÷ their limits (C,), rounded to multiples of 1/255, at most 1."""
    return np.minimum(np.rint(x * (BYTE / limits[:, None, None])), BYTE) / BYTE


def quantise_convolution(graph: Graph, images: np.ndarray) -> tuple[Quantised, float, float]:
    """Return the quantised convolution, the relative error of its results, and that of plain rounding.

    images: (N, C, H, W) uint8. Errors are root mean squares and exclude those of the activations. Raises UserError for
    networks that do not begin with two convolutions, each with ReLU and average pooling.
    """
    if [type(step.layer) for step in graph.steps[:6]] != [Conv2d, Relu, AvgPool] * 2:
        begins = f"network {graph.network.name} does not begin with two convolutions"
        raise UserError(f"{begins}, each with ReLU and average pooling: only the second of such can be quantised")
    name = graph.steps[SECOND].layer.name
    limits = _input_map_limits(graph, images)
    shape = graph.parameters[name].shape
    w = (graph.parameters[name] * limits[:, None].astype(np.float64)).reshape(-1, shape[-1])
    products = gram_matrix(graph, SECOND, images, len(w), partial(quantise_activations, limits=limits))
    used = w.any(axis=0)
    first_steps = steps = np.where(used, np.abs(w).max(axis=0), 1.0) / SIGNED
    found = round_with_compensation(w, products, partial(_round_to_steps, steps))
    while True:
        most = np.rint(np.abs(found / steps).max(axis=0))
        if (most[used] == SIGNED).all():
            break
        steps = np.where(used, steps * np.maximum(most, 1) / SIGNED, steps)  # until the greatest filter is 127
        found = round_with_compensation(w, products, partial(_round_to_steps, steps))
    filters = np.rint(found / steps).astype(np.int8).reshape(shape)
    quantised = Quantised(name, filters, limits, steps.astype(np.float32))
    return quantised, relative_error(w, found, products), relative_error(w, _round_to_steps(first_steps, w), products)


def _round_to_steps(steps: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return weights (..., outputs), rounded to at most 127 multiples of the step of each output."""
    return np.clip(np.rint(w / steps), -SIGNED, SIGNED) * steps


def _input_map_limits(graph: Graph, images: np.ndarray) -> np.ndarray:
    """Return the limit of each input map, (maps,) float32."""
    chunks = range(0, len(images), REFERENCE_CHUNK)
    found = [graph.input_of(SECOND, images[at : at + REFERENCE_CHUNK], np.float32) for at in chunks]
    best = np.array([_best_limit(x) for x in np.concatenate(found).swapaxes(0, 1)])
    greatest = best.max() or 1.0
    best = np.where(best > 0, best, greatest)  # maps without activations may have any
    return (best**EXPONENT * greatest ** (1 - EXPONENT)).astype(np.float32)


def _best_limit(x: np.ndarray) -> float:
    """Return the limit that minimises the squared error of the bytes of one map."""
    counts, edges = np.histogram(x, BINS, (0, float(x.max()) or 1.0))
    centres = ((edges[1:] + edges[:-1]) / 2).reshape(1, 1, -1)
    candidates = x.max() * SHARES
    errors = [
        counts @ (quantise_activations(centres, np.full(1, limit)) * limit - centres).ravel() ** 2
        for limit in candidates
        if limit
    ]
    return float(candidates[int(np.argmin(errors))]) if errors else 0.0
