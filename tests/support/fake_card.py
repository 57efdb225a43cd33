"""Replace and record CuPy's calls, so that code for a GPU runs without one.

Device memory is host memory, copies copy, and launches only record which kernel they launch. Nothing is compiled.
"""

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import cupy
import numpy as np
import pytest
from cupy.cuda import runtime
from cupy_backends.cuda.api import driver

from app.cuda import device, launch_attributes
from app.kernels import launch

ARCHITECTURE = "sm_90a"
DESCRIBED = {
    "kind": "cuda",
    "name": "fake card",
    "architecture": ARCHITECTURE,
    "multiprocessors": 132,
    "number": 0,
    "driver": "0",
    "driver_cuda": "12.8",
    "cuda": "12.8",
    "cupy": cupy.__version__,
}


class FakeCard:
    """A GPU that computes nothing. calls: recorded driver calls in order: the name of each call, then its operands."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.allocated: dict[int, tuple[int, int, str]] = {}  # number → address, bytes and kind, until it is freed
        self._numbers = count(1)

    def number(self) -> int:
        """Return a unique number for a stream, an event or an allocation."""
        return next(self._numbers)

    def memory(self, nbytes: int, kind: str) -> tuple[int, Any]:
        """Allocate memory aligned to 256 bytes; return its address, and the object that keeps it alive."""
        owner = np.zeros(nbytes + 256, np.uint8)
        address = -(-owner.ctypes.data // 256) * 256
        number = self.number()
        self.allocated[number] = address, nbytes, kind
        weakref.finalize(owner, self.allocated.pop, number, None)
        return address, owner

    def place(self, address: int) -> tuple[str, int, int] | None:
        """Return the kind of memory at an address, the allocation's number and the offset in bytes; None if unknown."""
        for number, (start, nbytes, kind) in [*self.allocated.items()]:
            if start <= address < start + max(nbytes, 1):
                return kind, number, address - start
        return None


class Noting:
    """Base of streams and events that record their calls."""

    def __init__(self, card: FakeCard) -> None:
        self._card, self.ptr = card, card.number()

    def synchronize(self) -> None:
        """Record the wait."""
        self._card.calls.append(("wait", self.ptr))


class Pointer(cupy.cuda.MemoryPointer):
    """A device pointer to which the host copies."""

    def copy_from_host_async(self, source: int, nbytes: int, stream: Any = None) -> None:
        """Copy ``nbytes`` bytes at once, without waiting for the stream."""
        ctypes.memmove(self.ptr, source, nbytes)


def _stream_class(card: FakeCard) -> type[Noting]:
    class Stream(Noting):
        done = True

        def __init__(self, non_blocking: bool = False) -> None:
            super().__init__(card)

        def wait_event(self, event: Any) -> None:
            card.calls.append(("wait_event", self.ptr, event.ptr))

        def begin_capture(self, mode: int | None = None) -> None:
            card.calls.append(("begin_capture", self.ptr, mode))

        def end_capture(self) -> Any:
            card.calls.append(("end_capture", self.ptr))
            return SimpleNamespace(
                upload=lambda stream: card.calls.append(("upload", stream.ptr)),
                launch=lambda stream: card.calls.append(("graph", stream.ptr)),
            )

        def __enter__(self) -> "Stream":
            current.append(self)
            return self

        def __exit__(self, *_: object) -> None:
            current.pop()

    current: list[Any] = [Stream()]
    Stream.ptds = Stream()  # type: ignore[attr-defined]
    Stream.null = current[0]  # type: ignore[attr-defined]
    Stream.current = current  # type: ignore[attr-defined]
    return Stream


def _event_class(card: FakeCard) -> type[Noting]:
    class Event(Noting):
        def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
            super().__init__(card)

        def record(self, stream: Any) -> None:
            card.calls.append(("record", self.ptr, stream.ptr))

    return Event


class Device:
    """The only GPU."""

    attributes: ClassVar = {"MultiProcessorCount": DESCRIBED["multiprocessors"]}

    def __init__(self, number: int | None = None) -> None:
        self.id = number or 0

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None: ...


class Module:
    """A loaded module without machine code."""

    def __init__(self, card: FakeCard) -> None:
        self._card = card
        self._owners: list[Any] = []

    def get_function(self, name: str) -> Any:
        """Return a function whose address identifies its name."""
        text = ctypes.create_string_buffer(name.encode())
        return SimpleNamespace(ptr=ctypes.addressof(text), text=text)

    def get_global_var(self, name: str) -> int:
        """Return the address of memory for the constant array ``name``."""
        address, owner = self._card.memory(1 << 16, "constant")
        self._owners.append(owner)
        return address


@contextmanager
def fake_card() -> Iterator[FakeCard]:
    """Replace the GPU by a ``FakeCard`` in every thread while the block runs."""
    card = FakeCard()

    def allocated(nbytes: int) -> Any:
        address, owner = card.memory(nbytes, "device")
        return cupy.cuda.UnownedMemory(address, nbytes, owner, 0)

    class PinnedMemory:
        def __init__(self, nbytes: int) -> None:
            self.ptr, self._owner = card.memory(nbytes, "pinned")
            self.size = nbytes

    def attributes(address: int) -> Any:
        place = card.place(address)
        pinned = place is not None and place[0] == "pinned"
        kind = runtime.memoryTypeHost if pinned else runtime.memoryTypeUnregistered
        return SimpleNamespace(type=kind, devicePointer=address)

    def copied(target: int, source: int, nbytes: int, direction: int, stream: int) -> None:
        card.calls.append(("copy", card.place(target), card.place(source), nbytes, direction, stream))
        ctypes.memmove(target, source, nbytes)

    def arguments(values: int, many: int = 3) -> list[Any]:
        """Return the first ``many`` arguments of a launch, all of them pointers. values: address of their addresses."""
        addresses = ctypes.cast(values, ctypes.POINTER(ctypes.c_void_p))
        read = [ctypes.cast(addresses[at], ctypes.POINTER(ctypes.c_void_p))[0] for at in range(many)]
        return [None if address is None else card.place(address) for address in read]

    def launched(function: int, *others: Any) -> None:
        *sizes, stream, values, _ = others
        card.calls.append(("launch", ctypes.string_at(function).decode(), *sizes, stream, *arguments(values)))

    def launched_ex(config: Any, function: Any, values: Any) -> None:
        found = config._obj
        numbers = [attribute.number for attribute in found.attributes[: found.attribute_count]]
        name = ctypes.string_at(function.value).decode()
        where = (*found.grid, *found.block, found.shared_bytes, found.stream, tuple(numbers))
        card.calls.append(("launch_ex", name, *where, *arguments(ctypes.addressof(values))))

    def driver_called(name: str, *given: Any) -> None:
        if name == "cuGraphAddKernelNode_v2":
            node = given[-1]._obj
            text = ctypes.string_at(node.function).decode()
            card.calls.append(("node", text, *node.grid, *node.block, node.shared_bytes, *arguments(node.values)))
        elif name == "cuGraphCreate":
            given[0]._obj.value = card.number()

    stream_class = _stream_class(card)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, replacement in (
            (cupy.cuda, "Memory", allocated),
            (cupy.cuda, "PinnedMemory", PinnedMemory),
            (cupy.cuda, "MemoryPointer", Pointer),
            (cupy.cuda, "Stream", stream_class),
            (cupy.cuda, "Event", _event_class(card)),
            (cupy.cuda, "Device", Device),
            (cupy.cuda, "get_current_stream", lambda: stream_class.current[-1]),  # type: ignore[attr-defined]
            (cupy.cuda, "get_elapsed_time", lambda first, last: float(last.ptr - first.ptr)),
            (runtime, "pointerGetAttributes", attributes),
            (runtime, "memcpyAsync", copied),
            (runtime, "eventRecord", lambda event, stream: card.calls.append(("record", event, stream))),
            (runtime, "getDevice", lambda: 0),
            (runtime, "setDevice", lambda number: card.calls.append(("setDevice", number))),
            (runtime, "driverGetVersion", lambda: 12_080),
            (driver, "launchKernel", launched),
            (driver, "funcSetAttribute", lambda *_: None),
            (launch_attributes, "launch_kernel_ex", launched_ex),
            (launch_attributes, "call_driver", driver_called),
            (runtime, "graphInstantiate", lambda graph: graph),
            (runtime, "graphLaunch", lambda graph, stream: card.calls.append(("graph", stream))),
            (runtime, "graphExecDestroy", lambda graph: None),
            (runtime, "graphDestroy", lambda graph: card.calls.append(("destroy",))),
            (launch, "compile_kernel", lambda *_, **__: b""),
            (launch, "load_cubin", lambda _: Module(card)),
            (device, "describe_gpu", lambda: dict(DESCRIBED)),
            (device, "choose_device", lambda requested, *_: ("cpu" if requested == "cpu" else "cuda", None)),
        ):
            patch.setattr(owner, name, replacement)
        cupy.cuda.set_allocator(lambda nbytes: Pointer(allocated(nbytes), 0))
        try:
            yield card
        finally:
            cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
