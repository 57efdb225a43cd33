"""How kernels take their arrays: one record for each pointer argument, and the types that arrays have."""

from __future__ import annotations

from dataclasses import dataclass

from app.precision import BY_DTYPE

ITEMSIZE = {"uint8": 1, "float16": 2, "float32": 4, "float64": 8}
DTYPES = tuple(BY_DTYPE)


def storage(dtype: str) -> str:
    """How numbers of an arithmetic type lie in memory."""
    return BY_DTYPE[dtype].stored if dtype in BY_DTYPE else dtype


def wide(dtype: str) -> str:
    """The type of biases and of the epilogue's arithmetic."""
    return "float64" if dtype == "float64" else "float32"


@dataclass(frozen=True)
class Argument:
    """One pointer argument: its dtype and how many elements it must hold (per image, or in all)."""

    name: str
    dtype: str
    per_image: int = 0
    fixed: int = 0
    optional: bool = False
