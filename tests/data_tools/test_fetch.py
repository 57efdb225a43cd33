"""Test fetching Fashion-MNIST, or a small stand-in for it, from a loopback server with all kinds of faults."""

import gzip
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.base.errors import UserError
from app.files.child_process import Child
from data_tools import download, fashion_mnist
from data_tools.fashion_mnist import fetch_split, open_split
from data_tools.idx import write_idx
from tests.data_tools.test_hostile_mirrors import ANSWERS, Server
from tests.support.tiny_fashion import FILES, IMAGES, NAMES, check_loaded, check_only_the_files, names, write

Use = Callable[..., None]


def http_answer(status: int, body: bytes, length: int | None = None) -> bytes:
    """Return an HTTP answer. length: the Content-Length, if it is not that of the body."""
    declared = len(body) if length is None else length
    return f"HTTP/1.1 {status} Status\r\nContent-Length: {declared}\r\nConnection: close\r\n\r\n".encode() + body


# Mirror → function of the file's content and the number of the request, returns the answer; others send the file.
MOODS: dict[str, Callable[[bytes, int], bytes]] = {
    "absent": lambda body, _: http_answer(404, b"<html>not here</html>"),
    "flaky": lambda body, asked: http_answer(503, b"") if asked < 2 else http_answer(200, body),
    "portal": lambda body, _: http_answer(200, b"<html>log in first</html>"),
    "other": lambda body, _: http_answer(200, gzip.compress(gzip.decompress(body)[:-1] + b"?")),
    "endless": lambda body, _: http_answer(200, bytes(1 << 20)),
    "cut": lambda body, _: http_answer(200, body[: len(body) // 2], len(body)),
    "stalling": lambda body, _: http_answer(200, body[: len(body) // 2], len(body)),
    "misleading": lambda body, _: ANSWERS["a redirect in Latin-1"][0],
}


class Mirrors(Server):
    """Serves /MIRROR/FILE and counts the requests for each path; ``released`` ends answers that stall."""

    def __init__(self, files: Path) -> None:
        super().__init__(self._get, self._refuse_or_wait)
        self._files = files
        self.asked: Counter[str] = Counter()
        self.released = threading.Event()

    def _get(self, client: socket.socket, path: str) -> None:
        self.asked[path] += 1
        mirror, name = path[1:].split("/")
        body = (self._files / name).read_bytes()
        client.sendall(MOODS[mirror](body, self.asked[path]) if mirror in MOODS else http_answer(200, body))
        if mirror == "stalling":
            self.released.wait(10)

    def _refuse_or_wait(self, client: socket.socket, path: str) -> None:
        if path.startswith("/silent"):
            self.released.wait(10)
        client.sendall(http_answer(200, b""))


@pytest.fixture
def server(cache: Path, tmp_path: Path) -> Iterator[Mirrors]:
    mirrors = Mirrors(write(tmp_path / "source"))
    yield mirrors
    mirrors.released.set()
    mirrors.close()


@pytest.fixture
def use_mirrors(monkeypatch: pytest.MonkeyPatch, server: Mirrors) -> Use:
    """Return a function that makes the named mirrors the only ones."""

    def use(*names: str) -> None:
        monkeypatch.setattr(fashion_mnist, "MIRRORS", tuple(f"{server.url}{name}/" for name in names))

    return use


def test_missing_files_come_from_the_first_mirror(
    cache: Path, server: Mirrors, use_mirrors: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    use_mirrors("good", "spare")
    check_loaded()
    check_only_the_files(cache)
    assert server.asked == Counter({f"/good/{name}.gz": 1 for name in NAMES})
    check_loaded()
    assert sum(server.asked.values()) == 2, "the cache is used from then on"
    assert str(cache) in capsys.readouterr().err
    bad = cache / f"{NAMES[1]}.gz"
    bad.write_bytes(bad.read_bytes()[:-3])
    check_loaded()
    check_only_the_files(cache)
    assert f"warning: ignoring a bad file: {bad} is a truncated gzip" in capsys.readouterr().err
    assert sum(server.asked.values()) == 3, "the good file is kept"


def test_the_next_mirror_is_used_if_one_fails(cache: Path, server: Mirrors, use_mirrors: Use) -> None:
    bad = ("other", "stalling", "misleading")
    use_mirrors(*bad, "flaky")
    check_loaded()
    check_only_the_files(cache)
    assert [server.asked[f"/{mirror}/{NAMES[0]}.gz"] for mirror in bad] == [1, 1, 1]
    assert [server.asked[f"/flaky/{name}.gz"] for name in NAMES] == [2, 2], "server errors are transient"
    assert sum(server.asked.values()) == 7, "a mirror that failed is not asked again"


def test_if_all_mirrors_fail_the_error_lists_the_reasons(
    cache: Path, server: Mirrors, use_mirrors: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ("absent", "portal", "endless", "cut")
    use_mirrors(*bad, "silent")
    unused = "http://127.0.0.1:9/"  # nothing listens at the discard port
    monkeypatch.setattr(fashion_mnist, "MIRRORS", (*fashion_mnist.MIRRORS, unused))
    with pytest.raises(UserError) as caught:
        open_split("test")
    # A mirror without an answer gets no request for a file, and no mirror one for the second file.
    assert server.asked == {f"/{mirror}/{NAMES[0]}.gz": 3 if mirror == "cut" else 1 for mirror in bad}
    message = str(caught.value)
    assert message.splitlines()[0] == "cannot get Fashion-MNIST: no source worked"
    reasons = ["HTTP status 404", "is a web page", "sends more than", "(3 attempts)", "no answer within 0.5 s"]
    reasons += [f"{unused}{NAMES[0]}.gz: Connection refused\n", "apt-get is not on PATH"]
    for text in (*reasons, "apt-get is not on PATH", str(cache), *NAMES, *(file.sha256 for file in FILES)):
        assert text in message
    assert all(f"{mirror}{NAMES[0]}.gz: " in message for mirror in fashion_mnist.MIRRORS)
    assert names(cache) == []


def test_an_interrupted_download_leaves_no_file(cache: Path, use_mirrors: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(child: Child, target: Path, _: object) -> None:
        assert child.receive(30) == b""
        assert target.exists() and len(names(cache)) == 1
        raise KeyboardInterrupt

    use_mirrors("good")
    monkeypatch.setattr(download, "_wait_for_transfer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_split("test")
    assert names(cache) == []


def test_two_threads_may_fetch_at_once(cache: Path, use_mirrors: Use) -> None:
    use_mirrors("good")
    both = threading.Barrier(2)

    def start(_: int) -> Path:
        both.wait()
        return fetch_split("test")

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(start, range(2))) == [cache, cache]
    check_only_the_files(cache)
    check_loaded()


def test_files_are_fetched_into_a_named_directory(cache: Path, use_mirrors: Use, tmp_path: Path) -> None:
    use_mirrors("good")
    assert fetch_split("test", tmp_path / "mine") == tmp_path / "mine"
    check_only_the_files(tmp_path / "mine")
    assert not cache.exists()


# --- from a Debian package, with fake apt-get and dpkg-deb


APT_GET = """#!/bin/sh
echo "$@" >> {log}
config=${{2#--config-file=}}
case "$3" in
update) [ -d "${{config%/*}}/state/lists/partial" ] && [ -d "${{config%/*}}/cache/archives/partial" ] || exit 1
  /bin/grep -q 'Dir::State::Lists ".*/state/lists";' "$config" && : > {updated} ;;
download) if [ -e {updated} ]; then : > "$4_1.0_all.deb"; else echo "E: Unable to locate package $4"; exit 100; fi ;;
esac
"""
DPKG_DEB = """#!/bin/sh
/bin/mkdir -p "$3/usr/share/datasets/fashion-mnist"
/bin/cp {source}/* "$3/usr/share/datasets/fashion-mnist"
"""


def install_script(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text(script)
    path.chmod(0o755)


@pytest.fixture
def debian_tools(cache: Path, tmp_path: Path) -> Path:
    """Install fake apt-get and dpkg-deb. While the returned path exists, apt-get knows the package."""
    updated = tmp_path / "updated"
    install_script(tmp_path, "apt-get", APT_GET.format(log=tmp_path / "log", updated=updated))
    install_script(tmp_path, "dpkg-deb", DPKG_DEB.format(source=write(tmp_path / "source")))
    return updated


@pytest.mark.parametrize("known", [True, False], ids=["in the system's lists", "after a private update"])
def test_files_come_from_the_debian_package(cache: Path, debian_tools: Path, tmp_path: Path, known: bool) -> None:
    if known:
        debian_tools.touch()
    check_loaded()
    check_only_the_files(cache)
    commands = [line.split()[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert commands == (["download"] if known else ["download", "update", "download"])


def test_wrong_files_of_the_debian_package_are_refused(cache: Path, debian_tools: Path, tmp_path: Path) -> None:
    debian_tools.touch()
    write_idx(tmp_path / "source" / f"{NAMES[0]}.gz", IMAGES[::-1].copy())
    with pytest.raises(UserError, match=f"no good copy of {NAMES[0]}"):
        open_split("test")
    assert names(cache) == [f"{NAMES[1]}.gz"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'W: odd'; echo 'E: Unable to fetch'; echo done; exit 100", "apt-get download .*: E: Unable to fetch"),
        ("exit 3", "exit code 3"),
        ("/bin/sleep 30", "took more than 0.2 s"),
        ("exit 0", "left no package file"),
    ],
)
def test_errors_of_apt_get_are_reported(
    cache: Path, debian_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)
    install_script(tmp_path, "apt-get", f'#!/bin/sh\n[ "$3" = update ] && exit 0\n{script}\n')
    start = time.monotonic()
    with pytest.raises(UserError, match=reason):
        open_split("test")
    assert time.monotonic() - start < 10
    assert names(cache) == []
