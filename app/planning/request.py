"""The network options of a command, as given: names that ``choices.load_graph`` resolves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NetworkRequest:
    """Which network to run, with which weights, kernels and precision.

    network: None for that of ``weights``; weights: None for those shipped. kernels: the options conv, fc and pool →
    a kernel's name, ``auto``, or ``LAYER=NAME,LAYER=NAME``. fuse: whether one kernel may compute several layers.
    """

    network: str | None
    weights: Path | None
    kernels: Mapping[str, str]
    latency: bool
    precision: str
    fuse: bool
