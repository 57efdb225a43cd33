"""Run registry rows and nodes of a plan on the processor, from the kernels' own files, compiled by g++."""

from collections.abc import Sequence

import numpy as np

from app.kernels.problems import ConvProblem, LinearProblem, PairProblem, Problem
from app.kernels.variant import Parameters, Variant
from app.ladder.emulation.main_function import emulated_grid
from app.planning.matching import Node
from tests.support.host_kernels import HostKernel, guarded
from tests.support.kernel_cases import input_shape
from tests.support.kernel_oracle import layers_of
from tests.support.kernel_oracle import through as references


def run_row(
    row: Variant,
    problem: Problem,
    x: np.ndarray,
    parameters: Sequence[np.ndarray | None],
    settings: Parameters | None = None,
) -> list[np.ndarray]:
    """Return the flat results of a row's launches for stored images x. parameters: the problem's, not packed.

    An access beyond the end of an array crashes; bytes of a result or workspace that nothing wrote are 0xFF.
    """
    config = row.launch_config(problem, settings)
    images = len(x)
    packed = config.packing.pack(parameters) if config.packing else parameters
    taken = [None if array is None else guarded(array) for array in packed]
    _, *others = problem.arguments()
    results = [_poisoned(images * result.per_image, result.dtype) for result in others if result.per_image]
    workspace = [_poisoned(array.fixed + images * array.per_image, array.dtype) for array in config.workspace]
    entries = [launch.entry or row.entry for launch in config.launches]
    for launch, entry in zip(config.launches, entries, strict=True):
        if not launch.grid(images)[0]:
            continue
        kernel = HostKernel(row.path, entry, config.defines, launch.threads, launch.shared_bytes, entries)
        scalars = map(np.int32, (images, *launch.scalars))
        cluster = launch.cluster(images) if launch.cluster else 1
        grid = emulated_grid(launch, images)
        kernel(None, grid, guarded(x), *taken, *results, *workspace, *scalars, cluster=cluster)
    return results


def _poisoned(elements: int, dtype: str) -> np.ndarray:
    return guarded(np.full(elements * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype))


def through(node: Node, x: np.ndarray) -> np.ndarray:
    """Return the results of the node's kernel for stored inputs (images, …): (images, elements), as stored."""
    problem = node.problem
    if node.variant.instructions == "fma":
        return _ordinary(node, x)
    last = problem.second if isinstance(problem, PairProblem) else problem
    y = run_row(node.variant, problem, x, node.parameters, node.settings)[0].reshape(len(x), -1)
    assert y.dtype == getattr(last, "output_dtype", y.dtype) and np.isfinite(y).all()
    return y


def _ordinary(node: Node, x: np.ndarray) -> np.ndarray:
    problem, layers = node.problem, layers_of(node.problem)
    assert isinstance(problem, ConvProblem | LinearProblem)
    names = layers[0].name, f"{layers[0].name}_bias"
    parameters = {name: array for name, array in zip(names, node.parameters, strict=True) if array is not None}
    shaped = x.astype(np.float64).reshape(len(x), *input_shape(problem))
    return references(layers, shaped, parameters).reshape(len(x), -1).astype(problem.output_dtype)
