"""Check a planned network launch by launch: compare each kernel's results with the network's text, element by element.

Every launch is judged by the input that it really read, so errors do not add up and tolerances stay those of one
launch. The oracle's weights come from the file, not from the plan, so permuted rows, folded scales and fused layers are
judged, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from app.kernels.problems import PairProblem
from app.lab.bench.tolerance import ACTIVATION, ROUNDING, SLACK, SUBNORMAL
from app.planning.matching import Node
from app.planning.plan import ExecutionPlan
from tests.support.kernel_oracle import to_half, to_single, to_tf32
from tests.support.network_oracle import Described, computed, parameter_shapes, products
from tests.support.random_networks import RandomNetwork

# What the kernels round operands to, and the errors of their float32 sums: tensor cores cut where others round.
NARROW: dict[str, Callable[[Any], Any]] = {"float32": to_single, "tfloat32": to_tf32, "float16": to_half}
OF_SUMS = {"float32": 2.0**-24, "tfloat32": 2.0**-23, "float16": 2.0**-23, "float16x2": 2.0**-23}
# Kernels of two layers, and of split operands, scale numbers to float16's range: an operand errs by a share of itself
# and of the largest one.
OF_PAIRS = {**dict.fromkeys(("float16", "tfloat32"), (2.0**-10, 2.0**-20)), "float16x2": (2.0**-20, 2.0**-20)}
# Runs one node on what it reads, (images, elements): its outputs, flat, in the order of its problem's arguments.
LaunchNode = Callable[[Node, Any, int], Sequence[Any]]
Read = Callable[[Any], np.ndarray]  # a device array's content


@dataclass(frozen=True)
class Known:
    """A kernel's correct results, float64, and the allowed error of each element."""

    value: np.ndarray
    error: np.ndarray


def examine(
    network: RandomNetwork, plan: ExecutionPlan, images: np.ndarray, launch: LaunchNode, read: Read = np.asarray
) -> tuple[np.ndarray, np.ndarray]:
    """Run and check the nodes one after the other on the images; return scores (B, classes) and labels (B,).

    Raises AssertionError that names the node, its kernel and the worst element.
    """
    layers = {layer.name: layer for layer in network.description.layers}
    planned = [layer.name for node in plan.nodes for layer in node.layers]
    # A flatten may change places with activations, which do not care.
    flatten = [name for name, layer in layers.items() if layer.kind == "flatten"]
    wanted = [name for name in (*layers, "argmax") if name not in flatten]
    assert [name for name in planned if name not in flatten] == wanted, f"the plan runs {planned}, not {wanted}"
    x: Any = np.ascontiguousarray(images)
    held: np.ndarray = images
    scores: np.ndarray = images
    scales: np.ndarray | None = None
    for node in plan.nodes:
        outputs = launch(node, x, len(images))
        if node.head.kind == "argmax":
            return scores, _labels(read(outputs[0]), scores, node)
        scale = network.description.pixel_scale if held.dtype == np.uint8 else 1.0
        own = [layers[layer.name] for layer in node.layers if layer.name in layers]
        known = after_node(node, own, _unscaled(held, scales), network.arrays, scale)
        scales, x = node.scales, outputs[0]
        scores = held = read(x).reshape(known.value.shape)
        _check(_unscaled(held, scales), known, node)
        if len(outputs) > 1:
            return scores, _labels(read(outputs[1]), scores, node)
    raise AssertionError("the plan has no argmax")


def _unscaled(x: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """Return features (B, C, ...) in float64, divided by the powers of two by which the kernel scaled them.

    Bytes stay bytes.
    """
    if x.dtype == np.uint8:
        return x
    factors = np.ones(1) if scales is None else scales.astype(np.float64)
    return x.astype(np.float64) / factors.reshape(-1, *(1,) * (x.ndim - 2))


def _labels(labels: np.ndarray, scores: np.ndarray, node: Node) -> np.ndarray:
    np.testing.assert_array_equal(labels, scores.argmax(axis=1), err_msg=_who(node))
    return labels


def _who(node: Node) -> str:
    return f"{node.name} by {node.variant.source}, {node.problem}, {node.settings}"


def _check(found: np.ndarray, known: Known, node: Node) -> None:
    """Raise AssertionError, naming the worst element, unless all are within the allowed errors; NaN fails, too."""
    wrong = ~(np.abs(found - known.value) <= known.error)
    if wrong.any():
        excess = np.where(wrong, np.nan_to_num(np.abs(found - known.value) - known.error, nan=np.inf), -np.inf)
        at = np.unravel_index(int(excess.argmax()), found.shape)
        raise AssertionError(
            f"element {tuple(map(int, at))} of {found.shape} is {found[at]:.9g}, must be {known.value[at]:.9g} within "
            f"{known.error[at]:.3g} ({int(wrong.sum())} of {wrong.size} are wrong): {_who(node)}"
        )


def after_node(
    node: Node, layers: Sequence[Described], x: np.ndarray, arrays: dict[str, np.ndarray], scale: float
) -> Known:
    """Return the node's correct results for x, (B, *shape) bytes or float64. scale: the factor for bytes."""
    known = Known(x, np.zeros(x.shape))
    dtype = getattr(node.problem, "dtype", "float32")
    for layer in layers:
        if parameter_shapes(layer):
            scaled = isinstance(node.problem, PairProblem) or dtype == "float16x2"
            known, scale = _multiplied(layer, known, arrays, dtype, scale, scaled), 1.0
        else:
            known = _passed(layer, known)
    last = node.problem.second if isinstance(node.problem, PairProblem) else node.problem
    stored = getattr(last, "output_dtype", dtype)
    if stored == "float16":
        size = np.abs(known.value) + known.error
        known = Known(known.value, known.error + ROUNDING[stored] * size + SUBNORMAL[stored])
    return known


def _multiplied(
    layer: Described, known: Known, arrays: dict[str, np.ndarray], dtype: str, scale: float, scaled: bool
) -> Known:
    """Return exact sums of the rounded operands, and the errors allowed for the kernel's sums and for its input."""
    x = known.value.astype(np.float64)
    w = arrays[layer.name].astype(np.float64) * scale
    bias = arrays.get(f"{layer.name}_bias")
    unrounded = np.zeros_like(x)
    if scaled:
        own, largest = OF_PAIRS[dtype]
        unrounded = own * np.abs(x) + largest * np.abs(x).max() + SUBNORMAL["float32"]
    else:
        x, w = (NARROW[dtype](operand).astype(np.float64) for operand in (x, w))
    value, magnitude = products(layer, x, w), products(layer, np.abs(x), np.abs(w))
    terms = prod(w.shape[:-1])
    if bias is not None:
        added = bias.astype(np.float64).reshape(-1, *(1,) * (value.ndim - 2))
        value, magnitude = value + added, magnitude + np.abs(added)
    error = (terms + SLACK) * OF_SUMS[dtype] * magnitude + SUBNORMAL["float32"]
    if scaled:
        error = error + products(layer, known.error + unrounded, np.abs(w))
    return Known(value, error)


def _passed(layer: Described, known: Known) -> Known:
    """Return the results of a layer without weights, with the errors of its input and its own float32 roundings."""
    x, error = known.value, known.error
    value = computed(layer, x, {})
    match layer.kind:
        case "resize":
            return Known(value, np.zeros(value.shape))
        case "relu" | "flatten" | "maxpool":  # select: an error is at most the largest of those selected from
            return Known(value, computed(layer, error, {}))
        case "tanh" | "sigmoid" | "relu6" | "leakyrelu":  # slopes are at most 1
            return Known(value, error + ACTIVATION * ROUNDING["float32"] * np.abs(value) + SUBNORMAL["float32"])
        case "avgpool":
            own = (layer.settings["window"] ** 2 + SLACK) * ROUNDING["float32"]
            return Known(value, computed(layer, error, {}) + own * computed(layer, np.abs(x) + error, {}))
        case "softmax":  # the exponent, x - max x, is rounded: its error is relative to the result
            roundings = (x.shape[1] + SLACK) * ROUNDING["float32"] * (1 + np.ptp(x, axis=1, keepdims=True))
            moved = 2 * error.max(axis=1, keepdims=True)
            return Known(value, np.expm1(roundings + moved) * value + SUBNORMAL["float32"])
    raise ValueError(layer.kind)
