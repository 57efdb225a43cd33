"""Distribute work over processes or machines by Dask's ``distributed`` (extra ``cluster``).

A *piece* is any picklable unit of work; a worker returns an answer for each piece. Other packages import the modules
here inside functions, after ``require_dask``, because Dask may not be installed.
"""

from importlib.util import find_spec

from app.base.errors import UserError, pip_install_command


def require_dask(what: str) -> None:
    """Raise UserError if Dask's ``distributed`` is not installed. what: the option that needs it, for the error."""
    if find_spec("distributed") is None:
        raise UserError(f"{what} needs Dask: {pip_install_command('cluster')}")
