"""Choose tests to run: a seeded sample of large grids, or one of several parts; count the test processes."""

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass

import pytest

from app.base.processor import core_count
from app.cuda.device import describe_gpu, why_no_gpu
from app.files.checks import BadValueError
from app.kernels.variant import Variant
from app.network.definitions import Network
from tests.support.kernel_cases import Case

WHOLE = 20  # GPU tests with at most so many cases run all of them
SHARE = 4  # of the others at least one case in so many
GRID_SHARE = 8  # of those that are marked as a grid
WORKER_GPU_BYTES, WORKER_HOST_BYTES = 4 << 30, 3 << 30  # what a process of GPU tests needs at most
HEADER = (
    f"sample: seed {{}} chooses one in {SHARE} or more of the cases of large GPU tests, one in {GRID_SHARE} of grids; "
    "every kernel, network, precision and option is in it; --sample N chooses others"
)

Factor = tuple[str, object]
"""What can differ between cases of a test, such as the arithmetic of a kernel, and its value."""


def worker_count() -> int:
    """Return how many test processes run at once.

    With a GPU: as many as cores and memory allow. Without one: one more than cores, because many tests wait for others.
    """
    if why_no_gpu() is not None:
        return core_count() + 1
    host_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gpu_bytes: int = describe_gpu()["memory_bytes"]
    return max(1, min(core_count(), gpu_bytes // WORKER_GPU_BYTES, host_bytes // WORKER_HOST_BYTES))


def part_of(text: str) -> tuple[int, int]:
    """Return (2, 4) for ``2/4``. Raises BadValueError."""
    found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
    part, parts = (int(found[1]), int(found[2])) if found else (1, 0)
    if part > parts:
        raise BadValueError(f"{text!r} is no part: give 2/4 for the second of four")
    return part, parts


def chosen(items: Sequence[pytest.Item], seed: int | None, part: tuple[int, int]) -> list[pytest.Item]:
    """Return the items of one part, in their order; with a seed, only a sample of the grids."""
    kept = {item.nodeid for item in items} if seed is None else set(sampled(items, seed))
    number, parts = part
    return [item for item in items if item.nodeid in kept and _hash(0, item.nodeid) % parts == number - 1]


def sampled(items: Iterable[pytest.Item], seed: int) -> Iterator[str]:
    """Yield the names of a sample, which depends on the seed and the set of items alone, not on their order.

    In a test of many cases on a GPU, or one that is marked as a grid, every value of every factor is met, in each
    kernel that has it.
    """
    tests: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        large = len(cases) > WHOLE and cases[0].get_closest_marker("gpu")
        if not large and not cases[0].get_closest_marker("grid"):
            yield from (case.nodeid for case in cases)
            continue
        shown = {case.nodeid: {*_features(case)} for case in sorted(cases, key=lambda case: _hash(seed, case.nodeid))}
        times = Counter(feature for features in shown.values() for feature in features)
        spare: list[str] = []
        for name, features in shown.items():
            if all(times[feature] > 1 for feature in features):
                times.subtract(features)
                spare.append(name)
            else:
                yield name
        least = -(-len(cases) // (SHARE if large else GRID_SHARE))
        yield from spare[: max(0, least + len(spare) - len(cases))]


def _hash(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8])


def _features(case: pytest.Item) -> Iterator[tuple[Factor, ...]]:
    """Yield each factor of the case together with its kernel, if it has one."""
    params: dict[str, object] = case.callspec.params  # type: ignore[attr-defined]
    factors = [factor for name, value in params.items() for factor in _factors(name, value)]
    kernel = [factor for factor in factors if factor[0] == "kernel"]
    yield from ((*kernel, factor) for factor in factors)


def _factors(name: str, value: object) -> Iterator[Factor]:
    """Yield the factors that a value consists of. A number counts as 0, 1 or more, because sizes are too many."""
    if isinstance(value, Variant):
        yield "kernel", value.source
    elif isinstance(value, Network):
        yield name, value.name
    elif isinstance(value, Case):
        yield from _factors(name, value.row)
        yield from value.parameters
        yield from _factors(name, value.problem)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _factors(f"{name}.{field.name}", getattr(value, field.name))
    elif isinstance(value, bool) or not isinstance(value, int | float):
        yield name, str(value)
    else:
        yield name, min(value, 2)
