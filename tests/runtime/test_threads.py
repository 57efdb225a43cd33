"""Sessions in several threads: nothing that one does may break what another captures; tests/soak.py tries it."""

import re
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")
from cupy.cuda import runtime

from app.cuda.graph_capture import BatchGraph
from app.kernels import cublas

APP = Path(__file__).parents[2] / "app"
# What waits for all streams of a device, or for those that the null stream waits for; CuPy's arrays copy so by default.
DEVICE_WIDE = re.compile(
    r"\bdeviceSynchronize\b|\bDevice\([^)]*\)\.synchronize\b|\bStream\.null\b|\.copy_from_host\(|\bruntime\.memcpy\("
    r"|\bcupy\.(?:asarray|array|asnumpy|zeros|ones|full)\("
)


def test_nothing_that_sessions_run_waits_for_the_device() -> None:
    paths = [path for path in APP.rglob("*.py") if "bench" not in path.parts]
    assert APP / "session.py" in paths or APP / "runtime" / "session.py" in paths
    assert not [path for path in paths if DEVICE_WIDE.search(path.read_text(encoding="utf-8"))]


class Stream:
    """Notes how a capture begins, and whether another thread could make the device wait meanwhile."""

    def __init__(self) -> None:
        self.mode: int | None = None
        self.let_in: list[bool] = []

    def begin_capture(self, mode: int | None = None) -> None:
        self.mode = mode

    def end_capture(self) -> Any:
        self._try()
        return self

    def upload(self, _: object) -> None:
        self._try()

    def _try(self) -> None:
        def enter() -> None:
            entered = cublas.DEVICE_WIDE.acquire(blocking=False)
            if entered:
                cublas.DEVICE_WIDE.release()
            self.let_in.append(entered)

        other = Thread(target=enter)
        other.start()
        other.join()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_nobody_waits_for_the_device_while_a_graph_is_captured(error: type[BaseException] | None) -> None:
    graph, stream = BatchGraph(), Stream()
    graph._stream = stream

    def enqueue(_: object) -> None:
        if error is not None:
            raise error

    if error is None:
        graph._captured(enqueue)
        assert stream.let_in == [False, True]
    else:
        with pytest.raises(error):
            graph._captured(enqueue)
        assert stream.let_in == [False]
    assert stream.mode == runtime.streamCaptureModeRelaxed
    stream._try()
    assert stream.let_in[-1]


def test_a_handle_of_cublas_waits_for_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making and destroying one waits for the device."""
    from cupy_backends.cuda import libs

    held: list[bool] = []

    def owned(*_: object) -> int:
        held.append(cublas.DEVICE_WIDE._is_owned())  # type: ignore[attr-defined]
        return 1

    monkeypatch.setitem(vars(libs), "cublas", SimpleNamespace(create=owned, destroy=owned))
    handle = cublas.Handle()
    del handle
    assert held == [True, True]


def test_a_borrowed_stream_is_taken_without_a_warning() -> None:
    import cupy

    assert cupy.cuda.Stream.from_external(cublas.Borrowed(4711)).ptr == 4711
    assert "ExternalStream" not in Path(cublas.__file__).read_text(encoding="utf-8")
