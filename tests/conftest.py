"""Fixtures for all tests, and the rule for tests marked ``gpu``: skipped, with the reason, where there is none."""

from __future__ import annotations

import os

import pytest

# Chunks, not the matrix library, are what the CPU route runs in parallel; as in main.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from app.device import why_no_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU, each with the same reason that the program would print."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_no_gpu() if marked else None
    for item in marked:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {reason}"))
    if marked and reason is None and os.environ.get("LENET_NO_POOL"):
        import cupy

        cupy.cuda.set_allocator(None)  # a checker then sees the exact bounds of every array
