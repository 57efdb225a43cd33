"""Download one file over HTTP: bounded in size, time and memory, with a quick error without a network."""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import requests
from tqdm import tqdm

from app.files.child_process import Child
from app.processes import how_it_ended
from data_tools.transfer import AGAIN, DONE, HEADERS, reason_of

CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 15.0
"""How long a transfer may lag behind the least rate, whatever is slow: connecting, headers, redirects or the body."""
LEAST_BYTES_PER_S = 32 << 10
ATTEMPTS = 3
BACKOFF_SECONDS = 0.5
POLL_SECONDS = 0.1


class DownloadError(Exception):
    """Raised if a URL did not deliver its file; the text is the reason in one line."""


def unreachable(urls: Sequence[str]) -> dict[str, str]:
    """Request the headers of all URLs at once; return a reason for each that did not answer.

    Takes CONNECT_SECONDS at most; a plain request can spend that on each of a host's addresses and more on its name.
    The threads are daemons, because nothing can interrupt a name look-up.
    """
    reasons = dict.fromkeys(urls, f"no answer within {CONNECT_SECONDS:g} s")

    def ask(url: str) -> None:
        try:
            # Its own time-out ends the thread; the deadline below, which is earlier, decides.
            requests.head(url, timeout=2 * CONNECT_SECONDS, headers=HEADERS).close()
            del reasons[url]
        except Exception as error:  # as in transfer.py
            reasons[url] = reason_of(error)

    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CONNECT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(reasons)  # a late answer changes nothing


def download(url: str, target: Path, max_bytes: int) -> None:
    """Write the body of ``url`` to ``target``, with a progress bar; try again after a failure in transit.

    Raises DownloadError after ATTEMPTS failures, or at once for a permanent failure: a client error, a body of more
    than ``max_bytes``, or one that comes too slowly. Each attempt takes at most PATIENCE_SECONDS plus the time for
    ``max_bytes`` at the least rate. The caller removes ``target`` after a failure.
    """
    for attempt in range(ATTEMPTS):
        time.sleep(BACKOFF_SECONDS * attempt)
        code, reason = _attempt(url, target, max_bytes)
        if code == DONE:
            return
        if code != AGAIN:
            raise DownloadError(reason)
    raise DownloadError(f"{reason} ({ATTEMPTS} attempts)")


def _attempt(url: str, target: Path, max_bytes: int) -> tuple[int | None, str]:
    """Transfer once → the exit code of the process that did, None if it was too slow, and why there is no file."""
    with (
        Child(f"{__package__}.transfer", url, str(target.absolute()), max_bytes) as child,
        tqdm(desc=Path(url).name, unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as progress,
    ):
        reason = child.receive() and _last_words(child, target, progress)  # at first, it is ready
        if reason is None:
            return None, f"sends less than {LEAST_BYTES_PER_S >> 10} kB/s for {PATIENCE_SECONDS:g} s"
        code = child.exit_code()
    return code, reason.decode() or f"the process that downloads it {how_it_ended(code)}"


def _last_words(child: Child, target: Path, progress: tqdm) -> bytes | None:
    """Wait until the process says why there is no file, or ends; return None if the transfer became too slow."""
    received, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return child.receive(POLL_SECONDS)
        except TimeoutError:
            now = time.monotonic()
        more = target.stat().st_size - received if target.exists() else 0
        received += more
        progress.update(more)
        # A fast start does not allow a stop later.
        deadline = min(deadline + more / LEAST_BYTES_PER_S, now + PATIENCE_SECONDS)
        if now > deadline:
            return None
