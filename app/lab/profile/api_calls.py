"""Count and time the host's CUDA API calls in a run; wrappers replace the functions for this time."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from app.base.clock import now
from app.base.frozen import Frozen
from app.records import profile

Function = Callable[..., Any]
Target = tuple[str, Any, str]  # CUDA function; the module or class where callers look it up; its name there


class Call(Frozen):
    """A call of a CUDA API function. start, stop: when it began and returned, in seconds of the host's clock."""

    name: str
    start: float
    stop: float


def traced_functions() -> list[Target]:
    """Return the CUDA API functions that the engine and the launches call for every batch."""
    import cupy
    from cupy.cuda import runtime
    from cupy_backends.cuda.api import driver

    from app.cuda import launch_attributes

    found: list[Target] = [
        ("cuLaunchKernel", driver, "launchKernel"),
        ("cuLaunchKernelEx", launch_attributes, "launch_kernel_ex"),
        ("cudaMemcpyAsync", runtime, "memcpyAsync"),
        ("cudaPointerGetAttributes", runtime, "pointerGetAttributes"),
        ("cudaEventRecord", cupy.cuda.Event, "record"),
        ("cudaEventSynchronize", cupy.cuda.Event, "synchronize"),
        ("cudaStreamSynchronize", cupy.cuda.Stream, "synchronize"),
    ]
    library = cublas_if_loaded()
    if library is not None:
        found += ("cublasSetStream", library, "setStream"), ("cublasSgemm", library, "sgemm")
    return found


def cublas_if_loaded() -> Any:
    """Return CuPy's cuBLAS binding if a kernel has loaded it; otherwise None."""
    return sys.modules.get("cupy_backends.cuda.libs.cublas")


@contextmanager
def wrap_attribute(owner: Any, attribute: str, wrap: Callable[[Function], Function]) -> Iterator[None]:
    """Replace ``owner.attribute`` by ``wrap(owner.attribute)`` while the block runs."""
    original = getattr(owner, attribute)
    inherited = attribute not in vars(owner)
    setattr(owner, attribute, wrap(original))
    try:
        yield
    finally:
        if inherited:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, original)


@contextmanager
def record_calls(among: Sequence[Target] | None = None) -> Iterator[list[Call]]:
    """Yield a list that collects every call of the targets in the block. among: by default ``traced_functions()``."""
    calls: list[Call] = []

    def make_timed_wrapper(name: str, original: Function) -> Function:
        def call_timed(*arguments: Any, **named: Any) -> Any:
            start = now()
            try:
                return original(*arguments, **named)
            finally:
                calls.append(Call(name, start, now()))

        return call_timed

    with ExitStack() as undo:
        for name, owner, attribute in traced_functions() if among is None else among:
            undo.enter_context(wrap_attribute(owner, attribute, partial(make_timed_wrapper, name)))
        yield calls


def summarise_calls(calls: Sequence[Call], runs: int, host_ms: float) -> list[profile.Call]:
    """Return the number of calls and the times of each API function per run, the most expensive first.

    host_ms: time in ms from a run's start to its end on the host; the key ``share`` is a function's part of it.
    """
    spent: dict[str, list[float]] = {}
    for call in calls:
        spent.setdefault(call.name, []).append((call.stop - call.start) * 1e3)
    rows: list[profile.Call] = [
        {
            "name": name,
            "calls": len(times) / runs,
            "total_ms": sum(times) / runs,
            "share": sum(times) / runs / host_ms,
            "average_us": sum(times) / len(times) * 1e3,
            "max_us": max(times) * 1e3,
        }
        for name, times in spent.items()
    ]
    return sorted(rows, key=lambda row: -row["total_ms"])
