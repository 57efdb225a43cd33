"""Isolate tests from network and user: no test may fetch anything, and none finds the user's files."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from data_tools import fashion_mnist
from data_tools.idx import content_sha256, read_idx

HERE = (None, "", "localhost", "::1", "0.0.0.0", "::")
GIVEN = {name: os.environ.get(name) for name in ("LENET_CACHE_DIR", "FASHION_MNIST_DIR", "XDG_CACHE_HOME")}
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
APT_GET = '#!/bin/sh\necho "apt-get $*" >> "$0.log"\nexit 100\n'
FOLDER = Path(__file__).parent / "first_hundred"
"""The first hundred test images of Fashion-MNIST and their labels."""
_watching: list[Outside] = []


def fashion_mnist_folder() -> Path | None:
    """Return the folder in which the user has all of Fashion-MNIST; None if a test would have to fetch it."""
    files = [file for split in fashion_mnist.SPLITS.values() for file in split]
    folders = fashion_mnist.search_dirs(None)
    return next(
        (folder for folder in folders if all(fashion_mnist.existing_copies(file, folder) for file in files)), None
    )


def first_hundred_alone(patch: pytest.MonkeyPatch, split: str = "test") -> None:
    """Replace Fashion-MNIST by a local copy of the first hundred images of one split."""
    kept = []
    for file in fashion_mnist.SPLITS["test"]:
        array = read_idx(FOLDER / f"{file.name}.gz", len(file.shape))
        kept.append(fashion_mnist.DataFile(file.name, array.shape, content_sha256(array)))
    patch.setattr(fashion_mnist, "SPLITS", {split: tuple(kept)})
    patch.setenv(fashion_mnist.DIR_VARIABLE, str(FOLDER))


class Outside:
    """Records attempts to reach the network: of this process by an audit hook, of others by a proxy that refuses all.

    A script ``apt-get``, first on the PATH, records calls of apt-get.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self._log = folder / "apt-get.log"
        self._home: Path | None = None
        self._proxy = socket.create_server(("127.0.0.1", 0))
        (folder / "apt-get").write_text(APT_GET)
        (folder / "apt-get").chmod(0o755)
        threading.Thread(target=self._refuse, daemon=True).start()
        if not _watching:
            sys.addaudithook(_audit)
        _watching[:] = [self]

    def environment(self) -> dict[str, str]:
        """Return the environment variables that direct other processes to the proxy and to the script."""
        proxy = f"http://127.0.0.1:{self._proxy.getsockname()[1]}"
        found = {name: proxy for lower in PROXIES for name in (lower, lower.upper())}
        found |= dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")
        return found | {"PATH": f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

    def empty_home(self) -> Path:
        """Return an empty home folder: that of the last test if it is still empty, as nearly always."""
        if self._home is None or not self._home.is_dir() or any(self._home.iterdir()):
            if self._home is not None:
                shutil.rmtree(self._home, ignore_errors=True)
            self._home = Path(tempfile.mkdtemp(dir=self.folder))
        return self._home

    def taken(self) -> list[str]:
        """Return the attempts since the last call."""
        found, self.calls = self.calls, []
        with suppress(FileNotFoundError):
            found += self._log.read_text().splitlines()
            self._log.unlink()
        return found

    def _refuse(self) -> None:
        while True:
            client, _ = self._proxy.accept()
            with client, suppress(OSError):
                client.settimeout(1)
                self.calls.append(client.recv(200).partition(b"\r\n")[0].decode("latin-1"))
                client.sendall(b"HTTP/1.1 403 Tests fetch nothing\r\nContent-Length: 0\r\n\r\n")


def _audit(event: str, arguments: tuple) -> None:
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in HERE and not host.startswith("127."):
        _watching[0].calls.append(f"{event} {host}")
        raise PermissionError(f"tests fetch nothing, not from {host}")


@contextmanager
def secluded(outside: Outside, gpu: bool = False, images: Path | None = None) -> Iterator[None]:
    """Check that the block does not reach the network; give it an empty home folder and cache.

    gpu: keep the user's home folder and its compiled kernels. images: folder of Fashion-MNIST, if the test reads it.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not gpu:
            home = outside.empty_home()
            patch.setenv("HOME", str(home))
            patch.setattr(fashion_mnist, "SYSTEM_DIR", home / "nowhere")
            for name, value in GIVEN.items():
                if value is not None and os.environ.get(name) == value:  # not a fixture's
                    patch.delenv(name)
        if images is not None:
            patch.setenv(fashion_mnist.DIR_VARIABLE, str(images))
        yield
    tried = outside.taken()
    assert not tried, f"tests fetch nothing, this one tried {tried}"
