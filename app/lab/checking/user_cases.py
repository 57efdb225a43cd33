"""List the cases on which a user's kernel is checked: small shapes, simplified if needed, and random shapes.

Each check draws other sizes, images and numbers of images, so a kernel that is right only for known problems fails.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import numpy as np

from app.base.errors import UserError
from app.kernels.problems import ConvProblem, LinearProblem, PoolProblem
from app.kernels.variant import Variant
from app.lab.checking.cases import IMAGES, SHAPES, Case, Single, problem_in_type, small_cases

DRAWN, TRIES = 3, 200  # random shapes to check, and to draw until the kernel supports so many


def user_cases(row: Variant, arch: str, rng: np.random.Generator) -> list[Case]:
    """Return the kernel's ``small_cases``, a simpler shape for each that it does not support, and three random shapes.

    Raises UserError, with the kernel's reason, if it supports none of the shapes.
    """
    found = small_cases(row, arch)
    usual = [problem_in_type(row, problem, row.dtypes[0]) for problem in SHAPES[row.operation]]
    known = {case.problem for case in found}
    plain = [problem_in_type(row, form, row.dtypes[0]) for one in SHAPES[row.operation] for form in _simplify(one)]
    lost = sum(row.refusal_reason(problem, arch) is not None for problem in usual)
    added = (one for one in dict.fromkeys(plain) if one not in known and row.refusal_reason(one, arch) is None)
    found += [Case(row, problem, IMAGES[row.operation]) for problem in islice(added, lost)]
    drawn = (problem_in_type(row, _random_problem(row.operation, rng), row.dtypes[0]) for _ in range(TRIES))
    served = islice((problem for problem in drawn if row.refusal_reason(problem, arch) is None), DRAWN)
    most = 2 * IMAGES[row.operation]
    numbers = (most, *(int(number) for number in rng.integers(1, most, DRAWN - 1)))  # one more than usual
    found += [Case(row, one, number) for one, number in zip(served, numbers, strict=False)]
    if not found:
        why = row.refusal_reason(plain[1], arch) or ""
        if why.startswith(f"{row.name}:"):  # a fault of the header's line
            raise UserError(why)
        raise UserError(f"{row.name} serves none of the shapes on {arch}: {why}; name a shape by --shape")
    return with_new_data(found, rng)


def with_new_data(cases: Iterable[Case], rng: np.random.Generator) -> list[Case]:
    """Return the same cases with new random images and weights."""
    return [replace(case, seed=int(rng.integers(2**31))) for case in cases]


def _simplify(problem: Single) -> list[Single]:
    """Return one or two simpler problems: without bias, activation, pooling and uint8 input; then also unpadded."""
    if isinstance(problem, ConvProblem):
        channels, height, width, maps, window, stride = problem.sizes
        fits = window <= min(height, width)
        paddings = dict.fromkeys((problem.padding, 0) if fits else (problem.padding,))
        return [ConvProblem(channels, height, width, maps, window, stride, padding=padding) for padding in paddings]
    if isinstance(problem, LinearProblem):
        return [LinearProblem(problem.inputs, problem.outputs)]
    sizes = problem.channels, problem.height, problem.width, problem.window, problem.stride
    return [PoolProblem(*sizes, is_max=problem.is_max)]


def _random_problem(operation: str, rng: np.random.Generator) -> Single:
    def draw(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    if operation == "gemm":
        return LinearProblem(draw(1, 150), draw(1, 90), bias=rng.random() < 0.5)
    window, stride = draw(1, 5), draw(1, 2)
    channels, height, width = draw(1, 6), draw(window, 24), draw(window, 24)
    if operation == "pool":
        return PoolProblem(channels, height, width, window, stride, is_max=rng.random() < 0.5)
    bias, padding = rng.random() < 0.5, draw(0, window // 2)
    return ConvProblem(channels, height, width, draw(1, 40), window, stride, bias=bias, padding=padding)
