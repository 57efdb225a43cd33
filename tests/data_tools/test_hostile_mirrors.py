"""Test mirrors that break HTTP or never end: each gives a one-line error, soon, within the memory limit."""

import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from data_tools import download
from data_tools.download import DownloadError, transfer_file

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = b"Content-Length: 0\r\nConnection: close\r\n"
MOVED = b"HTTP/1.1 302 Found\r\n" + EMPTY + b"Location: "
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b"0123456789"
LIMIT = 1000
ARRIVES, AGAIN, NEVER = range(3)
# Name → bytes sent before the connection is closed; whether the body arrives, and otherwise whether to retry.
ANSWERS: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", AGAIN),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", AGAIN),
    "a status that is no number": (b"HTTP/1.1 fine OK\r\n\r\n", AGAIN),
    "a status without end": (b"HTTP/1.1 200 " + b"O" * 70_000 + b"\r\n\r\n", AGAIN),
    "a header without end": (OK + b"X: " + b"x" * 70_000 + b"\r\n\r\n", AGAIN),
    "status 204": (b"HTTP/1.1 204 No\r\n\r\n", NEVER),
    "status 304": (b"HTTP/1.1 304 Same\r\n\r\n", NEVER),
    "status 403": (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", NEVER),
    "status 503": (b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n", AGAIN),
    "more than there can be": (OK + b"Content-Length: 2000\r\n\r\n" + bytes(2000), NEVER),
    "less than was said": (OK + b"Content-Length: 20\r\n\r\n" + BODY, AGAIN),
    "a length of 5,000 digits": (OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n" + BODY, ARRIVES),
    "a negative length": (OK + b"Content-Length: -5\r\n\r\n" + BODY, ARRIVES),
    "two lengths": (OK + b"Content-Length: 10\r\nContent-Length: 12\r\n\r\n" + BODY, AGAIN),
    "a negative chunk": (CHUNKED + b"-5\r\n01234\r\n0\r\n\r\n", NEVER),
    "a chunk of -1": (CHUNKED + b"-1\r\n" + BODY, AGAIN),
    "a chunk that is no number": (CHUNKED + b"zz\r\n01234\r\n0\r\n\r\n", AGAIN),
    "chunks that are cut": (CHUNKED + b"a\r\n01234", AGAIN),
    "another encoding": (OK + b"Content-Encoding: gzip\r\nContent-Length: 10\r\n\r\n" + BODY, ARRIVES),
    "an unknown encoding": (OK + b"Content-Encoding: \xff\r\nContent-Length: 10\r\n\r\n" + BODY, ARRIVES),
    "a redirect to itself": (MOVED + b"/\r\n\r\n", NEVER),
    "a redirect to a bad IPv6 address": (MOVED + b"http://[::1\r\n\r\n", NEVER),
    "a redirect in Latin-1": (MOVED + b"http://\xe4\xff/\r\n\r\n", NEVER),
    "a redirect to port 99999": (MOVED + b"http://127.0.0.1:99999/\r\n\r\n", NEVER),
    "a redirect to a file": (MOVED + b"file:///etc/passwd\r\n\r\n", AGAIN),
}


def endless_answer(start: bytes, drop: bytes, pause: float = 0.02) -> Callable[[socket.socket], None]:
    """Return an answer that sends a little after each pause, so that no read times out; a pause of 0 gives a flood."""

    def answer(client: socket.socket) -> None:
        client.sendall(start)
        while True:
            client.sendall(drop)
            time.sleep(pause)

    return answer


ENDLESS: dict[str, Callable[[socket.socket], None]] = {
    "a body that drips": endless_answer(OK + b"Content-Length: 1000\r\n\r\n", b"0"),
    "headers that drip": endless_answer(OK + b"X: ", b"x"),
    "a redirect with a body without end": endless_answer(
        b"HTTP/1.1 302 Found\r\nLocation: /next\r\n\r\n", bytes(1 << 20), 0
    ),
    "a chunk of -1 without end": endless_answer(CHUNKED + b"-1\r\n", bytes(1 << 20), 0),
}


class Server:
    """An HTTP server at ``url`` that answers GET by ``answer(socket, path)``, and HEAD by ``head(socket, path)``."""

    def __init__(
        self, answer: Callable[[socket.socket, str], None], head: Callable[[socket.socket, str], None]
    ) -> None:
        self._answer, self._head = answer, head
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._meet, args=(client,), daemon=True).start()

    def _meet(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            method, path, *_ = client.recv(4096).decode("latin-1").split(" ")
            (self._head if method == "HEAD" else self._answer)(client, path)


class Starter(Protocol):
    def __call__(self, answer: Callable[[socket.socket], None], head: bytes = OK + EMPTY + b"\r\n") -> str:
        """Start a server with this answer to GET, and to HEAD; return its address."""


# The HTTP libraries leave sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def collect_sockets() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def serve() -> Iterator[Starter]:
    servers = []

    def start(answer: Callable[[socket.socket], None], head: bytes = OK + EMPTY + b"\r\n") -> str:
        servers.append(Server(lambda client, _: answer(client), lambda client, _: client.sendall(head)))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_invalid_answers_give_one_line_errors(name: str, serve: Starter, tmp_path: Path) -> None:
    answer, code = ANSWERS[name]
    url = serve(lambda client: client.sendall(answer))
    if code == ARRIVES:
        transfer_file(url, tmp_path / "file", LIMIT)
        assert (tmp_path / "file").read_bytes() == BODY
        return
    with pytest.raises(DownloadError) as caught:
        transfer_file(url, tmp_path / "file", LIMIT)
    text = str(caught.value)
    assert caught.value.transient == (code == AGAIN), text
    assert 3 < len(text) < 300 and text.isascii() and text.isprintable()


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_answers_are_ended(name: str, serve: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.3)
    start = time.monotonic()
    with pytest.raises(DownloadError, match=r"sends less than 32 kB/s for 0.3 s|takes more than .* of memory"):
        download.download_file(serve(ENDLESS[name]), tmp_path / "file", LIMIT)
    assert time.monotonic() - start < 5  # includes the start of the process


def test_a_slow_but_steady_mirror_is_accepted(serve: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(client: socket.socket) -> None:
        client.sendall(OK + b"Content-Length: 458752\r\n\r\n")
        for _ in range(7):
            client.sendall(bytes(1 << 16))
            time.sleep(0.2)

    monkeypatch.setattr(download, "PATIENCE_SECONDS", 1.0)
    download.download_file(serve(slow), tmp_path / "file", 1 << 20)
    assert (tmp_path / "file").stat().st_size == 7 << 16


def test_bad_answers_to_a_head_request_give_reasons(serve: Starter, recwarn: pytest.WarningsRecorder) -> None:
    urls = {serve(lambda client: None, answer): name for name, (answer, _) in ANSWERS.items()}
    found = download.find_unreachable_urls(list(urls))
    assert {urls[url] for url in found} >= {"nothing", "no HTTP", "a redirect in Latin-1", "a header without end"}
    assert not [warning for warning in recwarn if "Thread" in type(warning.message).__name__]
