"""Random images and parameters for any problem, from which results around 1 come. Pure."""

from math import prod

import numpy as np

from app.kernels.plain_problems import Argument
from app.kernels.problems import ConvPairProblem, ConvProblem, LinearProblem, PairProblem, Problem


def random_images(rng: np.random.Generator, argument: Argument, images: int) -> np.ndarray:
    """Return (images, elements per image): uniform bytes, or normally distributed numbers."""
    shape = (images, argument.per_image)
    if argument.dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.standard_normal(shape, dtype=np.float32).astype(argument.dtype)


def random_parameters(rng: np.random.Generator, problem: Problem) -> list[np.ndarray | None]:
    """Return weights in the problem's layout and bias (or None), scaled so that results are around 1; [] without."""
    if isinstance(problem, PairProblem):
        both = [*random_parameters(rng, problem.first), *random_parameters(rng, problem.second)]
        if isinstance(problem, ConvPairProblem) and both[0] is not None:
            both[0] = both[0] / problem.pixel_scale
        if problem.exact:
            both = _held(both)
        wanted = problem.arguments()[1:]
        return [None if a is None else a.astype(b.dtype) for a, b in zip(both, wanted, strict=False)]
    if not isinstance(problem, ConvProblem | LinearProblem):
        return []
    arguments = {argument.name: argument for argument in problem.arguments()}
    if isinstance(problem, ConvProblem):
        shape: tuple[int, ...] = (problem.channels, problem.kernel, problem.kernel, problem.maps)
    else:
        shape = (problem.inputs, problem.outputs)
    magnitude = 128 if problem.input_dtype == "uint8" else 1
    w = rng.standard_normal(shape) / (magnitude * np.sqrt(prod(shape[:-1])))
    bias = rng.standard_normal(shape[-1]).astype(arguments["bias"].dtype) if problem.bias else None
    parameters = [w.astype(arguments["w"].dtype), bias]
    return _held(parameters) if getattr(problem, "exact", False) else parameters


def _held(parameters: list[np.ndarray | None]) -> list[np.ndarray | None]:
    """Return the parameters, w and bias of each layer in turn, with weights that float16 holds."""
    return [a if at % 2 or a is None else a.astype(np.float16).astype(a.dtype) for at, a in enumerate(parameters)]
