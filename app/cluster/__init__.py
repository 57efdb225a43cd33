"""Distribute work over processes or machines by Dask's ``distributed`` (extra ``cluster``).

A *piece* is any picklable unit of work; workers return an answer for each. Other rooms import this one inside
functions, after ``require_dask``, because the extra may be missing.
"""

from importlib.util import find_spec

from app.base.errors import UserError, pip_install_command


def require_dask(what: str) -> None:
    """Raise UserError, beginning with ``what``, unless the extra ``cluster`` is installed."""
    if find_spec("distributed") is None:
        raise UserError(f"{what} needs Dask: {pip_install_command('cluster')}")
