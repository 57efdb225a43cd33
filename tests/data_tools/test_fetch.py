"""Fetching Fashion-MNIST, or a small stand-in for it, from a loopback server in all its moods."""

import gzip
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import Popen

import pytest

from app.errors import UserError
from data_tools import download, fashion_mnist
from data_tools.fashion_mnist import fetch, load_split
from tests.support.tiny_fashion import FILES, NAMES, check_loaded, check_only_the_files, names, write

Use = Callable[..., None]


class MirrorServer(ThreadingHTTPServer):
    """Counts what was asked for; its stalled answers end when it is released."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Mirror)
        self.files = files
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()


class Mirror(BaseHTTPRequestHandler):
    """Serves /MIRROR/FILE; what becomes of it, MIRROR says."""

    server: MirrorServer

    def do_HEAD(self) -> None:
        if self.path.startswith("/silent"):
            self.server.released.wait(10)
        self.answer(200, b"")

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        mirror, name = self.path[1:].split("/")
        body = self.server.files[name]
        if mirror == "absent":
            self.answer(404, b"<html>not here</html>")
        elif mirror == "flaky" and self.server.asked[self.path] < 3:
            self.answer(503, b"")
        elif mirror == "portal":
            self.answer(200, b"<html>log in first</html>")
        elif mirror == "other":
            self.answer(200, gzip.compress(gzip.decompress(body)[:-1] + b"?"))
        elif mirror == "endless":
            self.answer(200, bytes(1 << 20))
        elif mirror == "cut":
            self.answer(200, body[: len(body) // 2], length=len(body))
        elif mirror == "stalling":
            self.answer(200, body[: len(body) // 2], length=len(body))
            self.wfile.flush()
            self.server.released.wait(10)
        else:
            self.answer(200, body)

    def answer(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(cache: Path, tmp_path: Path) -> Iterator[MirrorServer]:
    http = MirrorServer({path.name: path.read_bytes() for path in write(tmp_path / "source").iterdir()})
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield http
    http.released.set()
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, server: MirrorServer) -> Use:
    """Makes these the only mirrors."""

    def use(*mirrors: str) -> None:
        bases = (f"http://127.0.0.1:{server.server_port}/{mirror}/" for mirror in mirrors)
        monkeypatch.setattr(fashion_mnist, "MIRRORS", tuple(bases))

    return use


def test_fetches_from_the_first_mirror(
    cache: Path, server: MirrorServer, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use("good", "spare")
    check_loaded()
    check_only_the_files(cache)
    assert server.asked == Counter({f"/good/{name}.gz": 1 for name in NAMES})
    check_loaded()
    assert sum(server.asked.values()) == 2, "the cache is used from then on"
    assert str(cache) in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["absent", "portal", "other", "endless", "cut", "stalling", "silent"])
def test_next_mirror_where_one_fails(cache: Path, server: MirrorServer, use: Use, bad: str) -> None:
    use(bad, "good")
    check_loaded()
    check_only_the_files(cache)
    attempts = {"silent": 0, "cut": 3}.get(bad, 1)
    assert server.asked[f"/{bad}/{NAMES[0]}.gz"] == attempts
    assert server.asked[f"/{bad}/{NAMES[1]}.gz"] == 0, "a mirror that failed is not asked again"


def test_server_errors_are_tried_again(cache: Path, server: MirrorServer, use: Use) -> None:
    use("flaky")
    check_loaded()
    assert server.asked[f"/flaky/{NAMES[0]}.gz"] == 3


def test_when_all_fails_the_error_says_it_all(
    cache: Path, server: MirrorServer, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ("absent", "portal", "endless", "cut")
    use(*bad, "silent")
    unused = "http://127.0.0.1:9/"  # the discard port: nothing listens
    monkeypatch.setattr(fashion_mnist, "MIRRORS", (*fashion_mnist.MIRRORS, unused))
    with pytest.raises(UserError) as caught:
        load_split("test")
    # No time is lost: who gave no answer is not asked for a file, and nobody for the second one.
    assert server.asked == {f"/{mirror}/{NAMES[0]}.gz": 3 if mirror == "cut" else 1 for mirror in bad}
    message = str(caught.value)
    assert message.splitlines()[0] == "cannot get Fashion-MNIST: no source worked"
    reasons = ["HTTP status 404", "is a web page", "sends more than", "(3 attempts)", "no answer within 0.5 s"]
    reasons += [f"{unused}{NAMES[0]}.gz: Connection refused\n", "apt-get is not on PATH"]
    for text in (*reasons, "apt-get is not on PATH", str(cache), *NAMES, *(file.sha256 for file in FILES)):
        assert text in message
    assert all(f"{mirror}{NAMES[0]}.gz: " in message for mirror in fashion_mnist.MIRRORS)
    assert names(cache) == []


def test_a_bad_cached_file_is_replaced(
    cache: Path, server: MirrorServer, use: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use("good")
    load_split("test")
    bad = cache / f"{NAMES[1]}.gz"
    bad.write_bytes(bad.read_bytes()[:-3])
    check_loaded()
    check_only_the_files(cache)
    assert f"warning: ignoring a bad file: {bad} is a truncated gzip" in capsys.readouterr().err
    assert server.asked[f"/good/{NAMES[0]}.gz"] == 1, "the good file is kept"


def test_interrupted_download_leaves_nothing(cache: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: Popen[bytes], target: Path, _: object) -> None:
        process.wait()
        assert target.exists() and len(names(cache)) == 1
        raise KeyboardInterrupt

    use("good")
    monkeypatch.setattr(download, "_in_time", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_split("test")
    assert names(cache) == []


def test_two_fetches_at_once(cache: Path, use: Use) -> None:
    use("good")
    both = threading.Barrier(2)

    def start(_: int) -> Path:
        both.wait()
        return fetch("test")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(start, range(2))) == [cache, cache]
    check_only_the_files(cache)
    check_loaded()


def test_fetches_into_a_named_directory(cache: Path, use: Use, tmp_path: Path) -> None:
    use("good")
    assert fetch("test", tmp_path / "mine") == tmp_path / "mine"
    check_only_the_files(tmp_path / "mine")
    assert not cache.exists()


def test_unwritable_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LENET_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match=r"cannot store data in .*file/below.*set LENET_CACHE_DIR"):
        load_split("test")
