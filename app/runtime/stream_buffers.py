"""Bind a plan's kernels to buffers: to those of a stream, which chunks are copied into, or to host memory."""

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
    """The plan's launches on these buffers, for up to ``images`` images."""
    return [
        kernel.bind([buffers[node.reads], *arrays, *(buffers[name] for name in node.writes)], images)
        for node, kernel, arrays in zip(plan.nodes, kernels, weights, strict=True)
    ]


def copy(target: int, source: int, nbytes: int, direction: int, stream: int) -> None:
    """Enqueue a copy between two addresses. direction: the runtime API's constant."""
    runtime.memcpyAsync(target, source, nbytes, direction, stream)


class StreamBuffers:
    """One stream with its own device buffers and the kernels bound to them, for chunks of up to ``chunk`` images.

    named: the buffers by the plan's names.
    """

    def __init__(self, plan: ExecutionPlan, kernels: list[Kernel], weights: list[list[Any]], chunk: int) -> None:
        self.chunk = chunk
        self.named = {name: device_array(chunk * n, dtype) for name, (dtype, n) in plan.buffers.items()}
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.copied = cupy.cuda.Event(disable_timing=True)  # the staging buffer has been read
        self.staging: np.ndarray | None = None
        self.launches = bound(plan, kernels, weights, self.named, chunk)

    @property
    def arrays(self) -> list[cupy.ndarray]:
        """All arrays that a run writes on the device: the buffers and the kernels' workspaces."""
        return [*self.named.values(), *(array for launch in self.launches for array in launch.workspace)]

    @property
    def nbytes(self) -> int:
        """Device memory held."""
        return sum(array.nbytes for array in self.arrays)

    def stage(self, images: np.ndarray) -> np.ndarray:
        """Copy the images into the page-locked staging buffer as soon as that is free; return them there."""
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
