"""Round weights to float16 or 8-bit numbers; the weights that are not rounded yet compensate for each error.

A layer is a product y = x w, where the rows of x are the inputs (of a convolution: the windows) that images give it.
With

    H = xᵀ x + λ I,  λ = DAMPING · the mean of xᵀ x's diagonal,   H⁻¹ = L Lᵀ (Cholesky, L lower triangular)

the inputs i are rounded one after another: eᵢ = (wᵢ - float16(wᵢ)) / Lᵢᵢ, and wⱼ -= Lⱼᵢ eᵢ for every later input j.
Inputs with the largest terms xᵢ wᵢ come first: float16 rounds large numbers most coarsely, and many others compensate.
This update minimises the squared error of y that remains (Hassibi and Stork, "Second order derivatives for network
pruning: Optimal Brain Surgeon", 1992); its Cholesky form is GPTQ's (Frantar et al. 2022, arXiv 2210.17323). A bias is
the weight of one more input, which is always 1.

Filters with 2:4 structured sparsity keep their zeros (see app/kernels/plain_problems.py).

The second of two convolutions is quantised to 8 bits by the same compensation (see ``quantised.py``). The best limit of
a map minimises the squared error of its bytes: a greater limit rounds all activations more coarsely, a smaller one
clips more. Small limits would need finer filter steps and coarsen all other filters, so every limit is moved towards
the greatest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from app.base.errors import UserError
from app.base.frozen import Frozen
from app.kernels.plain_problems import is_two_of_four
from app.layers import AvgPool, Conv2d, Layer, Parameters, Relu
from app.layers.conv2d import im2col, sliding_windows
from app.network.graph import REFERENCE_CHUNK, Graph
from app.network.quantised import BYTE, SIGNED, QuantisedFilters

DAMPING = 0.01  # GPTQ's
BLOCK_BYTES = 64 << 20  # of x at a time
Rounding = Callable[[np.ndarray], np.ndarray]


class CompensatedLayer(Frozen):
    """Changed weights and bias of one layer, float32, by name.

    error: change of the layer's results with compensation, root mean square relative to the results, on the images
    used. plain: the same change without compensation, such as by rounding every number to the nearest.
    """

    name: str
    arrays: Parameters
    error: float
    plain: float


def round_layers(graph: Graph, images: np.ndarray) -> Iterator[CompensatedLayer]:
    """Round the layers in order; yield each. A layer reads the results of the rounded layers before it.

    images: (N, C, H, W) uint8. Equal arguments give equal bits on one machine. Raises UserError for weights beyond
    float16's range.
    """
    largest = float(np.finfo(np.float16).max)
    for name, array in graph.parameters.items():
        if np.abs(array).max() > largest:
            raise UserError(f"{name} contains numbers beyond float16's range of {largest:,.0f}: keep it as float32")
    for at, step in enumerate(graph.steps):
        names = [name for name in step.parameter_shapes if name in graph.parameters]
        if not names:
            continue
        w = append_bias(graph, names)
        products = gram_matrix(graph, at, images, len(w))
        kept = np.concatenate([_changeable_mask(graph.parameters[name]) for name in names])
        found = round_with_compensation(w, products, kept=kept)
        arrays = split_bias(graph, names, found)
        graph = replace(graph, parameters={**graph.parameters, **arrays})
        error, plain = (relative_error(w, rounded, products) for rounded in (found, round_to_half(w)))
        yield CompensatedLayer(step.layer.name, arrays, error, plain)


def append_bias(graph: Graph, names: Sequence[str]) -> np.ndarray:
    """Return a layer's arrays ``names``, weights and, below them, the bias, as a float64 matrix (inputs, outputs)."""
    arrays = [graph.parameters[name] for name in names]
    return np.concatenate([array.reshape(-1, arrays[0].shape[-1]) for array in arrays]).astype(np.float64)


def split_bias(graph: Graph, names: Sequence[str], rows: np.ndarray) -> Parameters:
    """Return a layer's arrays by name, float32, from the matrix of its weights and, below them, its bias."""
    shapes = [graph.parameters[name].shape for name in names]
    parts = np.split(rows.astype(np.float32), np.cumsum([prod(shape[:-1]) for shape in shapes])[:-1])
    return {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}


def round_to_half(values: np.ndarray) -> np.ndarray:
    """Return the values rounded to the nearest float16 numbers, as float64 of the same shape."""
    return values.astype(np.float16).astype(np.float64)


def _changeable_mask(array: np.ndarray) -> np.ndarray:
    """Return the mask (inputs, outputs) of the weights that may change: all but the zeros of 2:4 sparse filters."""
    rows = array.reshape(-1, array.shape[-1])
    return rows != 0 if is_two_of_four(array) else np.ones(rows.shape, bool)


def add_damping(products: np.ndarray) -> np.ndarray:
    """Return xᵀ x + λ I, the damped Gram matrix."""
    damping = DAMPING * np.trace(products) / len(products) or 1.0  # 1: all inputs are zero
    return products + damping * np.eye(len(products))


def round_with_compensation(
    w: np.ndarray, products: np.ndarray, rounding: Rounding = round_to_half, kept: np.ndarray | bool = True
) -> np.ndarray:
    """Return weights w (inputs, outputs), float64, rounded with error compensation. products: xᵀ x (inputs, inputs).

    rounding: function that rounds the weights of one input, (outputs,). kept: bools like w; the other weights become 0.
    """
    kept = np.broadcast_to(kept, w.shape)
    order = np.argsort(-np.diag(products) * (w**2).sum(axis=1), kind="stable")
    products, left = products[np.ix_(order, order)], w[order]
    factor = np.linalg.cholesky(np.linalg.inv(add_damping(products)))
    found = np.empty_like(w)
    for i, row in enumerate(order):
        found[row] = np.where(kept[row], rounding(left[i]), 0)
        left[i + 1 :] -= np.outer(factor[i + 1 :, i], (left[i] - found[row]) / factor[i, i])
    return found


def gram_matrix(graph: Graph, at: int, images: np.ndarray, inputs: int, rounding: Rounding = lambda x: x) -> np.ndarray:
    """Return xᵀ x (inputs, inputs) over all rows x that step ``at`` reads for these images, after ``rounding``."""
    found = np.zeros((inputs, inputs))
    for (x,) in input_rows([graph], at, images, inputs, rounding):
        found += x.T @ x
    return found


def input_rows(
    graphs: Sequence[Graph], at: int, images: np.ndarray, inputs: int, rounding: Rounding = lambda x: x
) -> Iterator[list[np.ndarray]]:
    """Yield, for one part of the images after another, the input of step ``at`` in each graph; show a progress bar.

    An input is (images or windows, inputs) float64 after ``rounding``; its rows end in 1 if the layer has a bias.
    """
    from tqdm import tqdm  # imported only here: nothing else here needs it

    step = graphs[0].steps[at]
    batch = BLOCK_BYTES // (8 * inputs * prod(step.out_shape[1:]))
    batch = min(max(batch, 1), REFERENCE_CHUNK)
    for first in tqdm(range(0, len(images), batch), desc=step.layer.name, unit=" batches", disable=None):
        part = images[first : first + batch]
        yield [_as_rows(step.layer, rounding(graph.input_of_step(at, part, np.float64)), inputs) for graph in graphs]


def _as_rows(layer: Layer, x: np.ndarray, inputs: int) -> np.ndarray:
    if isinstance(layer, Conv2d):
        windows = sliding_windows(x, layer.kernel, layer.stride, layer.padding)
        x = im2col(windows, np.empty(windows.size))
    return np.pad(x, ((0, 0), (0, inputs - x.shape[1])), constant_values=1)  # what a bias is multiplied by


def relative_error(w: np.ndarray, rounded: np.ndarray, products: np.ndarray) -> float:
    """Return |x (rounded - w)| / |x w| over all rows x, given ``products`` = xᵀ x; 0 if x w is zero."""
    change, whole = (float(np.sum((products @ part) * part)) for part in (rounded - w, w))
    return (max(change, 0.0) / whole) ** 0.5 if whole > 0 else 0.0


SHARES = np.arange(16, 65) / 64  # candidate limits, as shares of a map's greatest activation
# A limit is best ** EXPONENT * greatest ** (1 - EXPONENT); chosen on training images that this module does not read.
EXPONENT = 0.7
SECOND = 3  # index of the second convolution's step
BINS = 1 << 14  # of the activations' histogram


def quantise_activations(x: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return positive activations (N, C, H, W) ÷ their limits (C,), rounded to multiples of 1/255, at most 1."""
    return np.minimum(np.rint(x * (BYTE / limits[:, None, None])), BYTE) / BYTE


def quantise_convolution(graph: Graph, images: np.ndarray) -> tuple[QuantisedFilters, float, float]:
    """Return the quantised convolution, the relative error of its results, and the error of plain rounding.

    images: (N, C, H, W) uint8. Errors are root mean squares and exclude those of the activations. Raises UserError for
    networks that do not begin with two convolutions, each with ReLU and average pooling.
    """
    if [type(step.layer) for step in graph.steps[:6]] != [Conv2d, Relu, AvgPool] * 2:
        begins = f"network {graph.network.name} does not begin with two convolutions"
        raise UserError(f"{begins}, each with ReLU and average pooling: only the second of such can be quantised")
    name = graph.steps[SECOND].layer.name
    limits = _input_clipping_limits(graph, images)
    shape = graph.parameters[name].shape
    w = (graph.parameters[name] * limits[:, None].astype(np.float64)).reshape(-1, shape[-1])
    products = gram_matrix(graph, SECOND, images, len(w), partial(quantise_activations, limits=limits))
    used, kept = w.any(axis=0), _changeable_mask(graph.parameters[name])
    first_steps = steps = np.where(used, np.abs(w).max(axis=0), 1.0) / SIGNED
    found = round_with_compensation(w, products, partial(_round_to_steps, steps), kept)
    while True:
        most = np.rint(np.abs(found / steps).max(axis=0))
        if (most[used] == SIGNED).all():
            break
        steps = np.where(used, steps * np.maximum(most, 1) / SIGNED, steps)  # until the greatest filter is 127
        found = round_with_compensation(w, products, partial(_round_to_steps, steps), kept)
    filters = np.rint(found / steps).astype(np.int8).reshape(shape)
    quantised = QuantisedFilters(name, filters, limits, steps.astype(np.float32))
    return quantised, relative_error(w, found, products), relative_error(w, _round_to_steps(first_steps, w), products)


def _round_to_steps(steps: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return weights (..., outputs), rounded to multiples, from -127 to 127, of each output's step."""
    return np.clip(np.rint(w / steps), -SIGNED, SIGNED) * steps


def _input_clipping_limits(graph: Graph, images: np.ndarray) -> np.ndarray:
    """Return for each input map of the second convolution the activation that becomes byte 255: (maps,) float32."""
    chunks = range(0, len(images), REFERENCE_CHUNK)
    found = [graph.input_of_step(SECOND, images[at : at + REFERENCE_CHUNK], np.float32) for at in chunks]
    best = np.array([_best_clipping_limit(x) for x in np.concatenate(found).swapaxes(0, 1)])
    greatest = best.max() or 1.0
    best = np.where(best > 0, best, greatest)  # maps without activations may have any
    return (best**EXPONENT * greatest ** (1 - EXPONENT)).astype(np.float32)


def _best_clipping_limit(x: np.ndarray) -> float:
    """Return the limit that minimises the squared error of a map's activations as bytes. x: activations of the map."""
    counts, edges = np.histogram(x, BINS, (0, float(x.max()) or 1.0))
    centres = ((edges[1:] + edges[:-1]) / 2).reshape(1, 1, -1)
    candidates = x.max() * SHARES
    errors = [
        counts @ (quantise_activations(centres, np.full(1, limit)) * limit - centres).ravel() ** 2
        for limit in candidates
        if limit
    ]
    return float(candidates[int(np.argmin(errors))]) if errors else 0.0
