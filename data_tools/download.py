"""Download a file over HTTP within limits of size, time and memory, or unpack a Debian package; fail fast offline.

A separate process transfers the file: a malicious answer can make the libraries that read it use any amount of time and
memory, and nothing can interrupt a name look-up. The system's apt-get fetches a Debian package, which is unpacked
without root and without being installed.
"""

import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import requests
import urllib3
from tqdm import tqdm

from app.base.clock import Deadline
from app.base.processes import describe_exit_code, limit_resource
from app.files.child_process import READY, Child

CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 15.0
"""How long a transfer may be slower than LEAST_BYTES_PER_S while it connects, is redirected, or receives data."""
LEAST_BYTES_PER_S = 32 << 10
ATTEMPTS = 3
BACKOFF_SECONDS = 0.5
POLL_SECONDS = 0.1
MEMORY_BYTES = 1 << 30  # limit of the process that transfers the file
CHUNK = 1 << 16
MAX_REASON = 200  # characters
HEADERS = {"Accept-Encoding": "identity"}  # the server must not decompress the archive
_TRANSIENT, _PERMANENT = 10, 11  # exit codes of this process: another attempt may succeed, or none can


class DownloadError(Exception):
    """A URL did not deliver its file. The text is the reason, in one line. transient: whether a retry may succeed."""

    def __init__(self, reason: str, transient: bool = False) -> None:
        super().__init__(reason)
        self.transient = transient


def find_unreachable_urls(urls: Sequence[str]) -> dict[str, str]:
    """Request the headers of all URLs at once; return URL → reason for those that did not answer.

    This takes at most CONNECT_SECONDS; a plain request can take as long for each address of a host, and longer for its
    name. The threads are daemons, because nothing can interrupt a name look-up.
    """
    reasons = dict.fromkeys(urls, f"no answer within {CONNECT_SECONDS:g} s")

    def request_headers(url: str) -> None:
        try:
            # This time-out only ends the thread; the earlier deadline below decides.
            requests.head(url, timeout=2 * CONNECT_SECONDS, headers=HEADERS).close()
            del reasons[url]
        except Exception as error:  # as in ``transfer_file``
            reasons[url] = _error_reason(error)

    threads = [threading.Thread(target=request_headers, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    deadline = Deadline(CONNECT_SECONDS)
    for thread in threads:
        thread.join(deadline.seconds_left)
    return dict(reasons)  # a copy, which a late answer does not change


def download_file(url: str, target: Path, max_bytes: int) -> None:
    """Write the body of ``url`` to ``target``, with a progress bar; retry after a failure in transit.

    Raises DownloadError after ATTEMPTS failures, or at once for a permanent failure: a client error, a body of more
    than ``max_bytes``, or one that arrives too slowly. Each attempt takes at most PATIENCE_SECONDS plus the time for
    ``max_bytes`` at the least rate. The caller removes ``target`` after a failure.
    """
    for attempt in range(ATTEMPTS):
        time.sleep(BACKOFF_SECONDS * attempt)
        try:
            return _attempt_download(url, target, max_bytes)
        except DownloadError as error:
            if not error.transient:
                raise
            last = error
    raise DownloadError(f"{last} ({ATTEMPTS} attempts)")


def _attempt_download(url: str, target: Path, max_bytes: int) -> None:
    """Transfer the file once in a separate process. Raises DownloadError."""
    with (
        Child(__name__, url, str(target.absolute()), max_bytes) as child,
        tqdm(desc=Path(url).name, unit="B", unit_scale=True, disable=None) as progress,
    ):
        reason = child.receive() and _wait_for_transfer(child, target, progress)  # the first message is READY
        code = child.exit_code()
    if code != 0:
        raise DownloadError(reason or f"the process that downloads it {describe_exit_code(code)}", code == _TRANSIENT)


def _wait_for_transfer(child: Child, target: Path, progress: tqdm) -> str:
    """Wait for the transfer; return the failure that its process reports, or ''. Raises DownloadError if too slow."""
    received, deadline = 0, Deadline(PATIENCE_SECONDS)
    while True:
        try:
            return child.receive(POLL_SECONDS).decode()
        except TimeoutError:
            pass  # measure the progress below
        more = target.stat().st_size - received if target.exists() else 0
        received += more
        progress.update(more)
        deadline.extend(more / LEAST_BYTES_PER_S, PATIENCE_SECONDS)  # a fast start earns no longer pause later
        if deadline.is_over:
            raise DownloadError(f"sends less than {LEAST_BYTES_PER_S >> 10} kB/s for {PATIENCE_SECONDS:g} s")


def main(url: str, target: str, max_bytes: int) -> None:
    """Transfer the file in this process, in limited memory; send the reason of a failure to the parent process."""
    limit_resource(resource.RLIMIT_AS, MEMORY_BYTES)
    link = socket.socket(fileno=0)
    link.send(READY)
    try:
        transfer_file(url, Path(target), max_bytes)
    except DownloadError as error:
        link.send(str(error).encode())
        sys.exit(_TRANSIENT if error.transient else _PERMANENT)


def transfer_file(url: str, target: Path, max_bytes: int) -> None:
    """Write the body of ``url`` to ``target``, without decompressing it. Raises DownloadError."""
    try:
        with requests.get(url, stream=True, timeout=None, headers=HEADERS) as response, target.open("wb", 0) as file:
            if response.status_code != 200:
                raise DownloadError(f"HTTP status {response.status_code}", response.status_code >= 500)
            received = 0
            for block in response.raw.stream(CHUNK, decode_content=False):
                received += len(block)
                if received > max_bytes:
                    raise DownloadError(f"sends more than the {max_bytes} bytes that the file can have")
                file.write(block)
    except DownloadError:
        raise
    except MemoryError as error:
        raise DownloadError(f"its answer takes more than {MEMORY_BYTES >> 20} MB of memory") from error
    except (requests.URLRequired, requests.TooManyRedirects, requests.exceptions.InvalidURL) as error:
        raise DownloadError(_error_reason(error)) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise DownloadError(_error_reason(error), transient=True) from error
    except Exception as error:  # an invalid answer can make the libraries raise any exception
        raise DownloadError(f"its answer is not understood ({_error_reason(error)})") from error


def _error_reason(error: BaseException) -> str:
    """Return the innermost cause of an error, such as "Connection refused"; outer errors have longer, vaguer texts."""
    while error.__context__ is not None:
        error = error.__context__
    # Without the type, the text of other errors may be only the bad input, such as an empty line.
    text = getattr(error, "strerror", None) or (
        str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    )
    return ascii(" ".join(str(text).split()))[1:-1][:MAX_REASON]


TIMEOUT_SECONDS = 180.0

# apt-get's options: one attempt, short waits; as root, apt must not switch to a user that cannot read the directory.
_BOTH = """\
Acquire::Retries "0";
Acquire::http::Timeout "10";
Acquire::https::Timeout "10";
APT::Sandbox::User "root";
"""
# More options: package lists below the directory, so that root is not needed; no hooks of the system.
_PRIVATE = """\
Dir::State "{state}";
Dir::State::Lists "{state}/lists";
Dir::Cache "{cache}";
Acquire::Languages "none";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


class DebianError(Exception):
    """A Debian package is not available; the text is the reason, in one line."""


def unpack_debian_package(package: str, directory: Path) -> Path:
    """Download ``package`` and unpack it below ``directory``; return the root of the unpacked tree.

    The system's package lists are used or, if that fails, fresh private ones. apt-get and dpkg-deb write only below
    ``directory``, an absolute path that the caller removes. Raises DebianError.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise DebianError(f"{tool} is not on PATH (not a Debian-like system)")
    config = directory / "apt.conf"
    apt = ["apt-get", "--quiet", f"--config-file={config}"]
    config.write_text(_BOTH)
    try:
        _run_tool([*apt, "download", package], directory)
    except DebianError:
        state, cache = directory / "state", directory / "cache"
        for path in (state / "lists" / "partial", cache / "archives" / "partial"):
            path.mkdir(parents=True)
        config.write_text(_BOTH + _PRIVATE.format(state=state, cache=cache))
        _run_tool([*apt, "update"], directory)
        _run_tool([*apt, "download", package], directory)
    archive = next(directory.glob("*.deb"), None)
    if archive is None:
        raise DebianError("apt-get download left no package file")
    tree = directory / "tree"
    _run_tool(["dpkg-deb", "-x", str(archive), str(tree)], directory)
    return tree


def _run_tool(command: list[str], directory: Path) -> None:
    log = directory / "log"
    # Write output to a file: with a pipe we would wait for grandchildren that outlive the time-out.
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise DebianError(f"{_format_command(command)} took more than {TIMEOUT_SECONDS:g} s") from error
    if done.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("E:")] or lines or [f"exit code {done.returncode}"]
        raise DebianError(f"{_format_command(command)}: {told[-1]}")


def _format_command(command: list[str]) -> str:
    return " ".join(word for word in command if not word.startswith("-"))
