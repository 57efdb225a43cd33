"""A plan's kernels bound to buffers: to a lane's, into which chunks are copied, or to a whole batch in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from app.cuda.memory import device_array, pinned_array
from app.kernels.launch import Kernel, Launch
from app.planning.plan import ExecutionPlan

Weights = Sequence[Sequence[Any]]  # on the device, for each node of a plan


def bound(
    plan: ExecutionPlan, kernels: Sequence[Kernel], weights: Weights, buffers: Mapping[str, cupy.ndarray], images: int
) -> list[Launch]:
    """The plan's launches on these buffers, for up to so many images."""
    return [
        kernel.bind([buffers[node.reads], *arrays, *(buffers[name] for name in node.writes)], images)
        for node, kernel, arrays in zip(plan.nodes, kernels, weights, strict=True)
    ]


def copy(target: int, source: int, nbytes: int, direction: int, stream: int) -> None:
    """Enqueue a copy from address to address; direction as the runtime API names it."""
    runtime.memcpyAsync(target, source, nbytes, direction, stream)


class Lane:
    """One stream with its own device buffers and the kernels bound to them, for chunks of up to ``chunk`` images."""

    def __init__(self, plan: ExecutionPlan, kernels: list[Kernel], weights: list[list[Any]], chunk: int) -> None:
        self.chunk = chunk
        self.buffers = {name: device_array(chunk * n, dtype) for name, (dtype, n) in plan.buffers.items()}
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.copied = cupy.cuda.Event(disable_timing=True)  # the staging buffer has been read
        self.staging: np.ndarray | None = None
        self.launches = bound(plan, kernels, weights, self.buffers, chunk)

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """The buffers and the kernels' workspaces: all that a run writes on the device."""
        return [*self.buffers.values(), *(array for launch in self.launches for array in launch.workspace)]

    @property
    def nbytes(self) -> int:
        """Device memory held."""
        return sum(array.nbytes for array in self.arrays)

    def stage(self, images: np.ndarray) -> np.ndarray:
        """The images copied into this lane's page-locked buffer, once that is free."""
        if self.staging is None:
            self.staging = pinned_array((self.chunk, *images.shape[1:]), images.dtype)
        self.copied.synchronize()
        staged = self.staging[: len(images)]
        np.copyto(staged, images)
        return staged


@dataclass(frozen=True)
class Outputs:
    """Page-locked host arrays that results are copied into: labels (N) uint8; logits (N, classes) or None."""

    labels: np.ndarray
    logits: np.ndarray | None = None
