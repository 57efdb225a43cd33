"""The request of the main job, and the defaults of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.output import Output
from app.planning.request import NetworkRequest

DEFAULT_STREAMS = 4  # chunks in flight at once
DEFAULT_WARMUP = 5  # untimed runs


@dataclass(frozen=True)
class Pipeline:
    """How a batch is cut up on the GPU. chunk: images per copy, None for the default."""

    streams: int
    chunk: int | None


@dataclass(frozen=True)
class ImagesRequest:
    """Which images to classify: Fashion-MNIST's, or those of the file ``data``.

    labels: a file of them, or ``none``. batch: None for the default; cycle: whether it may exceed the images there are.
    """

    split: str | None
    data_dir: Path | None
    data: Path | None
    labels: str | None
    batch: int | None
    cycle: bool


@dataclass(frozen=True)
class RunRequest:
    """The options of the main job. repeat: timed runs, None for the default; compare: a second precision to time.

    recheck: whether to recompute all reference labels; min_accuracy: share of correct answers below which it fails.
    """

    network: NetworkRequest
    images: ImagesRequest
    pipeline: Pipeline
    device: str
    repeat: int | None
    warmup: int
    compare: str | None
    recheck: bool
    min_accuracy: float | None
    output: Output
