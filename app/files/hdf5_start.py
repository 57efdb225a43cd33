"""Start the process that reads HDF5 files early, so that it starts up while this process imports NumPy.

The process needs as long to start as it takes to import NumPy and h5py. So this module must not import NumPy.
"""

import os
from contextlib import suppress

from app.base.errors import UserError
from app.files.child_process import Child

_ahead: list[Child] = []


def take_or_start_child() -> Child:
    """Return a process that ``start_children_early`` started, or a new one. Raises UserError."""
    return _ahead.pop() if _ahead else _start_child()


def start_children_early(files: int) -> None:
    """Start ``files`` processes, one for each HDF5 file to read. If a start fails, the later read reports the error."""
    with suppress(UserError):
        _ahead.extend(_start_child() for _ in range(files))


def _start_child() -> Child:
    return Child(f"{__package__}.hdf5_child", environment={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
