"""What the kernels that scale their numbers make of stored activations, node by node of a plan. Without a GPU."""

import numpy as np

from app.kernels.problems import ConvPairProblem, LinearPairProblem, LinearProblem
from app.layers import ACTIVATIONS
from app.planning.matching import Node
from tests.support import pair_emulation
from tests.support.any_pair_emulation import any_convolutions
from tests.support.integer_emulation import integer_convolutions


def through(node: Node, x: np.ndarray) -> np.ndarray:
    """What the node's kernel makes of it, as stored: (images, elements). An ordinary product's sums are exact."""
    problem = node.problem
    assert isinstance(problem, ConvPairProblem | LinearPairProblem | LinearProblem), node.name
    last = problem if isinstance(problem, LinearProblem) else problem.second
    y = _ordinary(node, x) if node.variant.config(problem, node.settings).packing is None else _packed(node, x)
    stored = y.reshape(len(x), -1).astype(last.output_dtype)
    assert np.isfinite(stored).all()
    return stored


def _packed(node: Node, x: np.ndarray) -> np.ndarray:
    packing = node.variant.config(node.problem, node.settings).packing
    assert packing is not None
    packed = packing.pack(node.parameters)
    for array, argument in zip(packed, packing.takes, strict=True):
        assert array is None or (array.size == argument.fixed and np.isfinite(array).all())
    match node.problem, node.variant.name:
        case ConvPairProblem() as problem, "mma-any":
            return any_convolutions(problem, packed, x)
        case ConvPairProblem() as problem, "mma":
            return pair_emulation.mma_convolutions(problem, packed, x[:, 0])[0]
        case ConvPairProblem(), "wgmma-int8":
            return integer_convolutions(packed, x[:, 0])
        case ConvPairProblem() as problem, _:
            return pair_emulation.convolutions(problem, packed, x[:, 0])
        case LinearPairProblem() as problem, "mma":
            return pair_emulation.products(problem, packed, x.astype(np.float64))
        case LinearPairProblem() as problem, "wgmma-any":
            return pair_emulation.any_products(problem, packed, x.reshape(len(x), -1).astype(np.float64))
        case LinearPairProblem() as problem, _:
            return pair_emulation.wgmma_products(problem, packed, x.astype(np.float64))[:, : problem.second.outputs]
        case LinearProblem() as problem, "warpgroup":
            return pair_emulation.warpgroup_product(problem, packed, x.astype(np.float64))
    raise AssertionError(f"{node.name}: {node.variant.name} is not emulated")


def _ordinary(node: Node, x: np.ndarray) -> np.ndarray:
    problem, (w, bias) = node.problem, node.parameters
    assert isinstance(problem, LinearProblem) and w is not None
    y = x.astype(np.float64) @ w.astype(np.float64) + (0 if bias is None else bias)
    return ACTIVATIONS[problem.activation]("").reference(y, {}) if problem.activation else y
