"""Start the process that reads HDF5 files for this one.

It takes as long to start as NumPy and h5py take to import. If the options name an HDF5 file, it is therefore started
early and gets ready while this process imports NumPy; so this module must not import NumPy.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from app.base.errors import UserError
from app.files.child_process import Child
from app.files.formats import HDF5
from app.files.reading import first_bytes

_ahead: list[Child] = []


def start() -> Child:
    """Return the process that was started early, else a new one. It reports when it is ready. Raises UserError."""
    return _ahead.pop() if _ahead else _start()


def start_ahead(paths: Iterable[Path]) -> None:
    """Start a process for each path of an HDF5 file. Faults of other files are reported when they are read."""
    for path in paths:
        with suppress(UserError, OSError):
            if first_bytes(path, len(HDF5)) == HDF5:
                _ahead.append(_start())


def _start() -> Child:
    return Child(f"{__package__}.hdf5_child", environment={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
