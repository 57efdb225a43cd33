"""Start the process that reads HDF5 files for this one.

It takes as long to start as NumPy and h5py take to import. If the options name an HDF5 file, it is therefore started
early and gets ready while this process imports NumPy itself; so this module must not import NumPy.
"""

import os
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from app.errors import UserError
from app.files import child_process
from app.files.formats import HDF5
from app.files.reading import first_bytes


class Child(NamedTuple):
    """The process, and the socket to it: the process signals there that it is ready, and then takes requests."""

    process: subprocess.Popen[bytes]
    link: socket.socket


_ahead: list[Child] = []


def start() -> Child:
    """Return the process that was started early, or else a new one. Raises OSError."""
    return _ahead.pop() if _ahead else _start()


def start_ahead(paths: Iterable[Path]) -> None:
    """Start a process for each path of an HDF5 file. Faults of other files are reported when they are read."""
    for path in paths:
        with suppress(UserError, OSError):
            if first_bytes(path, len(HDF5)) == HDF5:
                _ahead.append(_start())


def _start() -> Child:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            process = child_process.start(f"{__package__}.hdf5_child", stdin=theirs.fileno(), env=environment)
        except BaseException:
            ours.close()
            raise
    return Child(process, ours)
