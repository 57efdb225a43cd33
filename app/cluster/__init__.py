"""Distribute work over processes or machines by Dask's ``distributed`` (extra ``cluster``).

A *piece* is any picklable unit of work; a worker returns an answer for each piece. Other rooms import this package
inside functions, after ``require_dask``, because the extra may not be installed.
"""

from importlib.util import find_spec

from app.base.errors import UserError, pip_install_command


def require_dask(what: str) -> None:
    """Raise UserError if the extra ``cluster`` is not installed. what: beginning of the error's text."""
    if find_spec("distributed") is None:
        raise UserError(f"{what} needs Dask: {pip_install_command('cluster')}")
