"""A stand-in for a CUDA event or stream that counts how often the host waits for it."""

from typing import Any


class Counting:
    """Forwards everything to an event or stream and notes each wait of the host in a list."""

    def __init__(self, inner: Any, waits: list[str], name: str) -> None:
        self.inner, self._waits, self._name = inner, waits, name

    def synchronize(self) -> None:
        self._waits.append(self._name)
        self.inner.synchronize()

    def record(self, stream: Any) -> None:
        self.inner.record(getattr(stream, "inner", stream))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
