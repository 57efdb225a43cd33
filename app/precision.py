"""The precisions that may be asked for."""

from __future__ import annotations

PRECISIONS = ("fp32", "fp32x", "tf32", "fp16")  # that may be asked for
