"""Start the process that reads HDF5 files for this one.

It takes as long to start as NumPy and h5py take to import. If the options name an HDF5 file, it is therefore started
early and gets ready while this process imports NumPy; so this module must not import NumPy.
"""

import os
from contextlib import suppress

from app.base.errors import UserError
from app.files.child_process import Child

_ahead: list[Child] = []


def take_or_start_child() -> Child:
    """Return the process that was started early, else a new one. It reports when it is ready. Raises UserError."""
    return _ahead.pop() if _ahead else _start_child()


def start_ahead(files: int) -> None:
    """Start a process for each of so many files; if that fails, reading them reports it."""
    with suppress(UserError):
        _ahead.extend(_start_child() for _ in range(files))


def _start_child() -> Child:
    return Child(f"{__package__}.hdf5_child", environment={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
