"""Test the guard itself: a test that fetches something fails, and no file of the user is found."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.files.writing import cache_dir
from tests.support.outside import Outside, secluded

FETCHES = {
    "a request": "import requests; requests.get('http://example.com/x', timeout=5)",
    "a request by TLS": "import requests\ntry: requests.get('https://example.com/x', timeout=5)\nexcept OSError: pass",
    "the standard library": "import urllib.request as u\ntry: u.urlopen('http://example.com')\nexcept OSError: pass",
    "apt-get": "import subprocess; subprocess.run(['apt-get', 'download', 'x'])",
}


@pytest.mark.parametrize("how", FETCHES)
def test_a_process_of_a_test_is_noticed(how: str, outside: Outside) -> None:
    with pytest.raises(AssertionError, match="tests fetch nothing"), secluded(outside):
        subprocess.run([sys.executable, "-c", FETCHES[how]], check=True, timeout=60)


@pytest.mark.parametrize("address", ["192.0.2.1", "example.com"])
def test_this_process_is_noticed(address: str, outside: Outside) -> None:
    def fetch() -> None:
        with pytest.raises(PermissionError):
            socket.create_connection((address, 80), timeout=5)

    with pytest.raises(AssertionError, match=f"tests fetch nothing.*{address}"), secluded(outside):
        fetch()


def test_servers_of_a_test_are_reached(outside: Outside) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, secluded(outside):
        socket.create_connection(server.getsockname()).close()


def test_nothing_of_the_user_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "FASHION_MNIST_DIR" not in os.environ
    assert list(Path.home().iterdir()) == [] and cache_dir() == Path.home() / ".cache" / "lenet5-inference"
