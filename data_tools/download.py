"""Download one file over HTTP: bounded in size and in time, and quick to say that there is no network."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import requests
import urllib3
from tqdm import tqdm

CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
ATTEMPTS = 3
BACKOFF_SECONDS = 0.5
CHUNK = 1 << 16
# A server must not unpack the archive for us.
HEADERS = {"Accept-Encoding": "identity"}

_TRANSPORT_ERRORS = (requests.RequestException, urllib3.exceptions.HTTPError)


class DownloadError(Exception):
    """Why a URL did not give its file, in one line."""


def unreachable(urls: Sequence[str]) -> dict[str, str]:
    """Ask all URLs at once for their headers; returns the reason for each that gave no answer at all.

    Takes CONNECT_SECONDS at most, where a plain request can spend that on each of a host's addresses and
    more on its name. Threads are daemons, because nothing can interrupt a name look-up.
    """
    answers: queue.Queue[tuple[str, str | None]] = queue.Queue()

    def ask(url: str) -> None:
        try:
            # Its own time-out ends the thread; the deadline below, which is earlier, decides.
            requests.head(url, timeout=2 * CONNECT_SECONDS, headers=HEADERS).close()
            answers.put((url, None))
        except _TRANSPORT_ERRORS as error:
            answers.put((url, _reason(error)))

    for url in urls:
        threading.Thread(target=ask, args=(url,), daemon=True).start()
    reasons: dict[str, str | None] = dict.fromkeys(urls, f"no answer within {CONNECT_SECONDS:g} s")
    deadline = time.monotonic() + CONNECT_SECONDS
    for _ in urls:
        try:
            url, reason = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        reasons[url] = reason
    return {url: reason for url, reason in reasons.items() if reason is not None}


def download(url: str, target: Path, max_bytes: int) -> None:
    """Write the body of ``url`` to ``target``, with a progress bar; a failure in transit is tried again.

    Raises DownloadError after ATTEMPTS failures, or at once for an answer that will not get better: a
    client error, or a body of more than ``max_bytes``. Removing ``target`` then is the caller's part.
    """
    for attempt in range(ATTEMPTS):
        time.sleep(BACKOFF_SECONDS * attempt)
        try:
            return _download_once(url, target, max_bytes)
        except _TRANSPORT_ERRORS as error:
            reason = _reason(error)
    raise DownloadError(f"{reason} ({ATTEMPTS} attempts)")


def _download_once(url: str, target: Path, max_bytes: int) -> None:
    timeout = (CONNECT_SECONDS, READ_SECONDS)
    with requests.get(url, stream=True, timeout=timeout, headers=HEADERS) as response:
        if response.status_code >= 500:
            raise requests.HTTPError(f"HTTP status {response.status_code}")
        if response.status_code != 200:
            raise DownloadError(f"HTTP status {response.status_code}")
        length = response.headers.get("Content-Length", "")
        progress = tqdm(
            desc=url.rpartition("/")[2],
            total=int(length) if length.isdecimal() else None,
            unit="B",
            unit_scale=True,
            disable=not sys.stderr.isatty(),
        )
        received = 0
        with target.open("wb") as file, progress:
            for chunk in response.iter_content(CHUNK):
                received += len(chunk)
                if received > max_bytes:
                    raise DownloadError(f"sends more than the {max_bytes} bytes that the file can have")
                file.write(chunk)
                progress.update(len(chunk))


def _reason(error: BaseException) -> str:
    """The innermost cause, such as "Connection refused": what requests wraps round it says less in more words."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
