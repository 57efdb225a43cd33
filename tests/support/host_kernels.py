"""Kernels run by the processor (app/ladder/emulation) in tests: also training's, in the card's place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.kernels.train.train import FOLDER
from app.ladder.emulation import library
from app.ladder.emulation.building import COMPILER
from app.ladder.emulation.library import guarded
from app.layers import Layer, Shape


class Memory:
    """What is asked of a device array's memory."""

    def __init__(self, address: int) -> None:
        self.ptr = address

    def copy_from_host_async(self, source: int, nbytes: int, _: Any) -> None:
        ctypes.memmove(self.ptr, source, nbytes)

    def memset(self, value: int, nbytes: int, _: Any = None) -> None:
        ctypes.memset(self.ptr, value, nbytes)

    memset_async = memset


class HostArray(np.ndarray):
    """An array in place of one on the card."""

    @property
    def data(self) -> Any:
        return Memory(self.ctypes.data)

    def get(self, stream: Any = None) -> np.ndarray:
        return np.array(self)


def uploaded(array: np.ndarray) -> HostArray:
    """In place of ``app.cuda.memory.uploaded``."""
    return guarded(array.ravel()).view(HostArray)


def device_array(elements: int, dtype: str) -> HostArray:
    """In place of ``app.cuda.memory.device_array``: NaN, or no place in any array."""
    return uploaded(np.full(elements * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype))


class Stream:
    """In place of CuPy's: everything on it is done at once."""

    ptr = 0
    null: Stream

    def __init__(self, non_blocking: bool = False) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        """It is."""


Stream.null = Stream()


def inference_launch(site: Any, layer: Layer, shape: Shape, x: Any, y: Any, dtype: str) -> Callable[[int, int], None]:
    """The layer's reference in place of its kernel, which has tests of its own."""

    def launch(_: int, images: int) -> None:
        inputs = np.array(x[: images * int(np.prod(shape))]).reshape(images, *shape)
        result = layer.reference(inputs, {})
        y[: result.size] = result.ravel()

    return launch


@contextmanager
def on_the_processor(folder: Path) -> Iterator[None]:
    """Within the block training's kernels run on the processor; an access beyond an input's end is a crash."""
    import cupy

    from app.cuda import memory
    from app.training.gpu import arena, kernels, products, stages, trainer

    skip_without_compiler()
    HostFunction.folder = folder
    replaced = {
        "training_kernel": HostFunction,
        "device_array": device_array,
        "uploaded": uploaded,
        "pinned_array": np.empty,
        "capability": lambda: (9, 0),
        "inference_launch": inference_launch,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy.cuda, "Stream", Stream)
        patch.setattr(cupy.cuda, "get_current_stream", lambda: Stream.null)
        for module in (memory, arena, kernels, products, stages, trainer):
            for name in replaced.keys() & vars(module).keys():
                patch.setattr(module, name, replaced[name])
        yield


def skip_without_compiler() -> None:
    """Skip the test where kernels cannot be compiled for the processor."""
    if COMPILER is None:
        pytest.skip("g++ is not installed")


class HostKernel(library.HostKernel):
    """The same; skips where there is no compiler."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        skip_without_compiler()
        super().__init__(*arguments, **named)


class HostFunction(HostKernel):
    """In place of ``app.training.gpu.kernels.training_kernel``. ``folder`` holds what is compiled."""

    folder: Path

    def __init__(self, name: str, defines: Mapping[str, str | int], arch: str, *, threads: int) -> None:
        super().__init__(self.folder, FOLDER / f"train_{name}.cu", f"train_{name}", defines, threads)
