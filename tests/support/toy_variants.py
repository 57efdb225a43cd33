"""Rows of the registry made up for tests."""

from dataclasses import replace
from typing import Any

from app.kernels.variant import KernelLaunch, LaunchConfig, Variant


def toy_variant(step: int, name: str, **changes: Any) -> Variant:
    """An automatic convolution in float32 of one launch that serves every problem; ``changes`` to its fields."""
    launch = KernelLaunch(32, lambda _: (1, 1, 1))
    row = Variant(
        "conv",
        step,
        name,
        summary="for tests",
        system="none",
        dtypes=("float32",),
        configure=lambda problem, parameters: LaunchConfig({}, (launch,)),
        automatic=True,
    )
    return replace(row, **changes)
