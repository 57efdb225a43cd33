"""Launch one of two kernels with bit-identical results: one for few images, one for more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy

from app.kernels.launch import Launch

if TYPE_CHECKING:
    from app.cuda.graphs import KernelGraph


class LaunchByCount:
    """Launch ``few`` for at most ``most`` images, ``many`` for more. Callers use it like a ``Launch``.

    Both launches are bound to the same arrays, but each has a separate copy of the weights in its layout.
    """

    def __init__(self, few: Launch, many: Launch, most: int) -> None:
        self._few, self._many, self._most = few, many, most

    def launch_for(self, images: int) -> Launch:
        """Return the launch that runs for ``images`` images."""
        return self._few if images <= self._most else self._many

    def __call__(self, stream: int, images: int) -> None:
        """Enqueue the kernel for the first ``images`` images of the bound buffers. stream: a pointer."""
        self.launch_for(images)(stream, images)

    def add_to(self, graph: KernelGraph, images: int) -> None:
        """Add the kernels for the first ``images`` images to a graph. It requires ``launches_only_kernels``."""
        self.launch_for(images).add_to(graph, images)

    @property
    def launches_only_kernels(self) -> bool:
        """Return whether every action of both launches a kernel."""
        return self._few.launches_only_kernels and self._many.launches_only_kernels

    @property
    def workspace(self) -> list[cupy.ndarray]:
        """Return the scratch arrays of both launches."""
        return [*self._few.workspace, *self._many.workspace]

    def set_argument_address(self, place: int, address: int) -> None:
        """Set the address of argument number ``place``, the images or a result, for later calls."""
        for launch in (self._few, self._many):
            launch.set_argument_address(place, address)


AnyLaunch = Launch | LaunchByCount
