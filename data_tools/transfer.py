"""One transfer over HTTP, in a separate process; ``download`` starts, watches and ends it.

A hostile answer can cost the libraries that read it any time and memory; here it costs only this process's.
"""

import resource
import socket
import sys
from pathlib import Path
from typing import NoReturn

import requests
import urllib3

DONE, AGAIN, NEVER = 0, 10, 11  # exit codes; with the last two, the process sends the reason
MEMORY_BYTES = 1 << 30
CHUNK = 1 << 16
MAX_REASON = 200  # characters
# The server must not decompress the archive.
HEADERS = {"Accept-Encoding": "identity"}


class FailedError(Exception):
    """Raised if there is no file; the text is the reason in one line. code: AGAIN to try again, else NEVER."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def transfer(url: str, target: Path, max_bytes: int) -> None:
    """Write the body of ``url`` to ``target``, without decompressing it. Raises FailedError."""
    try:
        with requests.get(url, stream=True, timeout=None, headers=HEADERS) as response, target.open("wb", 0) as file:
            if response.status_code != 200:
                code = AGAIN if response.status_code >= 500 else NEVER
                raise FailedError(f"HTTP status {response.status_code}", code)
            received = 0
            for piece in response.raw.stream(CHUNK, decode_content=False):
                received += len(piece)
                if received > max_bytes:
                    raise FailedError(f"sends more than the {max_bytes} bytes that the file can have", NEVER)
                file.write(piece)
    except MemoryError as error:
        raise FailedError(f"its answer takes more than {MEMORY_BYTES >> 20} MB of memory", NEVER) from error
    except (requests.URLRequired, requests.TooManyRedirects, requests.exceptions.InvalidURL) as error:
        raise FailedError(reason_of(error), NEVER) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise FailedError(reason_of(error), AGAIN) from error
    except FailedError:
        raise
    except Exception as error:  # a strange answer can make the libraries raise anything
        raise FailedError(f"its answer is not understood ({reason_of(error)})", NEVER) from error


def reason_of(error: BaseException) -> str:
    """Return the innermost cause, such as "Connection refused"; the errors around it have longer, vaguer texts."""
    while error.__context__ is not None:
        error = error.__context__
    # The text of other errors may be only the bad input itself, such as an empty line.
    text = getattr(error, "strerror", None) or (
        str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    )
    return ascii(" ".join(str(text).split()))[1:-1][:MAX_REASON]


def main(url: str, target: str, max_bytes: int) -> NoReturn:
    """Entry point of the process: limit its memory, say that it is ready, transfer, exit with a code."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    link = socket.socket(fileno=0)
    link.send(b"ready")
    try:
        transfer(url, Path(target), max_bytes)
    except FailedError as error:
        link.send(str(error).encode())
        sys.exit(error.code)
    sys.exit(DONE)
