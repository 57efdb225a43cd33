"""What a run does unless it is told otherwise."""

from __future__ import annotations

DEFAULT_STREAMS = 4  # chunks in flight at once
DEFAULT_WARMUP = 5  # untimed runs
