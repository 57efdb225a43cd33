"""Choose a launch by the number of images, among kernels with bit-identical results."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import cupy

from app.kernels.launch import Launch

if TYPE_CHECKING:
    from app.cuda.graphs import KernelGraph


class LaunchByCount:
    """Several launches behind the interface of one ``Launch``: a call chooses one by its number of images.

    Launch i takes up to most[i] images; the last one takes more. All are bound to the same arrays, except that
    launches that pack the weights have their own copy in their layout.
    """

    def __init__(self, launches: Sequence[Launch], most: Sequence[int]) -> None:
        self.launches, self._most = launches, most

    def launch_for(self, images: int) -> Launch:
        """Return the launch that runs for ``images`` images."""
        return self.launches[bisect_left(self._most, images)]

    def __call__(self, stream: int, images: int) -> None:
        """Enqueue the kernel for the first ``images`` images of the bound buffers. stream: a pointer."""
        self.launch_for(images)(stream, images)

    def add_to(self, graph: KernelGraph, images: int) -> None:
        """Add the kernels for the first ``images`` images to a graph. Requires ``launches_only_kernels``."""
        self.launch_for(images).add_to(graph, images)

    @property
    def launches_only_kernels(self) -> bool:
        """Return whether every action of all launches is a kernel."""
        return all(launch.launches_only_kernels for launch in self.launches)

    @property
    def workspace(self) -> list[cupy.ndarray]:
        """Return the scratch arrays of all launches."""
        return [array for launch in self.launches for array in launch.workspace]

    def set_argument_address(self, place: int, address: int) -> None:
        """Set the device address of argument number ``place``, the images or a result, for later calls."""
        for launch in self.launches:
            launch.set_argument_address(place, address)


AnyLaunch = Launch | LaunchByCount
