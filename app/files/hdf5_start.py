"""The start of a process that reads an HDF5 file for this one. It takes as long as importing NumPy and h5py does.

So it is started ahead where the options name such a file, and gets ready while this process imports NumPy itself: this
module must not.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from app.errors import UserError
from app.files.formats import HDF5
from app.files.reading import open_regular

_CODE = "import sys; sys.path[:0] = sys.argv[2:]; from app.files.hdf5_child import main; main(int(sys.argv[1]))"


class Child(NamedTuple):
    """link: the socket that it takes requests from. It says that it is ready first."""

    process: subprocess.Popen[bytes]
    link: socket.socket


_ahead: list[Child] = []


def start() -> Child:
    """One that was started ahead, or else a new one; it ends with the thread that started it. Raises OSError."""
    return _ahead.pop() if _ahead else _start()


def start_ahead(paths: Iterable[Path]) -> None:
    """Start a process for every path that is an HDF5 file. What is wrong with the others is told when they are read."""
    for path in paths:
        try:
            with open_regular(path, sys.maxsize) as file:
                if file.read(len(HDF5)) == HDF5:
                    _ahead.append(_start())
        except (UserError, OSError):
            pass


def _start() -> Child:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    places = [str(Path(__file__).parents[2]), *(place or str(Path.cwd()) for place in sys.path)]
    with ExitStack() as failed, theirs:
        failed.callback(ours.close)
        # Neither the user's settings nor what runs at every start of Python matters there, and it takes time.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, str(os.getpid()), *places],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for this process
        )
        failed.pop_all()
    return Child(process, ours)
